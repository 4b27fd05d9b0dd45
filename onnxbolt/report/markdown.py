"""Tables in Markdown, and numbers in JSON."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

from onnxbolt.terminal import one_line, printable


def table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A Markdown table; bars in cells are escaped, and control characters spelled out."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)


def _cell(value: Any) -> str:
    return printable(str(value)).replace("|", r"\|").replace("\n", " ")


def code(text: str) -> str:
    """The text as a code span, in which no character means anything; empty for an empty text.

    Control characters are spelled out, so that a text takes one line. So is a bar behind a
    backslash, which `table` could not escape.
    """
    shown = re.sub(r"(?<=\\)\|", r"\\x7c", one_line(text))
    longest = max((len(run) for run in re.findall("`+", shown)), default=0)
    fence = "`" * (longest + 1)
    edge = " " if "`" in shown else ""  # a fence cannot touch a backtick
    return f"{fence}{edge}{shown}{edge}{fence}" if shown else ""


def plain(value: Any) -> Any:
    """`value` with None for NaN and infinities, which JSON cannot hold."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
