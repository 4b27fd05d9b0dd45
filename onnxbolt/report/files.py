"""Reports as files, in the format that the suffix names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from onnxbolt.errors import InputError
from onnxbolt.files import write_whole
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
        write_whole(path, report.html())
    else:
        write_whole(path, f"{report.json() if path.suffix == '.json' else report.markdown()}\n")


def check_suffix(path: Path, suffixes: Sequence[str] = TABLES) -> None:
    """Raises InputError unless the suffix is one of those that a report can be written in."""
    if path.suffix not in suffixes:
        *others, last = suffixes
        raise InputError(
            f"{option('report', path)}: name a file that ends in {', '.join(others)} or {last}"
        )
