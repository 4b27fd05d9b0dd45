"""Transposed convolutions as problems."""

from __future__ import annotations

from dataclasses import replace

from onnxbolt.archs import get
from onnxbolt.dtypes import DType
from onnxbolt.families import named
from onnxbolt.measurements.keys import plain, problem_from
from onnxbolt.problems import ConvTransposeProblem
from onnxbolt.problems.base import Computed
from tests.support import planned

# 4x4, stride 2, pad 1
PROBLEM = ConvTransposeProblem(
    8,
    32,
    48,
    64,
    24,
    (2, 2),
    64,
    96,
    (1, 1, 1, 1),
    (1, 1),
    (2, 2),
    (0, 0),
    1,
    DType.F16,
    DType.F16,
    ("Bias", "Relu"),
)


def test_the_convolution_has_the_channels_of_all_phases() -> None:
    conv = PROBLEM.convolution
    assert (conv.k, conv.r, conv.s, conv.p, conv.q) == (96, 2, 2, 33, 49)
    assert PROBLEM.flops == 2 * 8 * 64 * 96 * 24 * 64 * 4
    assert PROBLEM.rows == 8 * 32 * 48
    assert PROBLEM.columns == 96


def test_each_tensor_moves_once() -> None:
    moved = 8 * 32 * 48 * 64 + 96 * 4 * 64 + 8 * 64 * 96 * 24
    assert PROBLEM.bytes_moved == 2 * moved
    residual = replace(PROBLEM, chain=("Bias", "Add"))
    assert residual.bytes_moved == 2 * (moved + 8 * 64 * 96 * 24)


def test_the_reference_moves_pixels_but_reads_no_tensors() -> None:
    reference = PROBLEM.reference
    assert reference is not None
    assert reference.computed is Computed.CONV_TRANSPOSE
    assert reference.extents[-9:] == (2, 2, 1, 1, 64, 96, 0, 0, 1)
    assert replace(PROBLEM, chain=("Bias", "Add")).reference is None


def test_products_of_zeros_are_none() -> None:
    """Phases of 3x3 with stride 2 have 4, 2, 2 and 1 taps."""
    thirds = replace(PROBLEM, zeros=(1, 1))
    assert thirds.flops * 16 == PROBLEM.flops * 9
    assert [thirds.first_tap(phase) for phase in range(4)] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    flat = replace(PROBLEM, taps=(1, 2), strides=(1, 3), zeros=(0, 2))
    assert [flat.first_tap(phase) for phase in range(3)] == [(0, 0), (0, 1), (0, 1)]
    points = replace(PROBLEM, taps=(1, 1), zeros=(1, 1))  # two phases of x alone, by weights of 0
    assert points.first_tap(3) == (0, 0)


def test_slices_of_a_volume_make_slices() -> None:
    volumes = PROBLEM.of_volumes(2)
    assert volumes.rows == PROBLEM.rows
    assert (volumes.columns, volumes.convolution.k) == (2 * 96, 2 * 96)
    assert volumes.flops == 2 * PROBLEM.flops
    assert volumes.pixels == 2 * PROBLEM.pixels
    assert volumes.reference is not None
    assert volumes.reference.extents[-9:] == (2, 2, 1, 1, 64, 96, 0, 0, 2)
    assert volumes.shape == "conv transpose 8x32x48x64 to 24, 2x4x4, stride 2"
    assert volumes.operation == "3-D conv transpose"


def test_words_name_the_filter_without_its_zeros() -> None:
    assert PROBLEM.shape == "conv transpose 8x32x48x64 to 24, 4x4, stride 2"
    assert replace(PROBLEM, zeros=(1, 0)).shape.endswith("to 24, 3x4, stride 2")
    assert "in 2 groups" in replace(PROBLEM, groups=2).shape


def test_onnx_runtime_has_a_kernel_for_each_step() -> None:
    bare = replace(PROBLEM, chain=()).onnxruntime_us(get(90))
    assert bare < replace(PROBLEM, chain=("Bias",)).onnxruntime_us(get(90))
    assert bare < PROBLEM.onnxruntime_us(get(90))


def test_keys_hold_all_of_it() -> None:
    with planned(named("conv_transpose_sm90")):
        for problem in (PROBLEM, PROBLEM.of_volumes(2)):
            kind, fields = type(problem).__name__, plain(problem)
            assert problem_from(kind, fields) == problem  # type: ignore[arg-type]
