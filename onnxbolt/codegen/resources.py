"""Finds sources: templates/ and custom_ops/ in a checkout's repository or in an installed wheel's
package, and the files of extensions."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from onnxbolt import checks
from onnxbolt.errors import InputError, ToolchainError
from onnxbolt.registry import Registry

_PACKAGE = Path(__file__).resolve().parents[1]
# the licences of code that libraries contain, CUTLASS's among them: it travels with each of them
NOTICE = Path(__file__).with_name("notice.txt")
_CUTLASS = ("cutlass/", "cute/")  # folders of its headers


def resource_dir(name: str) -> Path:
    """The directory of the sources `name` ("templates" or "custom_ops"). Raises ToolchainError if
    the installation lacks it."""
    for parent in (_PACKAGE, _PACKAGE.parent):
        if (parent / name).is_dir():
            return parent / name
    raise ToolchainError(
        f"{name}/ is missing beside {_PACKAGE}: the installation is incomplete; reinstall onnxbolt"
    )


@dataclass(frozen=True)
class Sources:
    """An extension's C++ code: folders of headers, and files that libraries with its kernels
    compile as well."""

    name: str  # the extension's
    include_dirs: tuple[Path, ...] = ()
    files: tuple[Path, ...] = ()

    @property
    def headers(self) -> dict[str, Path]:
        """Every file below the include folders, by its path from there."""
        return dict(headers_below(self.include_dirs))

    @property
    def texts(self) -> list[str]:
        """The texts of all of its files."""
        return [path.read_text(encoding="utf-8") for path in (*self.headers.values(), *self.files)]


def headers_below(folders: Iterable[Path]) -> Iterator[tuple[str, Path]]:
    """Every file below these folders, also below linked ones, with its path from there."""
    for root in folders:
        for name, folders_inside, files in os.walk(root, followlinks=True):
            folder = Path(name)
            folders_inside[:] = [inside for inside in folders_inside if not _loops(folder / inside)]
            for path in map(folder.joinpath, files):
                yield path.relative_to(root).as_posix(), path


def _loops(folder: Path) -> bool:
    """True for a link to a folder that it lies in."""
    return folder.is_symlink() and folder.parent.resolve().is_relative_to(folder.resolve())


class _Extensions(Registry[str, Sources]):
    """The extensions of this process; an include names one file."""

    def add(self, entry: Sources, owner: str) -> None:
        _check(entry)
        for other in self.values():
            if common := sorted(entry.headers.keys() & other.headers.keys()):
                raise ValueError(
                    f"its header {common[0]} is one of extension {other.name}, too: put it into a"
                    " folder with a name of its own"
                )
        super().add(entry, owner)


EXTENSIONS: Registry[str, Sources] = _Extensions("extension", (), "name")


def include_dirs(extensions: Iterable[str]) -> tuple[Path, ...]:
    """The folders of headers of these extensions."""
    return tuple(path for name in extensions for path in EXTENSIONS[name].include_dirs)


def installed(who: str, names: Iterable[object]) -> tuple[str, ...]:
    """The names of extensions that a file gives, sorted, if all are installed. Raises InputError,
    which says that `who` needs one, for any other."""
    try:
        found = tuple(sorted(checks.name("extension", name) for name in names))
    except ValueError as error:
        raise InputError(f"{who} names an extension that none can be ({error})") from error
    if missing := [name for name in found if name not in EXTENSIONS]:
        raise InputError(
            f"{who} needs the extension {missing[0]}, which is not installed: install the package"
            " that has it, or register it (docs/extending.md)"
        )
    return found


def _check(sources: Sources) -> None:
    """Raises ValueError for a folder or file that is missing, no text or there twice, and for a
    header that hides another."""
    checks.name("extension", sources.name)
    for folder in sources.include_dirs:
        if not folder.is_dir():
            raise ValueError(f"its include folder {folder} is none")
    for file in sources.files:
        if not file.is_file() or file.suffix != ".cc":
            raise ValueError(f"its source {file} is no C++ file (.cc)")
        if sources.files.count(file) > 1:
            raise ValueError(f"its source {file} is given twice")
        checks.name("source", file.stem)
        _check_text(file)
    found: dict[str, Path] = {}
    for name, path in headers_below(sources.include_dirs):
        if name in found:
            raise ValueError(f"its header {name} is both {found[name]} and {path}: leave out one")
        if (resource_dir("custom_ops") / name).exists():
            raise ValueError(f"its header {name} is one of onnxbolt's own, too: rename it")
        if name.startswith(_CUTLASS):
            raise ValueError(f"its header {name} would hide one of CUTLASS: rename its folder")
        _check_text(path)
        found[name] = path


def _check_text(path: Path) -> None:
    """Raises ValueError for a file that is no text: digests and keys of objects cover texts."""
    try:
        path.read_text(encoding="utf-8")
    except (UnicodeDecodeError, OSError) as error:
        raise ValueError(
            f"its file {path} cannot be read as text ({error}): keep it out of the include folders"
        ) from error
