"""Attention on sm_90a: which problems it serves, and by which kernels."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest

from onnxbolt.archs import get
from onnxbolt.dtypes import CODES, DType
from onnxbolt.epilogues import QUANTIZE
from onnxbolt.families import candidates, config_from
from onnxbolt.families.attention_sm90 import (
    AttentionSm90Config,
    MaskForm,
    mask_form,
    needed_registers,
    registers,
    shared_memory,
)
from onnxbolt.families.base import Schedule
from onnxbolt.plan.cost import ranked
from onnxbolt.problems import AttentionProblem

ARCH = get(90)
VIT = AttentionProblem(32, 12, 12, 197, 197, 64, 64, DType.F16, DType.F16)
CAUSAL = (-(2**31), 0, 0)
CONFIG = AttentionSm90Config(
    arch=90, keys=112, last_keys=96, size=64, value_size=64, consumers=3, stages=4
)
LENGTHS = (1, 7, 40, 49, 77, 128, 197, 257, 384, 512, 1000, 1500, 4096)
SIZES = (16, 24, 32, 40, 64, 72, 80, 96, 128, 160, 192, 256)


def _of(problem: AttentionProblem) -> list[AttentionSm90Config]:
    return [c for c in candidates(problem, ARCH) if isinstance(c, AttentionSm90Config)]


def _square(length: int, **changes: Any) -> AttentionProblem:
    return dataclasses.replace(VIT, queries=length, keys=length, **changes)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("length", LENGTHS)
def test_every_length_and_size_has_kernels(length: int, size: int) -> None:
    found = _of(_square(length, size=size, value_size=size))
    assert 0 < len(found) <= 20
    assert len(set(found)) == len(found)
    for config in found:
        assert config.size - 16 < size <= config.size
        assert size <= config.value_size
        count = -(-length // config.keys)
        assert length - (count - 1) * config.keys <= config.last_keys < config.keys + 16
        assert needed_registers(config) <= registers(config)
        assert config.blocks * (shared_memory(config) + 1024) <= ARCH.shared_memory_per_sm
        assert config_from(config.row()) == config


@pytest.mark.parametrize(
    ("mask", "shape", "form"),
    [
        ((), (), MaskForm.NONE),
        (("kept",), (32, 1, 1, 197), MaskForm.KEYS),
        (("added", "f32"), (197,), MaskForm.KEYS),
        (("added", "f16"), (12, 197, 197), MaskForm.ADDED),
        (("added", "f32"), (1, 1, 197, 197), MaskForm.ADDED_F32),
        (("dropped",), (32, 1, 197, 197), MaskForm.BOOLEAN),
        (("kept",), (32, 1, 197, 1), None),
    ],
)
def test_forms_of_masks(
    mask: tuple[str, ...], shape: tuple[int, ...], form: MaskForm | None
) -> None:
    problem = dataclasses.replace(VIT, mask=mask, mask_shape=shape)
    assert mask_form(problem) is form
    assert {config.mask for config in _of(problem)} == ({form} - {None})


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": DType.F32, "out": DType.F32},
        {"size": 12},
        {"value_size": 264},
        {"out": DType.F32},
        {"windows": (14, 14, 7, 7, 3, 3)},
        {"mask": ("kept",), "mask_shape": (8, 1, 197, 197)},
    ],
)
def test_problems_without_kernels(change: dict[str, Any]) -> None:
    assert _of(dataclasses.replace(VIT, **change)) == []


def test_blocks_that_a_band_visits_are_of_one_length() -> None:
    """The last block that is visited may be any, so none is shorter."""
    for config in _of(_square(1000, band=CAUSAL)):
        assert config.banded
        assert config.last_keys == config.keys


def test_few_queries_are_not_spread_over_warpgroups_without_any() -> None:
    for length, most in ((40, 1), (77, 2), (130, 3), (197, 4)):
        assert {c.consumers for c in _of(_square(length))} <= set(range(1, most + 1))


def test_orders_of_products_are_tried_where_there_are_several_blocks() -> None:
    orders = {(c.overlap, c.schedule) for c in _of(_square(512))}
    assert orders >= {(True, Schedule.COOPERATIVE), (True, Schedule.PINGPONG)}
    assert {c.overlap for c in _of(_square(40))} == {False}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"keys": 100}, "keys"),
        ({"keys": 256}, "keys"),
        ({"last_keys": 128}, "last keys"),
        ({"value_size": 100}, "value size"),
        ({"size": 72}, "size"),
        ({"stages": 0}, "stages"),
        ({"stages": 9}, "stages"),
        ({"blocks": 2}, "consumers"),
        ({"consumers": 5}, "consumers"),
        ({"consumers": 1, "schedule": Schedule.PINGPONG}, "schedule"),
        ({"schedule": Schedule.NONE}, "schedule"),
    ],
)
def test_rows_that_no_kernel_has_are_refused(change: dict[str, Any], named: str) -> None:
    config = dataclasses.replace(CONFIG, **change)
    with pytest.raises(ValueError, match=f"no kernel of attention_sm90 has such {named}"):
        config_from(config.row())


# length, batch, heads, size, causal; keys of a block and the last one, consumers, blocks, and
# whether turns are taken, of a kernel that was among the fastest on an H200; its microseconds
MEASURED = (
    (197, 32, 12, 64, False, (64, 16, 4, 1, True), 18.41),
    (197, 32, 12, 64, False, (128, 80, 2, 1, True), 19.20),
    (197, 8, 16, 64, False, (64, 16, 4, 1, True), 8.02),
    (257, 32, 12, 64, False, (96, 80, 3, 1, True), 27.32),
    (1500, 4, 12, 64, False, (112, 48, 3, 1, True), 63.62),
    (2048, 1, 32, 128, True, (128, 128, 2, 1, True), 70.93),
    (1024, 8, 16, 128, False, (128, 128, 2, 1, True), 117.39),
)


@pytest.mark.parametrize(("length", "batch", "heads", "size", "causal", "chosen", "us"), MEASURED)
def test_times_are_near_those_of_the_h200(
    length: int,
    batch: int,
    heads: int,
    size: int,
    causal: bool,
    chosen: tuple[int, int, int, int, bool],
    us: float,
) -> None:
    problem = _square(
        length,
        batch=batch,
        heads=heads,
        key_heads=heads,
        size=size,
        value_size=size,
        band=CAUSAL if causal else (),
    )
    keys, last, consumers, blocks, turns = chosen
    (config,) = (
        c
        for c in _of(problem)
        if (c.keys, c.last_keys, c.consumers, c.blocks) == (keys, last, consumers, blocks)
        and c.overlap
        and (c.schedule is Schedule.PINGPONG) == turns
    )
    assert config.family.predicted_us(problem, config, ARCH) == pytest.approx(us, rel=0.12)


def test_predictions_grow_with_the_work() -> None:
    for less, more in itertools.pairwise((40, 197, 512, 1500, 4096)):
        times = [ranked(_square(length), ARCH)[0][0] for length in (less, more)]
        assert times[0] < times[1]
    whole, band = _square(4096), _square(4096, band=CAUSAL)
    assert ranked(band, ARCH)[0][0] < 0.7 * ranked(whole, ARCH)[0][0]


@pytest.mark.parametrize("code", CODES, ids=lambda code: code.value)
def test_results_may_be_codes(code: DType) -> None:
    """Kernels are those of values, heads of multiples of 16 elements."""
    coded = dataclasses.replace(VIT, out=code, chain=(QUANTIZE[code],))
    assert _of(coded) == _of(VIT)
    assert VIT.bytes_moved - coded.bytes_moved == 32 * 197 * 12 * 64
    assert not _of(dataclasses.replace(coded, value_size=72))
    assert _of(dataclasses.replace(coded, size=72))
