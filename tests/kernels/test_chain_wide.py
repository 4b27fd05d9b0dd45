"""Kernels for several GEMMs of up to 512 columns: which chains they serve, how tiles share their
columns, and what a block holds."""

from __future__ import annotations

import dataclasses

import pytest

from onnxbolt.archs import ARCHS, get
from onnxbolt.dtypes import DType
from onnxbolt.kernels import chain, chain_wide, gemm
from onnxbolt.kernels.config import Family, GemmProblem

ARCH = get(90)
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
    shared, own = chain_wide.candidates(BOTTOM, ARCH)
    assert (shared.threadblock, own.threadblock) == ((64, 512, 16), (128, 512, 16))
    assert shared.warp == own.warp == (256, 64, 32)
    assert [chain_wide.shares(config) for config in (shared, own)] == [2, 1]
    assert [chain_wide.passes(shared, layer) for layer in range(4)] == [1, 1, 1, 1]
    assert [chain_wide.passes(own, layer) for layer in range(4)] == [2, 1, 1, 1]


def test_only_the_first_layer_has_two_passes() -> None:
    """A later one would overwrite what its second pass reads."""
    assert {
        config.threadblock[0] for config in chain_wide.candidates(pair(256, 512, 256), ARCH)
    } == {64, 128}
    assert {
        config.threadblock[0] for config in chain_wide.candidates(pair(256, 256, 384), ARCH)
    } == {64}


@pytest.mark.parametrize(("k", "align"), [(13, 1), (429, 1), (16, 8), (432, 8)])
def test_rows_of_any_length(k: int, align: int) -> None:
    for config in chain_wide.candidates(dataclasses.replace(BOTTOM, k=k), ARCH):
        assert config.align_a == align
        assert k <= config.threadblock[2] < k + 64


def test_what_it_serves() -> None:
    assert chain_wide.serves(DType.BF16, (512, 512), (*PAIR, "Add"))
    assert not chain_wide.serves(DType.F32, (512, 512), PAIR)
    assert not chain_wide.serves(DType.F16, (520, 64), PAIR)
    assert not chain_wide.serves(DType.F16, (512, 64), ("Add", *PAIR))
    assert all(not chain_wide.candidates(BOTTOM, get(number)) for number in ARCHS if number != 90)


def test_narrow_layers_have_kernels_that_keep_results_in_registers() -> None:
    assert not chain_wide.candidates(pair(256, 192, 64), ARCH)
    assert Family.B2B_GEMM_WIDE_SM90 not in {
        config.family for config in gemm.candidates(pair(256, 192, 64), ARCH)
    }
    assert {Family.B2B_GEMM_SM90, Family.B2B_GEMM_WIDE_SM90} <= {
        config.family for config in gemm.candidates(pair(512, 256, 128), ARCH)
    }
    assert not chain.candidates(pair(512, 384, 128), ARCH)


def test_every_candidate_fits_an_sm_and_the_deepest_ring_is_taken() -> None:
    for problem in (
        BOTTOM,
        pair(367, 512, 1),
        pair(512, 512, 512),
        pair(1024, 256, 256, (*PAIR, "Add")),
        pair(96, 96, 512),
    ):
        found = chain_wide.candidates(problem, ARCH)
        assert found
        for config in found:
            assert chain_wide.is_feasible(config, problem, ARCH)
            deeper = dataclasses.replace(config, stages=config.stages + 1)
            assert config.stages == 8 or not chain_wide.is_feasible(deeper, problem, ARCH)


def test_a_stage_holds_all_columns_of_a_pass() -> None:
    """Boxes along k are shorter, where a pass is wide."""
    shared, own = chain_wide.candidates(dataclasses.replace(BOTTOM, k=512), ARCH)
    assert chain_wide.boxes(shared, BOTTOM) == (32, 64, 64, 64)
    assert chain_wide.boxes(own, BOTTOM) == (32, 32, 64, 64)
    more = dataclasses.replace(shared, stages=shared.stages + 1)
    assert (
        chain_wide.shared_memory(more, BOTTOM) - chain_wide.shared_memory(shared, BOTTOM)
        == 512 * 32 * 2
    )


def test_the_output_is_staged_where_activations_are() -> None:
    """By hand: stages of 256 weights x 64 and at least two of 64 rows x 64; one or eight boxes
    of activations, or four staged units."""
    for inner, n, activations in ((32, 256, 4 * 8192), (512, 64, 8 * 8192)):
        problem = pair(64, inner, n)
        config = dataclasses.replace(chain_wide.candidates(problem, ARCH)[0], stages=3)
        stage = (
            max(
                inner * chain_wide.boxes(config, problem)[0],
                n * chain_wide.boxes(config, problem)[1],
            )
            * 2
        )
        rows = 64 * chain_wide.boxes(config, problem)[0] * 2
        assert (
            chain_wide.shared_memory(config, problem)
            == 3 * stage + 2 * rows + activations + (inner + n) * 4 + 256
        )
