"""Values that are refused in files are never written by onnxbolt itself."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from onnxbolt.archs import ARCHS, get
from onnxbolt.dtypes import DType
from onnxbolt.families import FAMILIES, Family, config_from, named
from onnxbolt.families.row import SLOTS
from onnxbolt.plan.cost import candidates
from onnxbolt.problems import AttentionProblem, ConvProblem, GemmProblem, Problem
from onnxbolt.problems.attention import BAND_LEAST
from onnxbolt.tune.soundness import check_problem

# the measurements that tests/same_results.py compares with
RECORD = Path(__file__).parents[1] / "same_results.json"
UNITS = json.loads(RECORD.read_text())["units"]
CHAIN = ("Bias", "Relu", "Gemm", "Bias", "Relu")
GEMM = GemmProblem(4096, 1024, 1024, DType.F16, DType.F16, ("Bias",))
CONV = ConvProblem(
    32,
    14,
    14,
    256,
    256,
    3,
    3,
    14,
    14,
    (1, 1, 1, 1),
    (1, 1),
    (1, 1),
    1,
    DType.F16,
    DType.F16,
    ("Bias", "Relu"),
)
ATTENTION = AttentionProblem(8, 12, 12, 128, 128, 64, 64, DType.F16, DType.F16)
PROBLEMS: tuple[Problem, ...] = (
    GEMM,
    dataclasses.replace(GEMM, m=1, n=16, k=50000),
    dataclasses.replace(GEMM, n=256, k=1433),
    *(
        GemmProblem(m, n, k, DType.F16, DType.F16, CHAIN, inner=(inner,))
        for m, k, inner, n in (
            (4096, 96, 32, 96),
            (2048, 2048, 64, 32),
            (2048, 8192, 256, 64),
            (2048, 3000, 512, 256),
            (2048, 8, 16, 8),
        )
    ),
    CONV,
    dataclasses.replace(CONV, c=3),
    dataclasses.replace(CONV, groups=256),
    dataclasses.replace(CONV, groups=8),
    dataclasses.replace(CONV, chain=CHAIN, inner=(256,)),
    ATTENTION,
    dataclasses.replace(ATTENTION, band=(BAND_LEAST, 0, 0)),
    dataclasses.replace(ATTENTION, band=(-64, 64, -1)),
    dataclasses.replace(ATTENTION, batch=32, queries=49, keys=49, windows=(14, 14, 7, 7, 0, 0)),
)


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_candidates_are_sound(problem: Problem) -> None:
    """On every architecture, of which not each has kernels for all problems."""
    typed = [
        dataclasses.replace(problem, dtype=dtype, out=dtype) for dtype in (problem.dtype, DType.F32)
    ]
    found = [
        (of, config) for of in typed for number in ARCHS for config in candidates(of, get(number))
    ]
    assert found
    for of, config in found:
        assert config_from(config.row()) == config
        check_problem(of, config)


def test_tiles_beyond_the_limits_are_refused() -> None:
    config = named("gemm_sm90").candidates(GEMM, get(90))[0]
    for field, size in (("rows", 2048), ("columns", 2048), ("k", 0)):
        changed = dataclasses.replace(config, **{field: size})
        with pytest.raises(ValueError, match=f"no kernel of gemm_sm90 has such {field}"):
            config_from(changed.row())


def test_a_warp_s_tile_divides_the_threadblock_s() -> None:
    for config in named("gemm_2x").candidates(GEMM, get(80)):
        changed = dataclasses.replace(config, warp=(48, *config.warp[1:]))
        with pytest.raises(ValueError, match="no kernel of gemm_2x has such warp"):
            config_from(changed.row())


def test_rows_that_earlier_commits_stored_are_sound() -> None:
    """For every family."""
    units = [row for unit in UNITS.values() for row in unit["rows"]]
    lock = json.loads(RECORD.with_suffix(".lock").read_text())
    chosen = [choice["config"] for choice in lock["choices"]]
    lines = map(json.loads, RECORD.with_suffix(".jsonl").read_text().splitlines()[1:])
    measured = [json.loads(line["config"]) for line in lines if line["config"]]
    assert len(chosen) > 5
    assert len(measured) > 50
    for row in (*units, *chosen, *measured):
        config = config_from(row)
        assert config.row() == row
        assert config_from(config.instance().row()) == config.instance()
    assert {config_from(row).family for row in units} == set(FAMILIES.values())


@pytest.mark.parametrize("family", FAMILIES.values(), ids=str)
def test_slots_that_a_family_has_no_field_for_hold_their_defaults(family: Family[Any]) -> None:
    """Or what all of its kernels hold there."""
    (row, *_) = UNITS[family.name]["rows"]
    taken = {slot for place in family.places.values() for slot in place.slots} | {"family"}
    for i, slot in enumerate(SLOTS):
        if slot not in taken:
            with pytest.raises(ValueError, match=f"no kernel of {family.name} has such numbers"):
                config_from([*row[:i], row[i] + 1, *row[i + 1 :]])
