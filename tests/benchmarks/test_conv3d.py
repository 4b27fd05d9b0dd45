"""The benchmark of convolutions of volumes, without a GPU: rows, problems and configurations."""

from __future__ import annotations

from benchmarks import conv3d as benchmark
from onnxbolt.archs import get
from onnxbolt.families import named


def test_rows_have_names_and_sizes_of_their_own() -> None:
    shapes = benchmark.SHAPES
    assert len({shape.name for shape in shapes}) == len(set(shapes)) == 12
    assert {shape.stride for shape in shapes} == {1, 2}


def test_outputs_are_whole_strides() -> None:
    for shape in benchmark.SHAPES:
        assert [size * shape.stride for size in shape.problem.y] == list(shape.volume)


def test_each_row_has_kernels() -> None:
    for shape in benchmark.SHAPES:
        found = benchmark.configurations(shape.problem, get(90))
        assert 1 <= len(found) <= benchmark.FEW
        assert {config.family for config in found} == {named("conv3d_sm90")}
