"""Feasibility formulas of CUTLASS 3.x's kernels against numbers known from its builds."""

import dataclasses

from onnxbolt.archs import get
from onnxbolt.dtypes import DType
from onnxbolt.families import FAMILIES
from onnxbolt.families.base import Schedule
from onnxbolt.families.gemm_3x import Gemm3xConfig, is_feasible, stages


def _config(tile: tuple[int, int, int], schedule: Schedule) -> Gemm3xConfig:
    return Gemm3xConfig(arch=90, tile=tile, cluster=(1, 1), schedule=schedule)


def test_stages_and_limits() -> None:
    assert stages(_config((128, 256, 64), Schedule.COOPERATIVE), DType.F16, get(90)) == 4
    assert is_feasible(_config((128, 256, 64), Schedule.COOPERATIVE), DType.F16, get(90))
    # two warpgroups of 64 rows
    assert not is_feasible(_config((64, 256, 64), Schedule.COOPERATIVE), DType.F16, get(90))
    # accumulators spill
    assert not is_feasible(_config((128, 256, 64), Schedule.PINGPONG), DType.F16, get(90))
    assert not is_feasible(_config((128, 256, 64), Schedule.COOPERATIVE), DType.F16, get(80))


def test_cutlass_needs_the_shared_memory_of_sm_90a() -> None:
    hopper = get(90)
    less = dataclasses.replace(hopper, shared_memory_per_block=hopper.shared_memory_per_block - 1)
    assert FAMILIES[2].runs_on(hopper)
    assert not FAMILIES[2].runs_on(less)
