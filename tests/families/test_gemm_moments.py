"""Kernels of gemm_sm90 that read or write statistics of rows: which tiles there are."""

from __future__ import annotations

import dataclasses

import pytest

from onnxbolt.archs import get
from onnxbolt.dtypes import DType
from onnxbolt.families import candidates, named
from onnxbolt.families.base import Schedule
from onnxbolt.families.blocks.memory import memory_us
from onnxbolt.families.blocks.sm90 import predicted_us
from onnxbolt.families.gemm_sm90 import GemmSm90Config
from onnxbolt.problems import GemmMomentsProblem

FAMILY = named("gemm_sm90")
READS = GemmMomentsProblem(6304, 2304, 768, DType.F16, DType.F16, ("FoldedLayerNorm", "Bias"))
WRITES = GemmMomentsProblem(6304, 768, 3072, DType.F16, DType.F16, ("Bias", "Add", "Moments"))
CONFIG = GemmSm90Config(
    arch=90, rows=128, columns=256, k=64, schedule=Schedule.COOPERATIVE, consumers=2
)


def _candidates(problem: GemmMomentsProblem) -> tuple[GemmSm90Config, ...]:
    return tuple(FAMILY.candidates(problem, get(90)))


@pytest.mark.parametrize("dtype", [DType.F16, DType.BF16])
def test_a_tile_s_results_are_whole_parts(dtype: DType) -> None:
    written = dataclasses.replace(WRITES, dtype=dtype, out=dtype)
    assert {c.columns for c in _candidates(written)} == {64, 128, 192, 256}
    read = dataclasses.replace(READS, dtype=dtype, out=dtype)
    assert {c.columns for c in _candidates(read)} == {64, 96, 128, 192, 256}
    assert not any(c.swapped for c in (*_candidates(written), *_candidates(read)))


@pytest.mark.parametrize(
    "change", [{"k": 760}, {"dtype": DType.F32, "out": DType.F32}, {"out": DType.F32}]
)
def test_rows_that_are_no_whole_parts_are_not_normalized(change: dict[str, object]) -> None:
    assert _candidates(dataclasses.replace(READS, **change)) == ()  # type: ignore[arg-type]


def test_a_product_writes_statistics_of_whole_parts_alone() -> None:
    """Its input may have rows of any length that TMA reads."""
    assert _candidates(dataclasses.replace(WRITES, n=760)) == ()
    assert _candidates(dataclasses.replace(WRITES, k=760))


def test_no_other_family_has_such_kernels() -> None:
    found = {config.family for config in candidates(READS, get(90))}
    assert found == {FAMILY}


def test_cooperative_warpgroups_wait_for_each_tile_s_statistics() -> None:
    """An SM has four at the most of 450 tiles."""

    def wait(config: GemmSm90Config) -> float:
        alone = predicted_us(READS, config, get(90), memory_us(READS, get(90)))
        return FAMILY.predicted_us(READS, config, get(90)) - alone

    pingpong = dataclasses.replace(CONFIG, columns=128, schedule=Schedule.PINGPONG)
    assert wait(CONFIG) == pytest.approx(4 * wait(pingpong))
    assert wait(pingpong) > 0
