"""Numbers as the page shows them. A predicted number has the mark ≈, a measured one has none."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from onnxbolt.verify import result

_SPACE = "\N{NO-BREAK SPACE}"
PREDICTED = f"≈{_SPACE}"
INFINITE = 1e300  # numbers that JSON lacks are sorted as this one
_KIB = 1024.0


def time(us: float, measured: bool = False) -> str:
    """Microseconds, or milliseconds from 1000 on."""
    number = f"{us / 1000:.3g}" if us >= 1000 else f"{us:.3g}" if us < 1 else f"{us:.1f}"
    shown = f"{number}{_SPACE}{'ms' if us >= 1000 else 'µs'}"
    return shown if measured else f"{PREDICTED}{shown}"


def microseconds(us: float, measured: bool = False) -> str:
    """Microseconds without their unit, for columns."""
    return f"{us:.2f}" if measured else f"{PREDICTED}{us:.2f}"


def ratio(value: float, measured: bool = False) -> str:
    return f"{value:.2f}×" if measured else f"{PREDICTED}{value:.2f}×"


def size(count: int) -> str:
    """Bytes with a binary prefix; a dash if they are not known."""
    if not count:
        return "–"
    power = min(int(math.log(count, _KIB)), 4)
    return f"{count / _KIB**power:.3g}{_SPACE}{('B', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"


def flops(count: int) -> str:
    """FLOPs with a prefix; empty for 0."""
    power = min(int(math.log10(count)) // 3, 5) if count else 0
    return f"{count / 1000**power:.3g} {('', 'k', 'M', 'G', 'T', 'P')[power]}" if count else ""


def error(value: float | None) -> str:
    """An error or a limit; those that are not finite are null in a report."""
    return "not finite" if value is None else f"{value:.2e}"


def nearness(row: Mapping[str, Any]) -> float:
    """`nearness` of a report's comparison."""
    return result.nearness(row["error"], row["limit"], row["passed"], bool(row["unjudged"]))


def shape(block: dict[str, Any]) -> str:
    """The shape and element type of a block's first output: '1×64×56×56 float16'."""
    sizes = "×".join("?" if size is None else str(size) for size in block["shape"])
    return f"{sizes or 'scalar'} {block['element']}".rstrip()
