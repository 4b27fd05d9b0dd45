"""Tables in Markdown, and numbers in JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any


def table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A Markdown table; special characters in cells are escaped."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(
        "| " + " | ".join(str(cell).replace("|", r"\|").replace("\n", " ") for cell in line) + " |"
        for line in lines
    )


def plain(value: Any) -> Any:
    """`value` with None for NaN and infinities, which JSON cannot hold."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
