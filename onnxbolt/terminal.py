"""Tables as text: what a model's author named is shown letter by letter."""
from __future__ import annotations

import io

from rich.console import Console


def literal_console(width: int) -> Console:
    """A console to capture text from. Rich's markup, emoji codes and highlighting are off, also in cells of tables: names such as
    "[/decoder]" or "layer:key:out" are the model's own."""
    return Console(file=io.StringIO(), width=width, markup=False, emoji=False, highlight=False)
