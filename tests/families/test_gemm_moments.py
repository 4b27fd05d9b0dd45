"""Kernels of gemm_sm90 that read or write statistics of rows: which tiles there are."""

from __future__ import annotations

import dataclasses

import pytest

from onnxbolt.archs import get
from onnxbolt.codegen.render import Instance
from onnxbolt.dtypes import DType
from onnxbolt.families import candidates, named
from onnxbolt.families.base import Schedule
from onnxbolt.families.blocks.memory import memory_us
from onnxbolt.families.blocks.sm90 import predicted_us
from onnxbolt.families.gemm_sm90 import GemmSm90Config
from onnxbolt.problems import GemmMomentsProblem
from onnxbolt.problems.gemm_moments import PART

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


@pytest.mark.parametrize("schedule", [Schedule.COOPERATIVE, Schedule.PINGPONG])
def test_statistics_take_the_time_of_their_bytes(schedule: Schedule) -> None:
    config = dataclasses.replace(CONFIG, columns=128, schedule=schedule)
    plain = READS.product
    parts = READS.m * READS.k // PART
    assert READS.bytes_moved - plain.bytes_moved == parts * 8
    product = predicted_us(READS, config, get(90), memory_us(READS, get(90)))
    assert FAMILY.predicted_us(READS, config, get(90)) == product


@pytest.mark.parametrize(
    ("rows", "schedule", "consumers", "buffers"),
    [
        (192, Schedule.COOPERATIVE, 3, 2),
        (256, Schedule.COOPERATIVE, 2, 2),
        (64, Schedule.PINGPONG, 3, 6),
    ],
)
def test_readers_hold_means_and_scales_of_the_rows_of_two_tiles(
    rows: int, schedule: Schedule, consumers: int, buffers: int
) -> None:
    """Warpgroups that take turns have two tiles each."""
    config = dataclasses.replace(
        CONFIG, rows=rows, columns=64, schedule=schedule, consumers=consumers, stages=3
    )
    reading, plain = (
        FAMILY.shared_memory(Instance(config.instance(), DType.F16, DType.F16, chain))
        for chain in (("FoldedLayerNorm", "Bias"), ("Bias", "Bias"))
    )
    assert reading is not None
    assert plain is not None
    assert reading - plain == buffers * (rows * 8 + 2 * 8)
