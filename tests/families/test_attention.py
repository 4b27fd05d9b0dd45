"""Attention by mma.sync: which tiles are tried for a problem, what fits an SM, and what is thought
to be fast."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from onnxbolt.archs import ARCHS, get
from onnxbolt.dtypes import VALUES, DType
from onnxbolt.families import config_from, named
from onnxbolt.families.attention import AttentionConfig, MaskKind
from onnxbolt.problems import AttentionProblem

FAMILY = named("attention")
VIT = AttentionProblem(32, 12, 12, 197, 197, 64, 64, DType.F16, DType.F16)
CONFIG = AttentionConfig(
    arch=90,
    queries=64,
    keys=64,
    size=64,
    value_size=64,
    rows=16,
    instruction=(16, 8, 16),
    stages=2,
    access=8,
)


def _candidates(problem: AttentionProblem, arch: int = 90) -> list[AttentionConfig]:
    return list(FAMILY.candidates(problem, get(arch)))


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("dtype", VALUES)
@pytest.mark.parametrize("size", [1, 16, 40, 72, 100, 128, 160, 192, 255, 256])
def test_each_size_has_kernels_where_tensor_cores_have_the_type(
    arch: int, dtype: DType, size: int
) -> None:
    sizes: dict[str, Any] = {"size": size, "value_size": size, "dtype": dtype, "out": dtype}
    found = _candidates(dataclasses.replace(VIT, **sizes), arch)
    assert bool(found) == get(arch).supports(dtype)
    assert len(found) <= 24
    assert len(set(found)) == len(found)
    for config in found:
        assert config_from(config.row()) == config
        assert size <= config.size < size + 32 // dtype.bytes
        assert size % config.access == 0
        assert config.access * dtype.bytes <= 16
        assert config.threads <= 512


@pytest.mark.parametrize(
    "change",
    [{"size": 257}, {"value_size": 264}, {"out": DType.F32}, {"queries": 0}, {"keys": 0}],
)
def test_others_have_none(change: dict[str, Any]) -> None:
    assert _candidates(dataclasses.replace(VIT, **change)) == []


@pytest.mark.parametrize("keys", [1, 7, 40, 49, 64, 77])
def test_few_keys_may_be_one_tile(keys: int) -> None:
    """More keys take so many registers that few blocks fit an SM, for which they are slower."""
    found = _candidates(dataclasses.replace(VIT, queries=keys, keys=keys))
    assert any(config.stages == 1 and keys <= config.keys < keys + 8 for config in found)


def test_tiles_are_of_equal_size() -> None:
    assert {config.keys for config in _candidates(VIT)} & {112, 80, 200}


@pytest.mark.parametrize(
    ("mask", "kind"),
    [
        ((), MaskKind.NONE),
        (("kept",), MaskKind.BOOLEANS),
        (("dropped",), MaskKind.BOOLEANS),
        (("added", "f32"), MaskKind.FLOATS),
        (("added", "f16"), MaskKind.ELEMENTS),
    ],
)
def test_kernels_are_for_one_kind_of_mask(mask: tuple[str, ...], kind: MaskKind) -> None:
    shape = (32, 1, 1, 197) if mask else ()
    found = _candidates(dataclasses.replace(VIT, mask=mask, mask_shape=shape))
    assert {config.mask for config in found} == {kind}


@pytest.mark.parametrize(
    ("shape", "keys", "resident"),
    [
        ((1, 3, 49, 49), 49, {False, True}),
        ((49, 49), 49, {False, True}),
        ((32, 1, 1, 49), 49, {False}),  # each batch has its own
        ((1, 1, 512, 512), 512, {False}),
    ],
)
def test_a_mask_of_all_batches_may_stay_in_registers(
    shape: tuple[int, ...], keys: int, resident: set[bool]
) -> None:
    mask: dict[str, Any] = {"mask": ("added", "f16"), "mask_shape": shape}
    found = _candidates(dataclasses.replace(VIT, queries=keys, keys=keys, **mask))
    assert {config.resident for config in found} == resident
    assert all(config.stages == 2 and config.keys >= keys for config in found if config.resident)


def test_bands_have_kernels_of_their_own_and_cost_less() -> None:
    long = dataclasses.replace(VIT, queries=2048, keys=2048)
    banded = dataclasses.replace(long, band=(-(2**31), 0, 0))
    assert {config.banded for config in _candidates(banded)} == {True}
    assert {config.banded for config in _candidates(long)} == {False}
    fastest = [
        FAMILY.predicted_us(problem, _candidates(problem)[0], get(90)) for problem in (banded, long)
    ]
    assert fastest[0] < 0.9 * fastest[1]


def test_windows_of_images_have_kernels_of_their_own() -> None:
    swin = dataclasses.replace(VIT, batch=128, queries=49, keys=49, windows=(56, 56, 7, 7, 3, 3))
    assert {config.windows for config in _candidates(swin)} == {True}
    assert {config.windows for config in _candidates(VIT)} == {False}


DETR = AttentionProblem(1, 8, 8, 100, 850, 32, 32, DType.F16, DType.F16)  # cross attention


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"queries": 1, "keys": 4096, "heads": 12, "key_heads": 2, "size": 128},
        {"mask": ("kept",), "mask_shape": (1, 1, 1, 850)},
        {"band": (-(2**31), 0, 750)},
        {"dtype": DType.F32, "out": DType.F32},
    ],
    ids=str,
)
def test_blocks_divide_long_keys_of_few_queries(change: dict[str, Any]) -> None:
    problem = dataclasses.replace(DETR, **change)
    found = _candidates(problem)
    assert found[0].splits > 1
    for config in found:
        assert config_from(config.row()) == config
        assert (config.splits - 1) * config.keys < problem.keys
    assert {config.splits for config in _candidates(problem, 80)} <= {1}


@pytest.mark.parametrize(
    "change",
    [
        {"batch": 32},
        {"keys": 16},
        {"queries": 4096},
        {"queries": 49, "keys": 49, "windows": (56, 56, 7, 7, 3, 3)},
    ],
    ids=str,
)
def test_blocks_with_enough_work_divide_nothing(change: dict[str, Any]) -> None:
    assert {config.splits for config in _candidates(dataclasses.replace(DETR, **change))} == {1}


def test_architectures_without_asynchronous_copies_have_at_most_two_stages() -> None:
    assert {config.stages for config in _candidates(VIT, 75)} <= {1, 2}
    assert {config.instruction for config in _candidates(VIT, 75)} == {(16, 8, 8)}


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"queries": 40}, "queries"),
        ({"queries": 512, "rows": 16}, "queries"),
        ({"keys": 20}, "keys"),
        ({"rows": 48}, "rows"),
        ({"stages": 0}, "stages"),
        ({"resident": True}, "resident"),
        ({"resident": True, "mask": MaskKind.FLOATS, "stages": 1}, "resident"),
        ({"splits": 3}, "splits"),
        ({"splits": 16}, "splits"),
        ({"splits": 2, "arch": 80}, "splits"),
        ({"splits": 2, "windows": True}, "splits"),
        ({"splits": 2, "resident": True, "mask": MaskKind.FLOATS}, "splits"),
        ({"size": 0}, "size"),
        ({"access": 3}, "access"),
    ],
)
def test_rows_that_no_kernel_has_are_refused(change: dict[str, Any], name: str) -> None:
    config = dataclasses.replace(CONFIG, **change)
    with pytest.raises(ValueError, match=f"no kernel of attention has such {name}"):
        config_from(config.row())


def test_blocks_of_several_batches_have_the_registers_that_their_launch_leaves() -> None:
    """512 threads of an SM with 16 queries to a warp, or 256 with 32."""
    biased: dict[str, Any] = {"mask": ("added", "f16"), "mask_shape": (1, 12, 49, 49)}
    swin = dataclasses.replace(VIT, queries=49, keys=49, size=32, value_size=32, **biased)
    wide = dataclasses.replace(swin, size=160, value_size=160)
    assert any(config.resident for config in _candidates(swin) if config.rows == 16)
    assert not any(config.resident for config in _candidates(wide) if config.rows == 16)


def test_no_warp_loads_all_keys_alone_for_16_queries() -> None:
    for length in (1, 16, 40, 197):
        found = _candidates(dataclasses.replace(VIT, queries=length, keys=length))
        assert {config.threads for config in found if config.rows == 16}.isdisjoint({32})


@pytest.mark.parametrize(
    ("problem", "queries", "rows", "keys", "us"),
    [
        (
            {"queries": 40, "keys": 40, "mask": ("kept",), "mask_shape": (32, 1, 1, 40)},
            64,
            16,
            40,
            5.83,
        ),
        (
            {"queries": 77, "keys": 77, "heads": 8, "key_heads": 8, "band": (-(2**31), 0, 0)},
            96,
            32,
            80,
            7.18,
        ),
    ],
)
def test_times_are_near_those_of_the_h200(
    problem: dict[str, Any], queries: int, rows: int, keys: int, us: float
) -> None:
    found = dataclasses.replace(VIT, **problem)
    config = next(
        c
        for c in _candidates(found)
        if (c.queries, c.rows, c.keys, c.stages) == (queries, rows, keys, 1)
    )
    assert FAMILY.predicted_us(found, config, get(90)) == pytest.approx(us, rel=0.2)


def test_predictions_grow_with_the_work() -> None:
    problems = [dataclasses.replace(VIT, batch=batch) for batch in (1, 8, 32, 128)]
    times = [FAMILY.predicted_us(problem, CONFIG, get(90)) for problem in problems]
    assert times == sorted(times)
    assert times[0] < times[-1]
