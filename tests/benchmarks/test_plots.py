"""Figures show the rows of result files; drawing itself is tested if matplotlib is installed."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from benchmarks import plots
from benchmarks.common import Row
from benchmarks.documents import RESULTS, write_results


@pytest.fixture
def results(tmp_path: Path) -> Path:
    bare = Row(
        "1024x1024x1024",
        1,
        "fp16",
        4.0,
        "cuBLAS",
        5.0,
        1.25,
        values={"tflops": 500.0, "epilogue": "none"},
    )
    biased = Row(
        "1024x1024x1024 Bias",
        1,
        "fp16",
        4.0,
        "cuBLAS",
        5.0,
        1.25,
        values={"tflops": 500.0, "epilogue": "Bias"},
    )
    failed = Row("2048x2048x2048", 1, "fp16", values={"failure": "no"})
    write_results("gemm", [bare, biased, failed], tmp_path / "gemm-nvidia-h200.json")
    convolutions = [
        Row(
            name,
            32,
            "fp16",
            10.0,
            "cuDNN",
            12.0,
            1.2,
            values={"tflops": 100.0, "window": [r, r], "occurrences": count},
        )
        for name, r, count in (
            ("56x56 64->64 3x3 Bias+Relu", 3, 3),
            ("56x56 64->64 1x1 Bias+Relu", 1, 1),
            ("other 3x3", 3, 0),
        )
    ]
    write_results("conv", convolutions, tmp_path / "conv-nvidia-h200.json")
    return tmp_path


def test_figures_have_the_rows_of_the_paper(results: Path) -> None:
    found = plots.available(results)
    assert {name: [row["name"] for row in rows] for name, rows in found.items()} == {
        "gemm": ["1024x1024x1024"],
        "conv": ["56x56 64->64 3x3 Bias+Relu"],
    }


def test_only_figures_of_results_are_replaced(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    figures = tmp_path / "figures"
    figures.mkdir()
    for name in ("a_drawing", "epilogue", "gemm"):  # only gemm has results
        (figures / f"{name}.svg").write_text("old")
    monkeypatch.setattr(plots, "RESULTS", results)
    monkeypatch.setattr(plots, "FIGURES", figures)
    assert plots.main() == 0
    assert {path.stem for path in figures.iterdir()} == {"a_drawing", "conv", "gemm"}
    assert (figures / "a_drawing.svg").read_text() == "old"
    assert (figures / "gemm.svg").read_text() != "old"


def test_bars_are_rates_of_both_sides(results: Path) -> None:
    (row,) = plots.available(results)["gemm"]
    values = {name: bar(row) for name, bar in plots.FIGURES_BY_NAME["gemm"].bars.items()}
    assert values == {"onnxbolt": 500.0, "the library's bare kernel": 400.0}


def test_onnxbolt_has_one_colour_and_every_bar_has_one() -> None:
    for figure in plots.FIGURES_BY_NAME.values():
        assert plots.OURS in figure.bars
        assert figure.bars.keys() <= plots.COLOURS.keys()
    assert (
        len(
            {
                plots.COLOURS[plots.OURS],
                plots.COLOURS["PyTorch"],
                plots.COLOURS["the library's bare kernel"],
            }
        )
        == 3
    )


@pytest.mark.parametrize("name", plots.available(RESULTS))
def test_no_label_of_a_committed_figure_overlaps_another(name: str) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("agg")
    canvas = plots.drawn(plots.FIGURES_BY_NAME[name], plots.available(RESULTS)[name])
    canvas.draw_without_rendering()
    axes, renderer = canvas.axes[0], canvas.canvas.get_renderer()
    shown = [
        text
        for text in axes.get_xticklabels()
        if axes.get_xlim()[0] <= text.get_position()[0] <= axes.get_xlim()[1]
    ]
    texts = [
        text
        for text in (*axes.texts, *axes.get_yticklabels(), *shown, axes.title, axes.xaxis.label)
        if text.get_text()
    ]
    boxes = [text.get_window_extent(renderer) for text in texts]
    meeting = [
        (a.get_text(), b.get_text())
        for (a, one), (b, other) in itertools.combinations(zip(texts, boxes, strict=True), 2)
        if one.overlaps(other)
    ]
    assert meeting == []
    whole = canvas.bbox
    assert all(whole.x0 <= box.x0 and box.x1 <= whole.x1 for box in boxes)
    matplotlib.pyplot.close(canvas)


def test_the_same_results_draw_the_same_bytes(
    results: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(plots, "RESULTS", results)
    drawn = []
    for name in ("once", "twice"):
        monkeypatch.setattr(plots, "FIGURES", tmp_path / name)
        assert plots.main() == 0
        drawn.append({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()})
    assert drawn[0] == drawn[1]
    assert drawn[0].keys() == {"gemm.svg", "conv.svg"}


def test_courses_of_tuning_have_a_panel_for_each_model(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    course = [[1, 0.1, 1.9], [20, 1.0, 1.2], [90, 9.0, 1.0]]
    values = {"curves": dict.fromkeys(("chance", "formula", "learned"), course)}
    rows = [Row(name, 32, "fp16", values=values) for name in ("resnet50", "bert_base")]
    write_results("learning", rows, results / "learning-nvidia-h200.json")
    monkeypatch.setattr(plots, "RESULTS", results)
    monkeypatch.setattr(plots, "FIGURES", tmp_path / "figures")
    assert plots.main() == 0
    text = (tmp_path / "figures" / "learning.svg").read_text()
    assert all(word in text for word in ("resnet50, 32", "bert_base, 32", "measurements"))
