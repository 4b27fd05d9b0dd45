"""Tables as text, as wide as the terminal; names from a model are shown literally."""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

_WIDE = 180  # columns of a table that is written to a file
_LEAST = 16  # columns that a name keeps


def printable(text: str) -> str:
    """The text with control characters, other than line ends, spelled out: a model's names may
    hold escape sequences that a terminal would execute."""
    return "".join(
        character if character.isprintable() or character == "\n" else ascii(character)[1:-1]
        for character in text
    )


def one_line(text: str) -> str:
    """The text with line ends and other control characters spelled out, as a name in a line is
    shown."""
    return printable(text).replace("\n", r"\n")


def width(usual: int) -> int:
    """The terminal's columns; `usual` if the output is not a terminal."""
    return shutil.get_terminal_size((usual, 0)).columns if sys.stdout.isatty() else usual


def literal_console(width: int) -> Console:
    """A console to capture text from. Rich's markup, emoji codes and highlighting are off, also
    in cells of tables: names such as "[/decoder]" or "layer:key:out" are the model's own."""
    return Console(file=io.StringIO(), width=width, markup=False, emoji=False, highlight=False)


def add_row(table: Table, *cells: str) -> None:
    """Add a row. If the table is too wide, cells without spaces keep their ends, others are
    wrapped."""
    table.add_row(
        *(
            cell if " " in cell or "\n" in cell or len(cell) <= _LEAST else _Name(cell)
            for cell in cells
        )
    )


def table(header: Sequence[str], rows: Iterable[Sequence[str]], columns: int | None = None) -> str:
    """A table without lines, at most `columns` wide (default: the terminal's)."""
    found = Table(*header, box=None, pad_edge=False)
    for row in rows:
        add_row(found, *row)
    console = literal_console(columns or width(_WIDE))
    with console.capture() as captured:
        console.print(found)
    return captured.get().rstrip()


class _Name:
    """A name in a cell. A narrow column shows its end, in which names differ."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(
            min(_LEAST, options.max_width), min(cell_len(self.name), options.max_width)
        )

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        shown = self.name
        if cell_len(shown) > options.max_width:
            while shown and cell_len(shown) >= options.max_width:
                shown = shown[1:]
            shown = f"…{shown}"
        yield Text(shown, no_wrap=True, overflow="crop")
