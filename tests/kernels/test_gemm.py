"""GEMM candidates: what is listed can be instantiated and launched."""

import pytest

from onnxbolt.archs import ARCHS, get
from onnxbolt.dtypes import DType
from onnxbolt.kernels.config import UNBOUNDED, Family, GemmProblem, KernelConfig
from onnxbolt.kernels.feasibility import is_feasible, warps
from onnxbolt.kernels.gemm import candidates


def _problem(
    m: int = 1024, n: int = 512, k: int = 256, dtype: DType = DType.F16, out: DType | None = None
) -> GemmProblem:
    return GemmProblem(m, n, k, dtype, out or dtype, ("Bias", "Relu"))


@pytest.mark.parametrize("number", ARCHS)
@pytest.mark.parametrize("dtype", DType)
def test_candidates_are_feasible_distinct_and_serve_every_m(number: int, dtype: DType) -> None:
    arch = get(number)
    found = candidates(_problem(dtype=dtype), arch)
    assert bool(found) == arch.supports(dtype)
    assert len(set(found)) == len(found)
    for config in found:
        assert config.arch == number
        assert (config.min_m, config.max_m) == (0, UNBOUNDED)
        if config.family is not Family.GEMM_SM90:  # see test_sm90.py
            assert is_feasible(config, dtype, arch)


@pytest.mark.parametrize("number", ARCHS)
def test_2x_tiles_divide_into_at_most_eight_warps_of_whole_instructions(number: int) -> None:
    for config in (c for c in candidates(_problem(), get(number)) if c.family is Family.GEMM_2X):
        assert all(
            t % w == 0 and w % i == 0
            for t, w, i in zip(config.threadblock, config.warp, config.instruction, strict=True)
        )
        assert config.warp[2] == config.threadblock[2]
        assert warps(config) in (4, 8)


def test_f32_takes_half_the_k_tile() -> None:
    half, single = (
        {c.threadblock for c in candidates(_problem(dtype=d), get(80))}
        for d in (DType.F16, DType.F32)
    )
    assert single == {(m, n, k // 2) for m, n, k in half}


def test_hopper_uses_tma_where_rows_are_16_bytes_and_2x_otherwise() -> None:
    assert {c.family for c in candidates(_problem(), get(90))} == {
        Family.GEMM_SM90,
        Family.GEMM_3X,
        Family.GEMM_2X,
    }
    assert {c.family for c in candidates(_problem(n=1001), get(90))} == {Family.GEMM_2X}
    assert {c.family for c in candidates(_problem(k=12), get(90))} == {Family.GEMM_2X}


def test_alignment_follows_k_and_n() -> None:
    def aligned(config: KernelConfig) -> tuple[int, int, int]:
        return config.align_a, config.align_b, config.align_c

    assert {aligned(c) for c in candidates(_problem(n=10, k=12), get(80))} == {(4, 4, 2)}
    assert {aligned(c) for c in candidates(_problem(n=64, k=64, dtype=DType.F32), get(80))} == {
        (4, 4, 4)
    }
    assert {aligned(c) for c in candidates(_problem(n=64, k=64, out=DType.F32), get(80))} == {
        (8, 8, 8)
    }


def test_odd_k_in_2_byte_types_means_two_stages() -> None:
    assert {c.stages for c in candidates(_problem(k=33), get(80))} == {2}
    assert {c.stages for c in candidates(_problem(k=33, dtype=DType.F32), get(80))} != {2}
