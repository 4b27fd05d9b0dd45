"""Reports as files: JSON or Markdown, by the suffix."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Protocol

from onnxbolt.errors import InputError
from onnxbolt.spelling import option


class Writable(Protocol):
    """An object that can be written as JSON and as Markdown."""

    def json(self) -> str: ...

    def markdown(self) -> str: ...


def save(report: Writable, path: Path) -> None:
    """Write `report`. Raises InputError, and leaves no partial file, if that fails."""
    check_suffix(path)
    contents = report.json() if path.suffix == ".json" else report.markdown()
    staged = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        staged.write_text(contents + "\n")
        os.replace(staged, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            staged.unlink(missing_ok=True)
        raise InputError(
            f"{option('report', path)}: cannot be written: {error.strerror}; choose another place"
        ) from error


def check_suffix(path: Path) -> None:
    """Raises InputError unless the suffix is one that a report can be written in."""
    if path.suffix not in (".json", ".md"):
        raise InputError(f"{option('report', path)}: name a file that ends in .json or .md")
