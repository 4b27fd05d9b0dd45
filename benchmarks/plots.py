"""Plots of docs/performance.md from results/*.json: `python -m benchmarks.plots`, then
benchmarks.tables (extra: bench).

The whole models, Bolt's figures 8a, 8b and 9 with our peers, and the courses of tuning
(benchmarks/curves.py): docs/figures/*.svg. onnxbolt has one colour everywhere. The same results
give the same bytes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import curves
from benchmarks.columns import TABLES
from benchmarks.documents import RESULTS
from benchmarks.tables import FIGURES, load

# inches: of the figure, of one bar, of what is above and below them
_WIDTH, _BAR, _FRAME = 8.0, 0.17, 1.0
OURS = "onnxbolt"
# colours that colour-blind readers tell apart (Okabe and Ito)
COLOURS = {OURS: "#0072b2", "PyTorch": "#e69f00", "the library's bare kernel": "#999999"}
_LINE = "#d55e00"
Result = dict[str, Any]  # a row of a result file


@dataclass(frozen=True)
class Figure:
    """Groups of horizontal bars: a group for each row that `wanted` keeps, in it a bar for each
    entry of `bars` that has a value."""

    benchmark: str
    title: str
    unit: str
    wanted: Callable[[Result], bool]
    bars: Mapping[str, Callable[[Result], float | None]]
    one: str = ""  # the side whose speed counts as 1, drawn as a line
    form: str = "%.2f"  # format of a bar's number
    label: Callable[[Result], str] = lambda row: str(row["name"])


def _tflops(us: str) -> Callable[[Result], float]:
    """TFLOP/s of the row's products, for the time in field `us`."""
    return lambda row: float(row["values"]["tflops"] * row["ours_us"] / row[us])


def _pytorch(row: Result) -> float | None:
    """PyTorch's speed relative to ONNX Runtime's."""
    return float(row["peer_us"] / us) if (us := row["values"].get("pytorch_us")) else None


def _pytorch_varying(row: Result) -> float | None:
    """The speed of PyTorch's fastest way at varying sizes, relative to ONNX Runtime's."""
    ways = [ms for name, ms in row["values"]["ms"].items() if "torch" in name.lower()]
    return float(row["peer_us"] / 1e3 / min(ways)) if ways else None


_SPEED: Mapping[str, Callable[[Result], float | None]] = {
    OURS: _tflops("ours_us"),
    "the library's bare kernel": _tflops("peer_us"),
}
FIGURES_BY_NAME = {
    "end_to_end": Figure(
        "end_to_end",
        "Whole models, fp16, single runs: plain export, each at its best",
        "times as fast as ONNX Runtime's CUDA execution provider",
        lambda row: "forms" in row["values"],
        {OURS: lambda row: float(row["ratio"]), "PyTorch": _pytorch},
        "ONNX Runtime's CUDA execution provider",
        label=lambda row: f"{row['name']}, {row['batch']}",
    ),
    "varying": Figure(
        "varying",
        "A size that the session has not seen, fp16, host time included",
        "times as fast as ONNX Runtime's CUDA execution provider at its best",
        lambda row: str(row["name"]).endswith(", new"),
        {OURS: lambda row: float(row["ratio"]), "PyTorch": _pytorch_varying},
        "ONNX Runtime's CUDA execution provider at its best",
        label=lambda row: str(row["name"]).removesuffix(", new"),
    ),
    "gemm": Figure(
        "gemm",
        "GEMM against cuBLAS, fp16, neither with an epilogue (Bolt, figure 8a)",
        "TFLOP/s",
        lambda row: row["values"].get("epilogue") == "none",
        _SPEED,
        form="%.0f",
    ),
    "conv": Figure(
        "conv",
        "ResNet-50's 3x3 convolutions with bias and ReLU, against cuDNN's bare ones (Bolt,"
        " figure 8b)",
        "TFLOP/s",
        lambda row: row["values"].get("window") == [3, 3] and row["values"]["occurrences"] > 0,
        _SPEED,
        form="%.0f",
        label=lambda row: str(row["name"]).removesuffix(" Bias+Relu"),
    ),
    "epilogue": Figure(
        "epilogue",
        "Fused bias and activation against a kernel each (Bolt, figure 9)",
        "times as fast",
        lambda row: "apart_us" in row["values"],
        {OURS: lambda row: float(row["ratio"])},
        "the library's bare kernel and PyTorch's activation",
    ),
}


