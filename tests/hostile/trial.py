"""One hostile input under one command: it has to end in one line that says what is wrong, and
leave nothing behind."""

from __future__ import annotations

import contextlib
import dataclasses
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from unittest import mock

from onnx import ModelProto

from onnxbolt import library
from onnxbolt.cli import main


def complaint(argv: Sequence[object], directory: Path, marker: Path, may_pass: bool = False) -> str:
    """The fault of how onnxbolt treated `argv`, whose files are in `directory`; empty if it refused
    them as it should. `may_pass`: the command may also succeed, because it does not use the hostile
    value or only shows it."""
    before = _files(directory)
    out, err = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), recomputed_digests():
            code = main([str(word) for word in argv])
    except Exception as error:  # that is the finding
        return f"{type(error).__name__}: {str(error)[:300]}"
    lines = [line for line in err.getvalue().splitlines() if line.startswith("error: ")]
    if any(
        not character.isprintable() and character != "\n"
        for character in out.getvalue() + err.getvalue()
    ):
        return "control characters reach the terminal"
    if not (code == 0 and may_pass) and (code == 0 or len(lines) != 1):
        return f"exit code {code}, {err.getvalue()[-300:]!r}"
    if marker.exists():
        return "code ran"
    return (
        ""
        if _files(directory) == before
        else f"left {sorted(map(str, _files(directory) ^ before))}"
    )


@contextlib.contextmanager
def recomputed_digests() -> Iterator[None]:
    """Every model's digest is the right one, as if who made it had computed it."""
    real = library.manifest_of_model

    def fitting(model: ModelProto) -> library.Manifest:
        return dataclasses.replace(
            real(model), digest=library.metadata(model).get("onnxbolt.digest", "")
        )

    with mock.patch.object(library, "manifest_of_model", fitting):
        yield


def _files(directory: Path) -> set[tuple[Path, int]]:
    return {(path, path.stat().st_mtime_ns) for path in directory.rglob("*") if path.is_file()}
