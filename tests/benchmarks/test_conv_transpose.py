"""The benchmark of transposed convolutions, without a GPU: rows, problems and configurations."""

from __future__ import annotations

from benchmarks import conv_transpose as benchmark
from onnxbolt.archs import get
from onnxbolt.families import named
from onnxbolt.problems import ConvProblem


def test_rows_have_the_forms_that_models_have() -> None:
    names = [shape.name for shape in benchmark.SHAPES]
    assert len(set(names)) == len(names) == 12
    for form in ("k2s2", "k4s2p1", "k3s2p1", "1-D k16s8", "3-D k2s2"):
        assert any(name.startswith(form) for name in names)


def test_outputs_are_whole_strides() -> None:
    for shape in benchmark.SHAPES:
        problem = shape.transposed()
        assert problem.q == shape.stride * shape.image[1]


def test_volumes_are_images_whose_slices_make_slices() -> None:
    shape = benchmark.SHAPES[10]
    problem = shape.transposed()
    assert (problem.n, problem.slices_of_y, problem.columns) == (64, 2, 8 * 32)
    assert len(shape.axes_of_filter()) == 3


def test_lines_are_compared_with_kernels_of_convolutions() -> None:
    line = benchmark.SHAPES[8]
    assert set(line.problems) == {"pixels of phases", "rows"}
    rows = line.problems["rows"]
    assert isinstance(rows, ConvProblem)
    assert (rows.k, rows.s, rows.q) == (2048, 3, 256)
    assert set(benchmark.SHAPES[0].problems) == {"pixels of phases"}


def test_each_row_has_kernels_of_its_family() -> None:
    for shape in benchmark.SHAPES:
        found = benchmark.configurations(shape.transposed(), get(90))
        assert 1 <= len(found) <= benchmark.FEW
        assert {config.family for config in found} == {named("conv_transpose_sm90")}
