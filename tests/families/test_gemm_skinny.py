"""GEMMs of few rows: which problems have candidates, and that each fits."""

from __future__ import annotations

import dataclasses

import pytest

from onnxbolt.archs import ARCHS, Arch, Capability, get
from onnxbolt.dtypes import DType
from onnxbolt.families import config_from, named
from onnxbolt.families.gemm_skinny import GemmSkinnyConfig
from onnxbolt.problems import GemmProblem, GluProblem

FAMILY = named("gemm_skinny")
HEAD = GemmProblem(1, 1000, 768, DType.F16, DType.F16, ("Bias",))
CONFIG = GemmSkinnyConfig(
    arch=90,
    rows=8,
    columns=16,
    instruction=(16, 8, 16),
    steps=4,
    split=2,
    warps=8,
    access_k=8,
    access_n=8,
)
SIZES = ((1, 1000, 768), (16, 1000, 768), (8, 4096, 11008), (3, 1, 1), (9, 13, 30), (1, 50257, 768))


@pytest.mark.parametrize("arch", ARCHS.values(), ids=lambda arch: arch.name)
@pytest.mark.parametrize("dtype", [DType.F16, DType.BF16, DType.F32])
@pytest.mark.parametrize("size", SIZES)
def test_candidates_fit_any_size(size: tuple[int, int, int], dtype: DType, arch: Arch) -> None:
    problem = GemmProblem(*size, dtype, dtype, ("Bias",))
    found = FAMILY.candidates(problem, arch)
    assert bool(found) == arch.supports(dtype)
    assert len(set(found)) == len(found) <= 16
    for config in found:
        assert problem.m <= config.rows < problem.m + 8 or problem.m < 8
        assert problem.k % config.access_k == problem.n % config.access_n == 0
        assert config.access_k * dtype.bytes <= 16
        assert config.split == 1 or arch.has(Capability.CLUSTERS)
        assert config.warps * config.rows * config.columns * 4 <= arch.shared_memory_per_block
        assert config_from(config.row()) == config
        assert FAMILY.predicted_us(problem, config, arch) > arch.launch_us


def test_more_rows_and_several_layers_have_none() -> None:
    arch = get(90)
    assert FAMILY.candidates(dataclasses.replace(HEAD, m=16), arch)
    assert not FAMILY.candidates(dataclasses.replace(HEAD, m=17), arch)
    several = dataclasses.replace(HEAD, chain=("Relu", "Gemm", "Bias"), inner=(64,))
    assert not FAMILY.candidates(several, arch)


def test_gates_have_whole_tiles() -> None:
    problem = GluProblem(4, 512, 2048, DType.BF16, DType.BF16, ("Silu", "Gate"))
    for arch in (get(80), get(90)):
        found = FAMILY.candidates(problem, arch)
        assert found
        assert all(config.columns % 16 == 0 for config in found)


def test_clusters_share_k_where_columns_fill_few_sms() -> None:
    narrow = dataclasses.replace(HEAD, n=64, k=16384)
    fastest = FAMILY.candidates(narrow, get(90))[0]
    assert fastest.split > 1
    wide = dataclasses.replace(HEAD, n=50257)
    assert FAMILY.candidates(wide, get(90))[0].split == 1


def test_weights_decide_the_time() -> None:
    """Rows cost little, weights cost the memory's time."""
    wide = dataclasses.replace(HEAD, n=32768, k=8192)
    config = FAMILY.candidates(wide, get(90))[0]
    one = FAMILY.predicted_us(wide, config, get(90))
    assert one < FAMILY.predicted_us(dataclasses.replace(wide, m=8), config, get(90)) < 1.2 * one
    half = FAMILY.predicted_us(dataclasses.replace(wide, n=16384), config, get(90))
    assert 1.8 * half < one < 2.1 * half


def test_a_launch_decides_the_clusters() -> None:
    (splits,) = FAMILY.launches(CONFIG)
    assert [config.split for config in splits] == [1, 2, 4, 8]
    assert {config.instance() for config in splits} == {CONFIG.instance()}
    (alone,) = FAMILY.launches(dataclasses.replace(CONFIG, arch=80, split=1))
    assert [config.split for config in alone] == [1]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rows", 32),
        ("columns", 24),
        ("columns", 64),
        ("steps", 3),
        ("split", 0),
        ("split", 16),
        ("warps", 5),
        ("access_k", 3),
        ("access_n", 16),
    ],
)
def test_rows_that_no_kernel_has_are_refused(field: str, value: int) -> None:
    changed = dataclasses.replace(CONFIG, **{field: value})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no kernel of gemm_skinny has such " + field[:6]):
        config_from(changed.row())
