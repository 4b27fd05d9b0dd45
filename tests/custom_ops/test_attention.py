"""Attention kernels of mma.sync on the host, against float64: all types, masks, bands, lengths and
answers for queries without keys. Copies are done as early or as late as they may be."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator

import numpy as np
import pytest

from onnxbolt.archs import get
from onnxbolt.codegen.render import Instance
from onnxbolt.dtypes import DType
from onnxbolt.families.attention import AttentionConfig, MaskKind
from onnxbolt.graph.windows import Windows
from onnxbolt.ops.attention.found import Masked, Masking
from tests.custom_ops.host_attention import LEAST, NO_FIRST, NO_LAST, Case, HostAttention, build

LIMITS = {DType.F16: 2e-3, DType.BF16: 1.5e-2, DType.F32: 2e-3}
PLAIN, FLOATS, ELEMENTS, BOOLEANS = MaskKind
# architecture, type, queries, keys of a tile, size, value size, queries of a warp, stages, mask,
# band, elements of an access
_SHAPES = (
    (90, DType.F16, 64, 32, 16, 16, 32, 3, PLAIN, True, 8),
    (90, DType.F16, 64, 56, 32, 32, 16, 1, FLOATS, False, 8),
    (90, DType.F16, 32, 16, 48, 16, 16, 2, FLOATS, True, 1),
    (80, DType.BF16, 32, 24, 32, 48, 16, 2, ELEMENTS, True, 2),
    (80, DType.F32, 32, 16, 8, 24, 16, 1, BOOLEANS, True, 1),
    (75, DType.F16, 32, 16, 16, 32, 16, 1, BOOLEANS, True, 2),
    (75, DType.F16, 16, 64, 16, 16, 16, 2, ELEMENTS, True, 4),
    (90, DType.F16, 16, 16, 256, 256, 16, 2, BOOLEANS, False, 8),
    (86, DType.F32, 32, 40, 64, 16, 32, 3, FLOATS, False, 2),
    (90, DType.BF16, 64, 16, 128, 128, 32, 2, PLAIN, False, 4),
    # windows of images
    (90, DType.F16, 64, 56, 32, 32, 16, 1, FLOATS, False, 8, True),
    (80, DType.F32, 16, 16, 8, 24, 16, 2, PLAIN, True, 2, True),
)
SWIN = Windows(14, 28, 7, 7, 3, 4)
WINDOWS = (Windows(4, 6, 2, 3, 1, 2), Windows(3, 8, 3, 4, 0, 0), Windows(12, 5, 4, 5, 3, 0), SWIN)


def _instance(arch: int, dtype: DType, *numbers: int) -> Instance:
    queries, keys, size, value_size, rows, stages, mask, banded, access, *windows = numbers
    config = AttentionConfig(
        arch=arch,
        queries=queries,
        keys=keys,
        size=size,
        value_size=value_size,
        rows=rows,
        instruction=get(arch).mma[dtype],
        stages=stages,
        mask=MaskKind(mask),
        banded=bool(banded),
        access=access,
        windows=bool(windows),
    )
    return Instance(config.instance(), dtype, dtype)


def _changed_to(instance: Instance, **fields: object) -> Instance:
    """The same with other fields of its configuration."""
    assert isinstance(instance.config, AttentionConfig)
    config = dataclasses.replace(instance.config, **fields)  # type: ignore[arg-type]
    return dataclasses.replace(instance, config=config)


def _resident(instance: Instance) -> Instance:
    """The same, whose blocks take several batches."""
    return _changed_to(instance, resident=True)


INSTANCES = [_instance(*shape) for shape in _SHAPES]
# floats with a band, elements without asynchronous copies, elements of 128 values, windows
INSTANCES += [
    _resident(_instance(90, DType.F16, 64, 96, 48, 16, 32, 2, FLOATS, True, 8)),
    _resident(_instance(75, DType.F16, 64, 40, 16, 32, 16, 2, ELEMENTS, False, 2)),
    _resident(_instance(80, DType.BF16, 32, 64, 32, 128, 16, 2, BOOLEANS, False, 4)),
    _resident(_instance(90, DType.F16, 64, 56, 32, 32, 16, 2, FLOATS, False, 8, True)),
]
# blocks that divide the keys, more of them than tiles in some cases
DIVIDED = len(INSTANCES)
INSTANCES += [
    _changed_to(_instance(90, dtype, *shape), splits=splits)
    for splits, dtype, *shape in (
        (2, DType.F16, 64, 32, 16, 16, 32, 3, PLAIN, True, 8),
        (4, DType.F16, 64, 16, 32, 32, 16, 1, FLOATS, False, 8),
        (8, DType.F16, 32, 16, 48, 16, 16, 2, FLOATS, True, 1),
        (4, DType.BF16, 32, 24, 32, 48, 16, 2, ELEMENTS, True, 2),
        (2, DType.F32, 32, 16, 8, 24, 16, 1, BOOLEANS, True, 1),
        (8, DType.F16, 32, 8, 64, 128, 16, 3, BOOLEANS, False, 4),
        (4, DType.F16, 32, 16, 16, 256, 32, 2, PLAIN, False, 8),
    )
]


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> HostAttention:
    return build(INSTANCES, tmp_path_factory.mktemp("attention"))


def cases(instance: Instance, count: int) -> Iterator[Case]:
    """Random ones that the instance computes."""
    config, chosen = instance.config, random.Random(0)
    assert isinstance(config, AttentionConfig)
    for seed in range(count):
        rng, element = np.random.default_rng(seed), instance.dtype.numpy
        b, g, per_group = (chosen.choice(values) for values in ((1, 2, 3), (1, 2), (1, 3)))
        s, t = chosen.choice((1, 3, 16, 33, 70)), chosen.choice((1, 7, 16, 40, 65, 90))
        windows = chosen.choice(WINDOWS) if config.windows else None
        if windows is not None:
            b, s, t = b * windows.count, windows.positions, windows.positions
        period = windows.count if windows is not None else 0
        sizes = (config.size, config.value_size)
        d, e = (chosen.randrange(config.access, size + 1, config.access) for size in sizes)
        shapes = ((b, s, g * per_group, d), (b, t, g, d), (b, t, g, e))
        q, k, v = (rng.normal(0, 1, shape).astype(element) for shape in shapes)
        broadcast = [chosen.choice((1, n)) for n in (period or b, g * per_group, s, t)]
        period *= broadcast[0] > 1
        masked = chosen.choice(list(Masked))
        masking, mask = _mask(config.mask, broadcast, masked, instance.dtype, rng)
        band = _band(chosen, s, t) if config.banded else (NO_FIRST, NO_LAST, 0)
        if masking is Masking.NONE:
            period = 0
        yield Case(q, k, v, d**-0.5, masking, mask, masked, band, windows, period)


def _mask(
    kind: MaskKind, shape: list[int], masked: Masked, dtype: DType, rng: np.random.Generator
) -> tuple[Masking, np.ndarray]:
    """A mask that excludes none, some or all keys."""
    if kind is PLAIN:
        return Masking.NONE, np.zeros((1, 1, 1, 1), np.float32)
    dropped = rng.random(shape) < rng.choice([0, 0.3, 0.9, 1])
    dropped[..., rng.integers(shape[3] + 1) :] = True
    if kind is BOOLEANS:
        masking = Masking(rng.choice(["kept", "dropped"]))
        return masking, (dropped ^ (masking is Masking.KEPT)).astype(np.uint8)
    element = np.dtype(np.float32) if kind is FLOATS else dtype.numpy
    finite = -65504.0 if element == np.float16 else LEAST
    least = rng.choice([finite, -10000.0]) if masked is Masked.PLAIN else -np.inf
    return Masking.ADDED, np.where(dropped, least, rng.normal(0, 1, shape)).astype(element)


def _band(chosen: random.Random, queries: int, keys: int) -> tuple[int, int, int]:
    first = chosen.choice((NO_FIRST, -10, 2, -keys - 4))
    last = chosen.choice((NO_LAST, 0, 3, -2, keys + 5))
    return first, max(first, last), chosen.choice((0, keys - queries))


@pytest.mark.parametrize("index", range(len(INSTANCES)), ids=lambda i: f"shape{i}")
def test_answers_are_those_of_float64(kernels: HostAttention, index: int) -> None:
    instance = INSTANCES[index]
    assert isinstance(instance.config, AttentionConfig)
    for number, case in enumerate(cases(instance, 12)):
        gap = instance.config.access * (number % 3)
        y = kernels.run(index, case, eager=bool(number % 2), gap=gap)
        expected = case.expected()
        assert np.array_equal(np.isnan(y), np.isnan(expected))
        error = np.linalg.norm(np.nan_to_num(y - expected))
        assert error <= LIMITS[instance.dtype] * np.linalg.norm(np.nan_to_num(expected))


@pytest.mark.parametrize("index", [DIVIDED + 1, DIVIDED + 2], ids=lambda i: f"shape{i}")
def test_parts_without_keys_count_for_nothing(kernels: HostAttention, index: int) -> None:
    """All keys but some of the last ones are masked out, in each mode; then all."""
    rng, element = np.random.default_rng(0), np.float16
    q, k, v = (rng.normal(0, 1, (2, n, 2, 16)).astype(element) for n in (5, 90, 90))
    for masked, least in ((Masked.PLAIN, LEAST), (Masked.ZERO, -np.inf), (Masked.NAN, -np.inf)):
        mask = np.zeros((2, 1, 1, 90), np.float32)
        mask[0, ..., :83], mask[1] = least, least
        case = Case(q, k, v, 0.25, Masking.ADDED, mask, masked)
        y, expected = kernels.run(index, case), case.expected()
        assert np.array_equal(np.isnan(y), np.isnan(expected))
        assert np.allclose(y, expected, rtol=2e-3, atol=2e-3, equal_nan=True)


def _changed(**fields: object) -> Case:
    ones = np.ones((1, 4, 2, 16), np.float16)
    values: dict[str, object] = {"q": ones, "k": ones, "v": ones, "scale": 1.0, **fields}
    return Case(**values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("index", "case", "text"),
    [
        (0, _changed(q=np.ones((1, 4, 3, 16), np.float16)), "do not divide those of queries"),
        (0, _changed(scale=0.0), "not positive and finite"),
        (0, _changed(masking=Masking.KEPT), "another kind of mask"),
        (0, _changed(v=np.ones((1, 4, 2, 24), np.float16)), "not in the kernel's range"),
        (0, _changed(v=np.ones((1, 4, 2, 12), np.float16)), "not aligned to align_a"),
        (7, _changed(masking=Masking.KEPT, band=(NO_FIRST, 0, 0)), "knows no band"),
        (9, _changed(windows=Windows(2, 2, 2, 2)), "not for these windows"),
        (10, _changed(masking=Masking.ADDED), "not for these windows"),
    ],
)
def test_refusals(kernels: HostAttention, index: int, case: Case, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        kernels.run(index, case)


def test_no_keys_are_zeros(kernels: HostAttention) -> None:
    none = np.ones((1, 0, 2, 16), np.float16)
    for masked in Masked:
        y = kernels.run(0, _changed(k=none, v=none, masked=masked))
        assert np.array_equal(y, np.zeros_like(y))


def test_scores_beyond_fp16_are_right(kernels: HostAttention) -> None:
    """Products of 100,000, before the scale."""
    large = np.full((1, 4, 2, 16), 80.0, np.float16)
    v = np.arange(128, dtype=np.float16).reshape(1, 4, 2, 16)
    case = _changed(q=large, k=large, v=v, scale=16**-0.5)
    assert np.allclose(kernels.run(0, case), case.expected(), rtol=1e-3)
