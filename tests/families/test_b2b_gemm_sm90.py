"""Kernels for several GEMMs on sm_90a: which chains they serve, how rows are read, and what a
block holds."""

from __future__ import annotations

import dataclasses

import pytest

from onnxbolt.archs import get
from onnxbolt.dtypes import DType
from onnxbolt.families import named
from onnxbolt.families.blocks import b2b
from onnxbolt.problems import GemmProblem

ARCH = get(90)
STEPS = ("Bias", "Relu", "Gemm", "Bias", "Relu")
FAMILY = named("b2b_gemm_sm90")
PAIR = GemmProblem(16384, 16, 256, DType.F16, DType.F16, STEPS, (64,))


@pytest.mark.parametrize(
    ("k", "by_tma"),
    [(256, True), (8, True), (429, False), (13, False), (12, False), (1, False)],
)
def test_rows_that_tma_cannot_read_are_copied(k: int, by_tma: bool) -> None:
    found = FAMILY.candidates(dataclasses.replace(PAIR, k=k), ARCH)
    assert {config.tma_rows for config in found} == {by_tma}
    assert all(k <= config.depth < k + 64 for config in found)


def test_rows_take_room_that_is_not_theirs_where_tma_does_not_read_them() -> None:
    problems = (dataclasses.replace(PAIR, k=k, n=64, inner=(128,)) for k in (256, 255))
    by_tma, copied = (
        next(c for c in FAMILY.candidates(problem, ARCH) if c.consumers == 2)
        for problem in problems
    )
    assert dataclasses.replace(by_tma, tma_rows=False, stages=copied.stages) == copied
    same = dataclasses.replace(copied, tma_rows=True)
    assert (
        b2b.shared_memory(copied, PAIR)
        == b2b.shared_memory(same, PAIR) + copied.consumers * copied.stages * 64 * 16
    )
    assert b2b.registers(copied) > b2b.registers(same)


def test_residuals_stand_behind_the_last_layer() -> None:
    assert b2b.serves(DType.F16, (64, 16), (*STEPS, "Add"))
    assert not b2b.serves(DType.F16, (64, 16), ("Add", *STEPS))
    assert not b2b.serves(DType.F32, (64, 16), STEPS)
    assert not b2b.serves(DType.F16, (64, 512), STEPS)
    wide = dataclasses.replace(PAIR, n=256)
    config = FAMILY.candidates(wide, ARCH)[0]
    ahead = b2b.shared_memory(
        config, dataclasses.replace(wide, chain=(*STEPS, "Add"))
    ) - b2b.shared_memory(config, wide)
    assert ahead == config.consumers * 2 * 64 * 128  # two units more are on their way


def test_four_warpgroups_share_the_registers_where_layers_are_thin() -> None:
    """They hide more of a copy's latency, which is what limits long chains of thin layers."""
    thin, wide = (dataclasses.replace(PAIR, m=128320, k=96, n=n, inner=(32,)) for n in (96, 128))
    assert {config.rows for config in FAMILY.candidates(thin, ARCH) if config.consumers == 4} == {
        64,
        256,
    }
    assert max(config.consumers for config in FAMILY.candidates(wide, ARCH)) == 3
    for config in FAMILY.candidates(thin, ARCH):
        assert 128 * (config.consumers * b2b.registers(config) + 32) <= ARCH.registers_per_sm


def test_three_and_four_rings_may_be_deeper() -> None:
    """That is faster for some chains and slower for others, so that both are candidates."""
    thin = FAMILY.candidates(dataclasses.replace(PAIR, m=128320, k=96, n=96, inner=(32,)), ARCH)
    depths = {
        groups: {config.stages for config in thin if config.resident and config.consumers == groups}
        for groups in range(1, 5)
    }
    assert depths == {1: {8}, 2: {8}, 3: {8, 10}, 4: {8, 10}}


def test_every_candidate_fits_an_sm_and_the_deepest_ring_is_taken() -> None:
    for k, widths in ((256, (64, 16)), (576, (128, 64)), (429, (256, 64, 16)), (64, (128, 256))):
        problem = GemmProblem(
            4096,
            widths[-1],
            k,
            DType.F16,
            DType.F16,
            ("Relu", "Gemm") * (len(widths) - 1),
            widths[:-1],
        )
        found = FAMILY.candidates(problem, ARCH)
        assert found
        assert len({(config.resident, config.consumers) for config in found}) == len(found)
        assert all(b2b.is_feasible(config, problem, ARCH) for config in found)
