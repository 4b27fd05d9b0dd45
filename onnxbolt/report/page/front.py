"""The front of time against error of a search for precisions, as a drawing and a table."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from onnxbolt.report.page import numbers

WIDTH, HEIGHT = 640, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 72, 24, 16, 44  # margins
_LINES = 4  # horizontal lines
_LEAST = 1e-5  # errors below it are drawn there


@dataclass(frozen=True)
class Dot:
    """A model that was compared, its place, and its row of the table."""

    x: float
    y: float
    kind: str  # a class of the style sheet
    cells: tuple[str, ...]
    chosen: bool

    @property
    def words(self) -> str:
        """The tooltip."""
        return ", ".join(cell for cell in self.cells if cell)


@dataclass(frozen=True)
class Front:
    """Dots, and labels as (position, text) along both axes; `limit` is the place of the largest
    error that was allowed, None outside of the drawing."""

    dots: tuple[Dot, ...]
    rows: tuple[tuple[float, str], ...]
    columns: tuple[tuple[float, str], ...]
    limit: float | None
    words: str
    width: int = WIDTH
    height: int = HEIGHT
    left: int = _LEFT
    right: int = WIDTH - _RIGHT
    top: int = _TOP
    bottom: int = HEIGHT - _BOTTOM


def of(quantization: Mapping[str, Any] | None) -> Front | None:
    """The front of a report's account of quantization; None where nothing was searched for."""
    points = quantization["scales"]["points"] if quantization else ()
    if not quantization or len(points) < 2:
        return None
    times = [point["us"] for point in points]
    least, most = min(times), max(times)
    spread = (most - least) or 1.0
    known = [max(point["error"], _LEAST) for point in points if point["error"] is not None]
    first = math.floor(math.log10(min(known, default=_LEAST)))
    last = max(math.ceil(math.log10(max(known, default=1.0))), first + 1)

    def x(error: float | None) -> float:
        part = 1.0 if error is None else (math.log10(max(error, _LEAST)) - first) / (last - first)
        return round(_LEFT + (WIDTH - _LEFT - _RIGHT) * min(max(part, 0.0), 1.0), 1)

    def y(us: float) -> float:
        return round(_TOP + (HEIGHT - _TOP - _BOTTOM) * (most - us) / spread, 1)

    chosen, floats = quantization["scales"]["chosen"], quantization["scales"]["floats"]
    dots = []
    for point in points:
        place, cells = (x(point["error"]), y(point["us"])), _cells(point, floats)
        dots.append(Dot(*place, point["precision"], cells, point == chosen))
    marks = [least + spread * part / _LINES for part in range(_LINES + 1)]
    limit = quantization["max_error"]
    shown = limit is not None and 10.0**first <= limit <= 10.0**last
    return Front(
        tuple(dots),
        tuple((y(us), numbers.time(us)) for us in marks),
        tuple((x(10.0**power), f"1e{power}") for power in range(first, last + 1)),
        x(limit) if shown else None,
        f"{len(points)} models compared, from {numbers.time(least)} to {numbers.time(most)}",
    )


def _cells(point: Mapping[str, Any], floats: str) -> tuple[str, ...]:
    error = "no number" if point["error"] is None else f"{point['error']:.2e}"
    coded = point["precision"] != floats
    return (
        point["precision"],
        str(point["products"]) if coded else "",
        numbers.time(point["us"]),
        error,
    )
