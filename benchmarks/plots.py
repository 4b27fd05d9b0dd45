"""Plots of docs/performance.md from results/*.json: `python -m benchmarks.plots`, then benchmarks.tables (extra: bench).

Bolt's figures 8a, 8b and 9, with our peers: docs/figures/*.svg. The same results give the same bytes.
"""
from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.documents import RESULTS
from benchmarks.tables import FIGURES, load

_SIZE = (9.0, 3.6)  # inches
Result = dict[str, Any]  # a row of a result file


@dataclass(frozen=True)
class Figure:
    """Groups of bars: a group for each row that `wanted` keeps, in it a bar for each entry of `bars`."""

    benchmark: str
    title: str
    unit: str
    wanted: Callable[[Result], bool]
    bars: Mapping[str, Callable[[Result], float]]
    label: Callable[[Result], str] = lambda row: str(row["name"])


def _tflops(us: str) -> Callable[[Result], float]:
    """Of the row's products, for the time in field `us`."""
    return lambda row: float(row["values"]["tflops"] * row["ours_us"] / row[us])


_SPEED = {"onnxbolt": _tflops("ours_us"), "the library's bare kernel": _tflops("peer_us")}
FIGURES_BY_NAME = {
    "gemm": Figure("gemm", "GEMM against cuBLAS, fp16, neither with an epilogue (Bolt, figure 8a)", "TFLOP/s",
                   lambda row: row["values"].get("epilogue") == "none", _SPEED),
    "conv": Figure("conv", "ResNet-50's 3x3 convolutions with bias and ReLU, against cuDNN's bare ones (Bolt, figure 8b)", "TFLOP/s",
                   lambda row: row["values"].get("window") == [3, 3] and row["values"]["occurrences"] > 0, _SPEED,
                   lambda row: str(row["name"]).removesuffix(" Bias+Relu")),
    "epilogue": Figure("epilogue", "Fused bias and activation (Bolt, figure 9)", "speed", lambda row: True, {
        "kernel and elementwise kernel": lambda row: 1.0, "fused": lambda row: float(row["ratio"])},
        lambda row: str(row["name"]).replace(" Bias+", "\n")),
}


def main() -> int:
    try:
        import matplotlib
    except ImportError:
        print("error: matplotlib is missing: pip install 'onnxbolt[bench]'", file=sys.stderr)
        return 1
    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "onnxbolt"
    for name, rows in available(RESULTS).items():
        _draw(FIGURES_BY_NAME[name], rows, FIGURES / f"{name}.svg")
    return 0


def available(directory: Path) -> dict[str, list[Result]]:
    """The rows of each figure that has any, from the last of its benchmark's files."""
    results = load(directory)
    found = {}
    for name, figure in FIGURES_BY_NAME.items():
        rows = results[figure.benchmark][-1]["rows"] if figure.benchmark in results else []
        if kept := [row for row in rows if row["ratio"] and figure.wanted(row)]:
            found[name] = kept
    return found


def _draw(figure: Figure, rows: Sequence[Result], path: Path) -> None:
    from matplotlib import pyplot

    canvas, axes = pyplot.subplots(figsize=_SIZE, layout="constrained")
    width = 0.8 / len(figure.bars)
    for i, (name, value) in enumerate(figure.bars.items()):
        places = [place + (i - (len(figure.bars) - 1) / 2) * width for place in range(len(rows))]
        axes.bar_label(axes.bar(places, [value(row) for row in rows], width, label=name), fmt="%.3g", fontsize=6)
    axes.set_xticks(range(len(rows)), [figure.label(row) for row in rows], rotation=30, ha="right", fontsize=7)
    axes.set_ylabel(figure.unit)
    axes.set_title(figure.title, fontsize=10)
    axes.legend(fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    canvas.savefig(path, metadata={"Date": None})
    pyplot.close(canvas)


if __name__ == "__main__":
    sys.exit(main())
