"""The files of another commit, such as the tip of the branch that a change is compared with.

They are read by git into a temporary directory; neither the work tree nor the index changes. Names
of files and of the commit are arguments of a process or lines of its input, never text of a shell.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import subprocess
import tempfile
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from types import TracebackType

from onnxbolt.errors import InputError
from onnxbolt.graph.importer import external_files

# a linked model or lock file could name any file of this machine, so links become texts
_SAFE = ("-c", "core.symlinks=false")


class Base:
    """The files of the commit that `ref` names, in the repository around `near`.

    A context; files are there until it ends. Raises InputError if git or the commit is missing.
    """

    def __init__(self, ref: str, near: Path) -> None:
        self.ref, self._near = ref, near if near.is_dir() else near.parent

    def __enter__(self) -> Base:
        self._scratch = tempfile.TemporaryDirectory(prefix="onnxbolt-")
        try:
            self._top = self._near  # until it is known
            self._top = Path(os.fsdecode(self._git("rev-parse", "--show-toplevel")[:-1]))
            self.commit = self._resolved()
            self._git("read-tree", self.commit)
        except BaseException:
            self._scratch.cleanup()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._scratch.cleanup()

    def model(self, path: Path) -> Path | None:
        """The model that the commit has at `path`, with the files that hold its data; None if it
        has none."""
        found = self.file(path)
        if found is not None:
            inside = self.name(path)
            folder = posixpath.dirname(inside)
            beside = {
                posixpath.normpath(
                    posixpath.join(folder, data.relative_to(found.parent).as_posix())
                )
                for data in external_files(found)
            }
            self._take(beside & self._names)
        return found

    def file(self, path: Path) -> Path | None:
        """The file that the commit has at `path`; None if it has none."""
        name = self.name(path)
        if name not in self._names:
            return None
        self._take([name])
        return self._files / name

    def below(self, folder: Path) -> list[str]:
        """The paths of all files that the commit has below `folder`, from there."""
        name = self.name(folder)
        start = "" if name == "." else f"{name}/"
        return sorted(each[len(start) :] for each in self._names if each.startswith(start))

    def name(self, path: Path) -> str:
        """The path in the repository, with slashes. Raises InputError for one outside of it."""
        # links on the way to the repository do not matter, those inside are git's business
        absolute = Path(os.path.abspath(path))
        for start in (absolute, absolute.parent.resolve() / absolute.name):
            if start.is_relative_to(self._top):
                return start.relative_to(self._top).as_posix()
        raise InputError(
            f"{path} lies outside of the repository {self._top}, so it cannot be compared with"
            f" {self.ref}"
        )

    @cached_property
    def _names(self) -> frozenset[str]:
        """The paths of all files of the commit."""
        return frozenset(
            os.fsdecode(name) for name in self._git("ls-files", "-z").split(b"\0") if name
        )

    @property
    def _files(self) -> Path:
        return Path(self._scratch.name, "files")

    def _take(self, names: Iterable[str]) -> None:
        """Write these files of the commit."""
        listed = b"".join(os.fsencode(name) + b"\0" for name in sorted(names))
        if listed:
            prefix = f"--prefix={self._files}/"
            self._git("checkout-index", "-f", "-z", "--stdin", prefix, given=listed)

    def _resolved(self) -> str:
        """The commit's number. A branch of the remote comes first, since local ones may be old."""
        for name in (f"refs/remotes/origin/{self.ref}", self.ref):
            with contextlib.suppress(InputError):
                # with --verify, only one commit is an answer, whatever options the name looks like
                found = self._git("rev-parse", "--verify", f"{name}^{{commit}}")
                return found.decode().strip()
        raise InputError(
            f"this clone does not have {self.ref!r} to compare with: fetch it (in GitHub Actions:"
            " actions/checkout with fetch-depth: 0), or name another commit"
        )

    def _git(self, *arguments: str, given: bytes = b"") -> bytes:
        """The output of git at the top of the repository, with an index of its own. Raises
        InputError."""
        result = None
        with contextlib.suppress(FileNotFoundError):
            result = subprocess.run(
                ["git", *_SAFE, "-C", str(self._top), *arguments],
                input=given,
                capture_output=True,
                env={**os.environ, "GIT_INDEX_FILE": str(Path(self._scratch.name, "index"))},
            )
        if result is None or result.returncode:
            said = "it is not installed" if result is None else os.fsdecode(result.stderr)
            raise InputError(
                f"{self._near} cannot be compared with {self.ref!r}: git {arguments[0]} failed:"
                f" {' '.join(said.split())}"
            )
        return result.stdout
