"""Reports as files, in the format that the suffix names."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from onnxbolt.errors import InputError
from onnxbolt.spelling import option

TABLES = (".json", ".md")  # every report
PAGES = (*TABLES, ".html")  # that of `optimize`


class Writable(Protocol):
    """An object that can be written as JSON and as Markdown."""

    def json(self) -> str: ...

    def markdown(self) -> str: ...


@runtime_checkable
class Page(Protocol):
    """An object that can be written as HTML, too."""

    def html(self) -> str: ...


def save(report: Writable, path: Path) -> None:
    """Write `report`. Raises InputError, and leaves no partial file, if that fails."""
    check_suffix(path, PAGES if isinstance(report, Page) else TABLES)
    if isinstance(report, Page) and path.suffix == ".html":
        write(path, report.html(), option("report", path))
    else:
        contents = report.json() if path.suffix == ".json" else report.markdown()
        write(path, f"{contents}\n", option("report", path))


def write(path: Path, text: str, name: str) -> None:
    """Write a file at once; messages call it `name`. Raises InputError."""
    staged = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        staged.write_text(text, encoding="utf-8", newline="\n")
        os.replace(staged, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            staged.unlink(missing_ok=True)
        raise InputError(
            f"{name}: cannot be written: {error.strerror}; choose another place"
        ) from error


def check_suffix(path: Path, suffixes: Sequence[str] = TABLES) -> None:
    """Raises InputError unless the suffix is one of those that a report can be written in."""
    if path.suffix not in suffixes:
        *others, last = suffixes
        raise InputError(
            f"{option('report', path)}: name a file that ends in {', '.join(others)} or {last}"
        )
