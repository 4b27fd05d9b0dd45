"""The plot of results/learning-*.json: the best so far against measurements and against seconds, a
panel for each model. `python -m benchmarks.plots` draws it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.learning import CHANCE
from benchmarks.predictions import FORMULA, LEARNED

BENCHMARK = "learning"
# colours that colour-blind readers tell apart (Okabe and Ito)
_COLOURS = {CHANCE: "#999999", FORMULA: "#e69f00", LEARNED: "#0072b2"}
_AXES = {"measurements": 0, "estimated seconds": 1}  # places in a point of a curve
_MOST = 2.0  # times the best that panels show


def drawn(rows: Sequence[Mapping[str, Any]]) -> Any:
    """The figure of matplotlib's."""
    from matplotlib import pyplot

    canvas, panels = pyplot.subplots(
        len(_AXES),
        len(rows),
        figsize=(2.8 * len(rows), 5.0),
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    for line, (unit, place) in zip(panels, _AXES.items(), strict=True):
        for axes, row in zip(line, rows, strict=True):
            for side, colour in _COLOURS.items():
                points = row["values"]["curves"][side]
                axes.step(
                    [point[place] for point in points],
                    [point[2] for point in points],
                    where="post",
                    color=colour,
                    linewidth=1.2,
                    label=side,
                )
            axes.set_xscale("log")
            axes.set_ylim(0.98, _MOST)
            axes.set_xlabel(unit, fontsize=8)
            axes.tick_params(labelsize=7)
            axes.set_title(f"{row['name']}, {row['batch']}", fontsize=9)
        line[0].set_ylabel("time over that of the best kernels", fontsize=8)
    handles, labels = panels[0][0].get_legend_handles_labels()
    canvas.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=7, frameon=False)
    return canvas