def main() -> int:
    try:
        import matplotlib
    except ImportError:
        print("error: matplotlib is missing: pip install 'onnxbolt[bench]'", file=sys.stderr)
        return 1
    matplotlib.use("svg")
    matplotlib.rcParams |= {
        "svg.hashsalt": "onnxbolt",
        "svg.fonttype": "none",
        "font.family": ["DejaVu Sans", "sans-serif"],
    }
    for name in (*FIGURES_BY_NAME, curves.BENCHMARK):
        (FIGURES / f"{name}.svg").unlink(missing_ok=True)  # results may have gone
    for name, rows in available(RESULTS).items():
        _write(drawn(FIGURES_BY_NAME[name], rows), FIGURES / f"{name}.svg")
    for document in load(RESULTS).get(curves.BENCHMARK, ())[-1:]:
        _write(curves.drawn(document["rows"]), FIGURES / f"{curves.BENCHMARK}.svg")
    return 0


def available(directory: Path) -> dict[str, list[Result]]:
    """The rows of each figure that has any, from the last of its benchmark's files, in the order
    of its table."""
    results = load(directory)
    found = {}
    for name, figure in FIGURES_BY_NAME.items():
        rows = results[figure.benchmark][-1]["rows"] if figure.benchmark in results else []
        if kept := [
            row
            for row in sorted(rows, key=TABLES[name].place)
            if row["ratio"] and figure.wanted(row)
        ]:
            found[name] = kept
    return found


def drawn(figure: Figure, rows: Sequence[Result]) -> Any:
    """The figure of matplotlib's; its height follows the number of bars, so that no two labels
    meet."""
    from matplotlib import pyplot

    count = len(figure.bars)
    canvas, axes = pyplot.subplots(
        figsize=(_WIDTH, _FRAME + _BAR * (count + 0.8) * len(rows)), layout="constrained"
    )
    for i, (name, value) in enumerate(figure.bars.items()):
        values = [
            (place + (i - (count - 1) / 2) / (count + 0.8), number)
            for place, row in enumerate(rows)
            if (number := value(row)) is not None
        ]
        bars = axes.barh(
            [place for place, _ in values],
            [number for _, number in values],
            1 / (count + 0.8),
            label=name,
            color=COLOURS[name],
        )
        # inside, where no other bar and no line is
        for bar, (_, number) in zip(bars, values, strict=True):
            axes.annotate(
                figure.form % number,
                (0, bar.get_y() + bar.get_height() / 2),
                xytext=(3, 0),
                textcoords="offset points",
                fontsize=6,
                va="center_baseline",
                color="white" if name == OURS else "black",
            )
    if figure.one:
        axes.axvline(1.0, color=_LINE, linewidth=1, label=figure.one)
    axes.set_yticks(range(len(rows)), [figure.label(row) for row in rows], fontsize=7)
    axes.set_ylim(len(rows) - 0.4, -0.6)  # the first row above
    axes.margins(x=0.08)
    axes.set_xlabel(figure.unit, fontsize=8)
    axes.tick_params(axis="x", labelsize=7)
    axes.set_title(figure.title, fontsize=9)
    canvas.legend(loc="outside lower center", ncols=3, fontsize=7, frameon=False)
    return canvas


def _write(canvas: Any, path: Path) -> None:
    from matplotlib import pyplot

    path.parent.mkdir(parents=True, exist_ok=True)
    canvas.savefig(path, metadata={"Date": None})
    pyplot.close(canvas)


if __name__ == "__main__":
    sys.exit(main())
