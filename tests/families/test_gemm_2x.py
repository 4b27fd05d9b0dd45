"""GEMM candidates: what is listed can be instantiated and launched."""

from collections.abc import Sequence
from typing import Any

import pytest

from onnxbolt import families
from onnxbolt.archs import ARCHS, Arch, get
from onnxbolt.dtypes import VALUES, DType
from onnxbolt.families import gemm_2x, gemm_3x, named
from onnxbolt.families.blocks import mma_sync
from onnxbolt.families.gemm_2x import Gemm2xConfig
from onnxbolt.families.gemm_3x import Gemm3xConfig
from onnxbolt.problems import UNBOUNDED, GemmProblem


def _problem(
    m: int = 1024, n: int = 512, k: int = 256, dtype: DType = DType.F16, out: DType | None = None
) -> GemmProblem:
    return GemmProblem(m, n, k, dtype, out or dtype, ("Bias", "Relu"))


def candidates(problem: GemmProblem, arch: Arch) -> Sequence[Any]:
    """The candidates of all families."""
    return families.candidates(problem, arch)


@pytest.mark.parametrize("number", ARCHS)
@pytest.mark.parametrize("dtype", VALUES)
def test_candidates_are_feasible_distinct_and_serve_every_m(number: int, dtype: DType) -> None:
    arch = get(number)
    found = candidates(_problem(dtype=dtype), arch)
    assert bool(found) == arch.supports(dtype)
    assert len(set(found)) == len(found)
    for config in found:
        assert config.arch == number
        assert (config.min_m, config.max_m) == (0, UNBOUNDED)
        if isinstance(config, Gemm2xConfig):
            assert mma_sync.is_feasible(config, dtype, arch)
            assert gemm_2x.predicates(config) <= mma_sync.MAX_PREDICATES
        elif isinstance(config, Gemm3xConfig):
            assert gemm_3x.is_feasible(config, dtype, arch)
        else:
            assert config.family is named("gemm_sm90")  # see test_sm90.py


@pytest.mark.parametrize("number", ARCHS)
def test_2x_tiles_divide_into_at_most_eight_warps_of_whole_instructions(number: int) -> None:
    for config in named("gemm_2x").candidates(_problem(), get(number)):
        assert all(
            t % w == 0 and w % i == 0
            for t, w, i in zip(config.tile, config.warp, config.instruction, strict=True)
        )
        assert config.warp[2] == config.tile[2]
        assert config.warps in (4, 8)


def test_f32_takes_half_the_k_tile() -> None:
    half, single = (
        {c.tile for c in candidates(_problem(dtype=d), get(80))} for d in (DType.F16, DType.F32)
    )
    assert single == {(m, n, k // 2) for m, n, k in half}


def test_hopper_uses_tma_where_rows_are_16_bytes_and_2x_otherwise() -> None:
    assert {c.family for c in candidates(_problem(), get(90))} == {
        named("gemm_sm90"),
        named("gemm_3x"),
        named("gemm_2x"),
    }
    assert {c.family for c in candidates(_problem(n=1001), get(90))} == {named("gemm_2x")}
    assert {c.family for c in candidates(_problem(k=12), get(90))} == {named("gemm_2x")}


def test_access_follows_k_and_n() -> None:
    def accesses(config: Gemm2xConfig) -> tuple[int, int]:
        return config.access_k, config.access_n

    assert {accesses(c) for c in candidates(_problem(n=10, k=12), get(80))} == {(4, 2)}
    assert {accesses(c) for c in candidates(_problem(n=64, k=64, dtype=DType.F32), get(80))} == {
        (4, 4)
    }
    assert {accesses(c) for c in candidates(_problem(n=64, k=64, out=DType.F32), get(80))} == {
        (8, 8)
    }


def test_odd_k_in_2_byte_types_means_two_stages() -> None:
    assert {c.stages for c in candidates(_problem(k=33), get(80))} == {2}
    assert {c.stages for c in candidates(_problem(k=33, dtype=DType.F32), get(80))} != {2}
