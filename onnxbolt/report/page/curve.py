"""The best times that tuning had found, over time, as a drawing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onnxbolt.report.page import numbers

WIDTH, HEIGHT = 640, 200
_LEFT, _RIGHT, _TOP, _BOTTOM = 72, 12, 12, 28  # margins
_LINES = 4  # horizontal lines


@dataclass(frozen=True)
class Curve:
    """A path of steps, and labels as (position, text) along both axes."""

    path: str
    rows: tuple[tuple[float, str], ...]
    columns: tuple[tuple[float, str], ...]
    words: str
    width: int = WIDTH
    height: int = HEIGHT
    left: int = _LEFT
    right: int = WIDTH - _RIGHT
    bottom: int = HEIGHT - _BOTTOM


def of(history: Sequence[Mapping[str, Any]]) -> Curve | None:
    """The curve of a tuning's history; None where nothing changed."""
    if len(history) < 2:
        return None
    last = max(moment["seconds"] for moment in history) or 1.0
    times = [moment["us"] for moment in history]
    least, most = min(times), max(times)
    spread = (most - least) or 1.0

    def x(seconds: float) -> float:
        return round(_LEFT + (WIDTH - _LEFT - _RIGHT) * seconds / last, 1)

    def y(us: float) -> float:
        return round(_TOP + (HEIGHT - _TOP - _BOTTOM) * (most - us) / spread, 1)

    steps = [f"M{x(history[0]['seconds'])} {y(times[0])}"]
    steps += [f"H{x(moment['seconds'])}V{y(moment['us'])}" for moment in history[1:]]
    marks = [least + spread * part / _LINES for part in range(_LINES + 1)]
    return Curve(
        "".join(steps),
        tuple((y(us), numbers.time(us, True)) for us in marks),
        tuple((x(last * part / _LINES), f"{last * part / _LINES:.0f} s") for part in range(5)),
        f"from {numbers.time(times[0], True)} to {numbers.time(times[-1], True)} in {last:.0f} s"
        f" and {history[-1]['trials']} measurements",
    )
