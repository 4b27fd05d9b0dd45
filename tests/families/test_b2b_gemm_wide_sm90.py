"""Kernels for several GEMMs of up to 512 columns: which chains they serve, how tiles share their
columns, and what a block holds."""

from __future__ import annotations

import dataclasses

import pytest

from onnxbolt.archs import ARCHS, get
from onnxbolt.dtypes import DType
from onnxbolt.families import b2b_gemm_wide_sm90 as wide
from onnxbolt.families import candidates, named
from onnxbolt.families.blocks import b2b
from onnxbolt.problems import GemmProblem

ARCH = get(90)
FAMILY = named("b2b_gemm_wide_sm90")
BOTTOM = GemmProblem(
    16384,
    16,
    13,
    DType.F16,
    DType.F16,
    ("Bias", "Relu") + ("Gemm", "Bias", "Relu") * 3,
    (512, 256, 64),
)
PAIR = ("Bias", "Relu", "Gemm", "Bias", "Relu")


def pair(k: int, inner: int, n: int, chain: tuple[str, ...] = PAIR) -> GemmProblem:
    return GemmProblem(16384, n, k, DType.F16, DType.F16, chain, (inner,))


def test_tiles_of_64_rows_share_columns_and_those_of_128_do_not() -> None:
    shared, own = FAMILY.candidates(BOTTOM, ARCH)
    assert tuple((c.rows, c.columns, c.depth) for c in (shared, own)) == (
        (64, 512, 16),
        (128, 512, 16),
    )
    assert shared.later == own.later == (256, 64, 32)
    assert [config.sharing for config in (shared, own)] == [2, 1]
    assert [shared.passes(layer) for layer in range(4)] == [1, 1, 1, 1]
    assert [own.passes(layer) for layer in range(4)] == [2, 1, 1, 1]


def test_only_the_first_layer_has_two_passes() -> None:
    """A later one would overwrite what its second pass reads."""
    assert {config.rows for config in FAMILY.candidates(pair(256, 512, 256), ARCH)} == {64, 128}
    assert {config.rows for config in FAMILY.candidates(pair(256, 256, 384), ARCH)} == {64}


@pytest.mark.parametrize(("k", "by_tma"), [(13, False), (429, False), (16, True), (432, True)])
def test_rows_of_any_length(k: int, by_tma: bool) -> None:
    for config in FAMILY.candidates(dataclasses.replace(BOTTOM, k=k), ARCH):
        assert config.tma_rows == by_tma
        assert k <= config.depth < k + 64


def serves(dtype: DType, widths: tuple[int, ...], steps: tuple[str, ...]) -> bool:
    return b2b.serves(dtype, widths, steps, wide.COLUMNS[-1])


def test_problems_at_its_limits_and_beyond() -> None:
    assert serves(DType.BF16, (512, 512), (*PAIR, "Add"))
    assert not serves(DType.F32, (512, 512), PAIR)
    assert not serves(DType.F16, (520, 64), PAIR)
    assert not serves(DType.F16, (512, 64), ("Add", *PAIR))
    assert all(FAMILY.runs_on(arch) == (arch.number == 90) for arch in ARCHS.values())


def test_narrow_layers_have_kernels_that_keep_results_in_registers() -> None:
    assert not FAMILY.candidates(pair(256, 192, 64), ARCH)
    assert FAMILY not in {config.family for config in candidates(pair(256, 192, 64), ARCH)}
    assert {named("b2b_gemm_sm90"), FAMILY} <= {
        config.family for config in candidates(pair(512, 256, 128), ARCH)
    }
    assert not named("b2b_gemm_sm90").candidates(pair(512, 384, 128), ARCH)


def test_every_candidate_fits_an_sm_and_the_deepest_ring_is_taken() -> None:
    for problem in (
        BOTTOM,
        pair(367, 512, 1),
        pair(512, 512, 512),
        pair(1024, 256, 256, (*PAIR, "Add")),
        pair(96, 96, 512),
    ):
        found = FAMILY.candidates(problem, ARCH)
        assert found
        for config in found:
            assert wide.is_feasible(config, problem, ARCH)
            deeper = dataclasses.replace(config, stages=config.stages + 1)
            assert config.stages == 8 or not wide.is_feasible(deeper, problem, ARCH)


def test_a_stage_holds_all_columns_of_a_pass() -> None:
    """Boxes along k are shorter, where a pass is wide."""
    shared, own = FAMILY.candidates(dataclasses.replace(BOTTOM, k=512), ARCH)
    assert wide.boxes(shared, BOTTOM) == (32, 64, 64, 64)
    assert wide.boxes(own, BOTTOM) == (32, 32, 64, 64)
    more = dataclasses.replace(shared, stages=shared.stages + 1)
    assert wide.shared_memory(more, BOTTOM) - wide.shared_memory(shared, BOTTOM) == 512 * 32 * 2


def test_the_output_is_staged_where_activations_are() -> None:
    """By hand: stages of 256 weights x 64 and at least two of 64 rows x 64; one or eight boxes
    of activations, or four staged units."""
    for inner, n, activations in ((32, 256, 4 * 8192), (512, 64, 8 * 8192)):
        problem = pair(64, inner, n)
        config = dataclasses.replace(FAMILY.candidates(problem, ARCH)[0], stages=3)
        stage = (
            max(
                inner * wide.boxes(config, problem)[0],
                n * wide.boxes(config, problem)[1],
            )
            * 2
        )
        rows = 64 * wide.boxes(config, problem)[0] * 2
        assert (
            wide.shared_memory(config, problem)
            == 3 * stage + 2 * rows + activations + (inner + n) * 4 + 256
        )
