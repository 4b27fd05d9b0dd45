"""Attention on sm_90a: which problems it serves, and by which kernels."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest

from onnxbolt.archs import get
from onnxbolt.dtypes import DType
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


def test_predictions_grow_with_the_work() -> None:
    for less, more in itertools.pairwise((40, 197, 512, 1500, 4096)):
        times = [ranked(_square(length), ARCH)[0][0] for length in (less, more)]
        assert times[0] < times[1]
    whole, band = _square(4096), _square(4096, band=CAUSAL)
    assert ranked(band, ARCH)[0][0] < 0.7 * ranked(whole, ARCH)[0][0]
