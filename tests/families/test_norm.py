"""Normalizations of rows: which divisions of a row among threads are tried."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from onnxbolt.archs import get
from onnxbolt.dtypes import DType
from onnxbolt.families import candidates, config_from
from onnxbolt.families.norm import Caching, NormConfig
from onnxbolt.plan.cost import ranked
from onnxbolt.problems import NormProblem

NORM = NormProblem(6304, 768, True, DType.F16, DType.F16, ("Scale", "Bias"))
CONFIG = NormConfig(arch=90, rows=4, lanes=32, vectors=3, access=8)


def _candidates(columns: int, dtype: DType = DType.F16) -> list[NormConfig]:
    problem = dataclasses.replace(NORM, c=columns, dtype=dtype, out=dtype)
    found = candidates(problem, get(80))
    assert all(isinstance(config, NormConfig) for config in found)
    return [config for config in found if isinstance(config, NormConfig)]


@pytest.mark.parametrize("dtype", [DType.F16, DType.F32])
@pytest.mark.parametrize("columns", [1, 7, 16, 96, 100, 768, 769, 1024, 4098, 16383, 16384])
def test_registers_hold_rows_of_any_length(columns: int, dtype: DType) -> None:
    found = _candidates(columns, dtype)
    assert 0 < len(found) <= 48
    assert len(set(found)) == len(found)
    for config in found:
        assert columns % config.access == 0
        assert config.access * dtype.bytes <= 16
        capacity = config.lanes * config.vectors * config.access
        assert columns <= capacity < columns + config.lanes * config.access
        assert config.threads % 32 == 0
        assert config.rows == 1 or config.lanes <= 32
        assert config_from(config.row()) == config


def test_longer_rows_have_no_kernel() -> None:
    assert _candidates(16392) == []


def test_short_rows_share_a_warp() -> None:
    assert {config.lanes for config in _candidates(96)} == {4, 8, 16}
    assert {config.lanes for config in _candidates(768)} == {32, 64, 128}


def test_every_variant_is_tried() -> None:
    found = _candidates(768)
    for field, values in {
        "batch": {1, 2},
        "resident": {False, True},
        "caching": {Caching.USUAL},  # the others have never been faster beyond noise
    }.items():
        assert {getattr(config, field) for config in found} == values


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"rows": 3}, "rows"),
        ({"lanes": 16, "rows": 1}, "rows"),
        ({"lanes": 64}, "lanes"),
        ({"batch": 4}, "batch"),
        ({"vectors": 0}, "vectors"),
        ({"access": 3}, "access"),
    ],
)
def test_rows_that_no_kernel_has_are_refused(change: dict[str, Any], named: str) -> None:
    config = dataclasses.replace(CONFIG, **change)
    with pytest.raises(ValueError, match=f"no kernel of norm has such {named}"):
        config_from(config.row())


def test_predictions_grow_with_bytes_and_see_idle_lanes() -> None:
    times = [ranked(dataclasses.replace(NORM, m=m), get(90))[0][0] for m in (1000, 6304, 16384)]
    assert times == sorted(times)
    swin = dataclasses.replace(NORM, m=50176, c=96)
    four, sixteen = (
        dataclasses.replace(CONFIG, rows=128 // lanes, lanes=lanes, vectors=vectors)
        for lanes, vectors in ((4, 3), (16, 1))
    )
    norm = CONFIG.family
    assert norm.predicted_us(swin, four, get(90)) <= norm.predicted_us(swin, sixteen, get(90))


# rows, columns, chain; rows of a block, lanes, vectors, batch and residence of the fastest kernel
# of those that an H200 measured; its microseconds
MEASURED = (
    (32, 768, ("Scale", "Bias"), (4, 32, 3, 1, True), 1.16),
    (1280, 768, ("Add", "Scale", "Bias"), (4, 32, 3, 1, True), 3.12),
    (1568, 768, ("Scale", "Bias"), (4, 32, 3, 1, True), 2.82),
    (1568, 1536, ("Scale", "Bias"), (1, 128, 2, 1, True), 5.05),
    (6272, 384, ("Scale", "Bias"), (8, 16, 3, 2, True), 3.89),
    (6272, 384, ("Add", "Store", "Scale", "Bias"), (8, 16, 3, 2, True), 6.04),
    (6304, 768, ("Scale", "Bias"), (4, 32, 3, 2, True), 6.84),
    (6304, 768, ("Add", "Store", "Scale", "Bias"), (4, 32, 3, 2, False), 11.33),
    (16384, 1024, ("Scale", "Bias"), (4, 32, 4, 1, True), 19.71),
    (16384, 1024, ("Add", "Scale", "Bias"), (1, 64, 2, 2, True), 25.76),
    (25088, 192, ("Scale", "Bias"), (8, 32, 1, 2, True), 7.13),
    (25088, 384, ("Scale", "Bias"), (8, 16, 3, 2, True), 11.95),
    (100352, 96, ("Scale", "Bias"), (16, 8, 2, 2, True), 12.61),
    (100352, 96, ("Add", "Store", "Scale", "Bias"), (16, 8, 2, 1, False), 21.18),
)


@pytest.mark.parametrize(("m", "c", "chain", "fastest", "us"), MEASURED)
def test_times_are_near_those_of_the_h200(
    m: int, c: int, chain: tuple[str, ...], fastest: tuple[int, int, int, int, bool], us: float
) -> None:
    problem = dataclasses.replace(NORM, m=m, c=c, chain=chain)
    rows, lanes, vectors, batch, resident = fastest
    config = dataclasses.replace(
        CONFIG, rows=rows, lanes=lanes, vectors=vectors, batch=batch, resident=resident
    )
    assert config in candidates(problem, get(90))
    predicted = config.family.predicted_us(problem, config, get(90))
    assert predicted == pytest.approx(us, rel=0.18)
    assert ranked(problem, get(90))[0][0] > 0.8 * predicted


def test_what_was_slow_on_the_h200_is_predicted_to_be_slow() -> None:
    """Blocks of one row each, started one after another, and loads of gamma behind stores."""
    swin = dataclasses.replace(NORM, m=25088, c=384)
    narrow = dataclasses.replace(CONFIG, rows=1, lanes=64, vectors=1)  # 31.6 us, the fastest 11.9
    assert CONFIG.family.predicted_us(swin, narrow, get(90)) > 22
    short = dataclasses.replace(NORM, m=1568)  # 5.1 us and 2.8 us
    times = [
        CONFIG.family.predicted_us(short, dataclasses.replace(CONFIG, resident=stays), get(90))
        for stays in (False, True)
    ]
    assert times[0] > 1.4 * times[1]
    unscaled = dataclasses.replace(short, chain=())
    assert CONFIG.family.predicted_us(unscaled, CONFIG, get(90)) < times[1] + 0.5
