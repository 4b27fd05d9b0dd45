"""GEMMs that normalize rows: how a row is divided among the blocks of a cluster."""

from __future__ import annotations

import dataclasses

import pytest

from onnxbolt import families
from onnxbolt.archs import ARCHS, get
from onnxbolt.dtypes import DType
from onnxbolt.families import config_from, named, problem_types
from onnxbolt.families.base import Schedule
from onnxbolt.families.gemm_norm_sm90 import GemmNormSm90Config
from onnxbolt.problems import GemmNormProblem
from tests.support import planned

FAMILY = named("gemm_norm_sm90")
CHAIN = ("Bias", "Add", "Store", "LayerNorm", "Scale", "Bias")
PROBLEM = GemmNormProblem(1280, 768, 3072, DType.F16, DType.F16, CHAIN)
CONFIG = GemmNormSm90Config(
    arch=90,
    rows=64,
    columns=128,
    k=64,
    cluster=(1, 6),
    stages=6,
    schedule=Schedule.COOPERATIVE,
    consumers=1,
)


def _candidates(problem: GemmNormProblem = PROBLEM) -> tuple[GemmNormSm90Config, ...]:
    return tuple(FAMILY.candidates(problem, get(90)))


@pytest.mark.parametrize(
    ("n", "divisions"),
    [
        (96, {(1, 96)}),
        (256, {(1, 256), (2, 128), (4, 64)}),
        (320, {(2, 160), (4, 80), (5, 64)}),
        (384, {(2, 192), (3, 128), (4, 96), (6, 64)}),
        (768, {(3, 256), (4, 192), (6, 128), (8, 96)}),
        (1024, {(4, 256), (8, 128)}),
        (1280, {(5, 256), (8, 160)}),
        (2048, {(8, 256)}),
        (2304, set()),
        (4096, set()),
        (100, set()),
        (1000, set()),
    ],
)
@pytest.mark.parametrize("dtype", [DType.F16, DType.BF16])
def test_blocks_divide_a_row_evenly(n: int, divisions: set[tuple[int, int]], dtype: DType) -> None:
    problem = dataclasses.replace(PROBLEM, n=n, dtype=dtype, out=dtype)
    found = _candidates(problem)
    assert {(config.cluster[1], config.columns) for config in found} == divisions
    for config in found:
        assert config.columns * config.cluster[1] == n
        assert config.group_rows == 64
        assert config.stages >= 3
        assert config_from(config.row()) == config


def test_the_tiles_of_bert_are_among_them() -> None:
    """6 blocks of 128 columns with 64 rows where m is small, 4 of 256 where it is large."""
    assert (64, 128, (1, 6)) in {(c.rows, c.columns, c.cluster) for c in _candidates()}
    large = dataclasses.replace(PROBLEM, m=16384, n=1024)
    assert (128, 256, (1, 4)) in {(c.rows, c.columns, c.cluster) for c in _candidates(large)}


def test_float32_has_less_room() -> None:
    """Staging of 64 x 256 values would leave two stages."""
    problem = dataclasses.replace(PROBLEM, dtype=DType.F32, out=DType.F32)
    assert {c.columns for c in _candidates(problem) if c.consumers == 2} <= {96, 128, 192}


@pytest.mark.parametrize("change", [{"k": 3070}, {"n": 771}, {"out": DType.F32}])
def test_what_tma_cannot_move_has_no_kernel(change: dict[str, object]) -> None:
    assert _candidates(dataclasses.replace(PROBLEM, **change)) == ()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change",
    [
        {"rows": 128},
        {"cluster": (2, 3)},
        {"cluster": (1, 9)},
        {"columns": 136},
        {"consumers": 3, "rows": 192, "columns": 192},
        {"schedule": Schedule.PINGPONG},
        {"resident": True},
    ],
)
def test_rows_of_kernels_that_do_not_exist_are_refused(change: dict[str, object]) -> None:
    wrong = dataclasses.replace(CONFIG, **change)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no kernel of gemm_norm_sm90 has such"):
        config_from(wrong.row())


def test_two_tensors_leave_registers_for_fewer_columns() -> None:
    """With an exact GELU, tiles of 192 columns and two tensors spilled."""
    chain = ("Bias", "GeluErf", "Add", *CHAIN[1:])
    found = _candidates(dataclasses.replace(PROBLEM, chain=chain))
    assert {config.columns for config in found} == {96, 128}


def test_it_runs_on_hopper_alone() -> None:
    assert [arch.number for arch in ARCHS.values() if FAMILY.runs_on(arch)] == [90]


def test_until_it_is_measured_planning_does_not_know_it() -> None:
    assert not FAMILY.measured
    assert families.candidates(PROBLEM, get(90)) == ()
    assert "GemmNormProblem" not in problem_types()
    with planned(FAMILY):
        assert families.candidates(PROBLEM, get(90)) == _candidates()
        assert problem_types()["GemmNormProblem"] is GemmNormProblem
    assert families.candidates(PROBLEM, get(90)) == ()


def test_a_second_output_and_an_exchange_take_time() -> None:
    unstored = dataclasses.replace(PROBLEM, chain=tuple(s for s in CHAIN if s != "Store"))
    stored, plain = (FAMILY.predicted_us(p, CONFIG, get(90)) for p in (PROBLEM, unstored))
    assert plain < stored
    alone = dataclasses.replace(PROBLEM, n=128)
    single = dataclasses.replace(CONFIG, cluster=(1, 1))
    assert FAMILY.predicted_us(alone, single, get(90)) < plain
