"""Feasibility formulas of CUTLASS 2.x's kernels against numbers known from its builds."""

import dataclasses

import pytest

from onnxbolt.archs import get
from onnxbolt.dtypes import DType
from onnxbolt.families import conv_2x, gemm_2x, named
from onnxbolt.families.blocks.access import alignment
from onnxbolt.families.blocks.mma_sync import (
    MAX_IMAGE_ROWS,
    MAX_PREDICATES,
    Walk,
    blocks_per_sm,
    is_feasible,
    needs_two_stages,
    registers,
    shared_memory,
)
from onnxbolt.families.conv_2x import Conv2xConfig
from onnxbolt.families.gemm_2x import Gemm2xConfig
from onnxbolt.problems import ConvProblem, GemmProblem

Shape = tuple[int, int, int]


def _gemm(tile: Shape, warp: Shape, stages: int) -> Gemm2xConfig:
    return Gemm2xConfig(arch=80, tile=tile, warp=warp, instruction=(16, 8, 16), stages=stages)


def _conv(tile: Shape, warp: Shape, stages: int) -> Conv2xConfig:
    instruction, walk = (16, 8, 16), Walk.OPTIMIZED
    return Conv2xConfig(
        arch=80, tile=tile, warp=warp, instruction=instruction, stages=stages, walk=walk
    )


def _gemm_tiles(k: int) -> set[Shape]:
    """Tiles of the candidates for rows of `k` values."""
    problem = GemmProblem(1024, 512, k, DType.F16, DType.F16, ())
    return {config.tile for config in named("gemm_2x").candidates(problem, get(80))}


def _conv_tiles(c: int) -> set[Shape]:
    """Tiles of the candidates for `c` input channels."""
    sizes = (8, 28, 28, c, 512, 3, 3, 28, 28)
    problem = ConvProblem(*sizes, (1,) * 4, (1, 1), (1, 1), 1, DType.F16, DType.F16, ())
    return {config.tile for config in named("conv_2x").candidates(problem, get(80))}


@pytest.mark.parametrize(
    ("elements", "dtype", "expected"),
    [
        (64, DType.F16, 8),
        (12, DType.F16, 4),
        (6, DType.BF16, 2),
        (1001, DType.F16, 1),
        (64, DType.F32, 4),
        (2, DType.F32, 2),
    ],
)
def test_alignment_is_the_widest_16_byte_access_that_divides(
    elements: int, dtype: DType, expected: int
) -> None:
    assert alignment(elements, dtype) == expected


def test_single_halves_are_too_small_for_cp_async() -> None:
    assert needs_two_stages(1, DType.F16)
    assert not needs_two_stages(2, DType.F16)
    assert not needs_two_stages(1, DType.F32)


def test_shared_memory_and_registers_of_a_large_tile() -> None:
    config = _gemm((256, 128, 64), (64, 64, 64), 3)
    assert shared_memory(config, DType.F16) == 3 * (256 + 128) * 64 * 2
    assert registers(config) == 128 + 64 + 40
    assert blocks_per_sm(config, DType.F16, get(80)) == 1


def test_a_warp_tile_beyond_the_register_file_is_rejected() -> None:
    assert not is_feasible(_gemm((256, 128, 32), (128, 64, 32), 3), DType.F16, get(80))


def test_a_convolution_whose_threads_walk_many_pixels_is_rejected() -> None:
    deep, short = _conv((256, 64, 64), (64, 64, 64), 3), _conv((256, 64, 32), (64, 64, 32), 3)
    assert is_feasible(deep, DType.F16, get(80))
    assert is_feasible(short, DType.F16, get(80))
    assert conv_2x.image_rows(deep, DType.F16) == 2 * MAX_IMAGE_ROWS
    assert conv_2x.image_rows(short, DType.F16) == MAX_IMAGE_ROWS
    assert deep.tile in _gemm_tiles(64) - _conv_tiles(64)
    assert short.tile in _gemm_tiles(64) & _conv_tiles(64)


def test_shared_memory_decides_between_architectures() -> None:
    config = _gemm((256, 128, 64), (64, 64, 64), 3)  # 144 KiB
    assert is_feasible(config, DType.F16, get(80))
    assert not is_feasible(config, DType.F16, get(86))


def test_turing_has_two_stages() -> None:
    assert is_feasible(_gemm((128, 128, 32), (64, 64, 32), 2), DType.F16, get(75))
    assert not is_feasible(_gemm((128, 128, 32), (64, 64, 32), 3), DType.F16, get(75))


def test_single_element_accesses_to_a_large_tile_exceed_the_predicates() -> None:
    wide = dataclasses.replace(_gemm((64, 256, 64), (64, 64, 64), 2), access_k=2)
    assert is_feasible(wide, DType.F16, get(80))
    assert gemm_2x.predicates(wide) == MAX_PREDICATES
    single = dataclasses.replace(wide, access_k=1)
    assert gemm_2x.predicates(single) == 2 * MAX_PREDICATES
    assert wide.tile in _gemm_tiles(66) - _gemm_tiles(65)
    assert wide.tile in _conv_tiles(65)
