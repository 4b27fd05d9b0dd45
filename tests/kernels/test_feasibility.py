"""Feasibility formulas against numbers known from CUTLASS builds."""

import dataclasses

import pytest

from onnxbolt.archs import get
from onnxbolt.dtypes import DType
from onnxbolt.kernels.config import UNBOUNDED, Family, KernelConfig, Schedule
from onnxbolt.kernels.feasibility import (
    alignment,
    blocks_per_sm,
    is_feasible,
    needs_two_stages,
    registers,
    shared_memory,
    stages_3x,
)


def _2x(
    threadblock: tuple[int, int, int], warp: tuple[int, int, int], stages: int, arch: int = 80
) -> KernelConfig:
    return KernelConfig(arch, 0, UNBOUNDED, Family.GEMM_2X, threadblock, warp, (16, 8, 16), stages)


def _3x(threadblock: tuple[int, int, int], schedule: Schedule) -> KernelConfig:
    return KernelConfig(90, 0, UNBOUNDED, Family.GEMM_3X, threadblock, schedule=schedule)


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
    config = _2x((256, 128, 64), (64, 64, 64), 3)
    assert shared_memory(config, DType.F16) == 3 * (256 + 128) * 64 * 2
    assert registers(config) == 128 + 64 + 40
    assert blocks_per_sm(config, DType.F16, get(80)) == 1


def test_a_warp_tile_beyond_the_register_file_is_rejected() -> None:
    assert not is_feasible(_2x((256, 128, 32), (128, 64, 32), 3), DType.F16, get(80))


def test_a_convolution_whose_threads_walk_many_pixels_is_rejected() -> None:
    gemm = _2x((256, 64, 64), (64, 64, 64), 3)
    conv = dataclasses.replace(gemm, family=Family.CONV_2X)
    assert is_feasible(gemm, DType.F16, get(80))
    assert not is_feasible(conv, DType.F16, get(80))
    assert is_feasible(
        dataclasses.replace(conv, threadblock=(256, 64, 32), warp=(64, 64, 32)), DType.F16, get(80)
    )


def test_shared_memory_decides_between_architectures() -> None:
    config = _2x((256, 128, 64), (64, 64, 64), 3)  # 144 KiB
    assert is_feasible(config, DType.F16, get(80))
    assert not is_feasible(config, DType.F16, get(86))


def test_turing_has_two_stages() -> None:
    assert is_feasible(_2x((128, 128, 32), (64, 64, 32), 2), DType.F16, get(75))
    assert not is_feasible(_2x((128, 128, 32), (64, 64, 32), 3), DType.F16, get(75))


def test_single_element_accesses_to_a_large_tile_exceed_the_predicates() -> None:
    wide = KernelConfig(
        80,
        0,
        UNBOUNDED,
        Family.GEMM_2X,
        (64, 256, 64),
        (64, 64, 64),
        (16, 8, 16),
        2,
        align_a=2,
        align_b=2,
    )
    assert is_feasible(wide, DType.F16, get(80))
    assert not is_feasible(dataclasses.replace(wide, align_a=1, align_b=1), DType.F16, get(80))
    assert is_feasible(
        dataclasses.replace(wide, align_a=1, align_b=1, family=Family.CONV_2X), DType.F16, get(80)
    )


def test_3x_stages_and_limits() -> None:
    assert stages_3x(_3x((128, 256, 64), Schedule.COOPERATIVE), DType.F16, get(90)) == 4
    assert is_feasible(_3x((128, 256, 64), Schedule.COOPERATIVE), DType.F16, get(90))
    # two warpgroups of 64 rows
    assert not is_feasible(_3x((64, 256, 64), Schedule.COOPERATIVE), DType.F16, get(90))
    # accumulators spill
    assert not is_feasible(_3x((128, 256, 64), Schedule.PINGPONG), DType.F16, get(90))
    assert not is_feasible(_3x((128, 256, 64), Schedule.COOPERATIVE), DType.F16, get(80))
