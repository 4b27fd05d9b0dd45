"""Candidates of our own sm_90a kernels: what TMA and shared memory allow, block sizes, splits of
k."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest

from onnxbolt.archs import ARCHS, Arch, get
from onnxbolt.dtypes import DType
from onnxbolt.families import Family, named
from onnxbolt.families.base import Schedule
from onnxbolt.families.blocks import sm90
from onnxbolt.problems import UNBOUNDED, ConvProblem, GemmProblem, Product

HOPPER = get(90)
GEMM = GemmProblem(1280, 768, 3072, DType.F16, DType.F16, ("Bias", "GeluErf"))
CONV = ConvProblem(
    32,
    28,
    28,
    128,
    128,
    3,
    3,
    28,
    28,
    (1, 1, 1, 1),
    (1, 1),
    (1, 1),
    1,
    DType.F16,
    DType.F16,
    ("Bias", "Relu"),
)
SMALL = dataclasses.replace(CONV, h=14, w=14, p=14, q=14, c=256, k=256)  # 6272 pixels
PROBLEMS = (
    GEMM,
    CONV,
    dataclasses.replace(GEMM, dtype=DType.F32, out=DType.F32),
    dataclasses.replace(CONV, dtype=DType.BF16, out=DType.F32),
    dataclasses.replace(CONV, chain=("Bias", "Add", "Relu")),
    dataclasses.replace(CONV, c=48, k=48),
    SMALL,
    GemmProblem(1, 8, 8, DType.F16, DType.F16, ()),
)


def family(problem: Product) -> Family[Any]:
    return named("conv_sm90" if isinstance(problem, ConvProblem) else "gemm_sm90")


def candidates(problem: Product, arch: Arch = HOPPER) -> Sequence[Any]:
    return family(problem).candidates(problem, arch)


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: type(problem).__name__)
def test_candidates_fit_are_distinct_and_serve_every_m(problem: Product) -> None:
    found = candidates(problem)
    assert found
    assert len(set(found)) == len(found)
    for config in found:
        assert (config.family, config.min_m, config.max_m) == (family(problem), 0, UNBOUNDED)
        assert sm90.fits(config, problem, HOPPER)
        assert config.group_rows % 64 == 0


@pytest.mark.parametrize("number", ARCHS)
def test_only_hopper_has_wgmma(number: int) -> None:
    assert family(CONV).runs_on(get(number)) == family(GEMM).runs_on(get(number)) == (number == 90)


@pytest.mark.parametrize(
    "change",
    [
        {"c": 12},
        {"k": 100},
        {"c": 4, "dtype": DType.F16},
        {"dtype": DType.F32, "k": 4, "out": DType.F16},
        {"groups": 32},
        {"strides": (9, 1)},
        {"pads": (0, 129, 0, 0)},
        {"r": 3, "dilations": (130, 1)},
        {"s": 300},
    ],
)
def test_what_tma_cannot_read_or_write_has_no_candidates(change: dict[str, Any]) -> None:
    assert candidates(dataclasses.replace(CONV, **change)) == ()


@pytest.mark.parametrize(
    "change",
    [{"c": 8}, {"strides": (8, 8)}, {"pads": (0, 128, 0, 0), "s": 129}, {"dilations": (60, 60)}],
)
def test_problems_at_the_limits_of_tma_have_candidates(change: dict[str, Any]) -> None:
    assert candidates(dataclasses.replace(CONV, **change))


def test_one_pixel_filters_are_matrices_where_every_pixel_counts() -> None:
    pointwise = dataclasses.replace(CONV, r=1, s=1, pads=(0, 0, 0, 0))
    assert pointwise.is_matrix
    assert not dataclasses.replace(pointwise, strides=(2, 2)).is_matrix
    assert not dataclasses.replace(pointwise, pads=(1, 1, 1, 1)).is_matrix
    # a matrix has no limits of im2col
    assert candidates(dataclasses.replace(pointwise, dilations=(500, 500)))


@pytest.mark.parametrize(
    ("channels", "dtype", "expected"),
    [
        (64, DType.F16, 64),
        (128, DType.F16, 64),
        (48, DType.F16, 48),
        (96, DType.F16, 48),
        (16, DType.F16, 16),
        (8, DType.F16, 16),
        (24, DType.F16, 32),
        (64, DType.F32, 32),
        (16, DType.F32, 16),
        (4, DType.F32, 8),
    ],
)
def test_k_blocks_waste_least(channels: int, dtype: DType, expected: int) -> None:
    assert sm90.k_block(channels, dtype) == expected


@pytest.mark.parametrize(
    ("channels", "dtype", "expected"),
    [
        (64, DType.F16, (64,)),
        (16, DType.F16, (16,)),
        (24, DType.F16, (32,)),
        (80, DType.F16, (16, 64)),
        (48, DType.F16, (48, 64)),
        (672, DType.F16, (48, 64)),
        (160, DType.F16, (32, 64)),
        (40, DType.F32, (8, 32)),
    ],
)
def test_wide_k_blocks_are_tried_where_they_take_fewer_copies(
    channels: int, dtype: DType, expected: tuple[int, ...]
) -> None:
    pointwise = dataclasses.replace(
        CONV, c=channels, r=1, s=1, pads=(0, 0, 0, 0), dtype=dtype, out=dtype
    )
    assert sm90._block_depths(pointwise) == expected
    found = {c.k for c in candidates(pointwise)}
    assert set(expected) <= found <= {depth * deep for depth in expected for deep in (1, 2)}
    grouped = dataclasses.replace(pointwise, c=4 * channels, k=256, groups=4)
    assert {c.k for c in candidates(grouped)} <= {
        expected[0],
        2 * expected[0],
    }


@pytest.mark.parametrize("columns", [8, 24, 48, 64, 72, 128, 192, 256, 1000, 3072])
def test_tiles_waste_at_most_a_quarter_of_their_columns_or_are_the_narrowest(columns: int) -> None:
    found = {c.columns for c in candidates(dataclasses.replace(CONV, k=columns))}
    wasteful = {width for width in found if -(-columns // width) * width * 0.75 > columns}
    assert len(wasteful) <= 1
    assert all(width == min(w for w in found if w >= columns) for width in wasteful)


def test_k_is_split_where_tiles_leave_sms_idle() -> None:
    split = [c for c in candidates(GEMM) if c.split_k > 1]
    assert split
    for config in split:
        assert config.schedule is Schedule.COOPERATIVE
        assert sm90.tiles(config, GEMM) * config.split_k <= HOPPER.sm_count
        pieces = sm90.units(config, GEMM)
        assert pieces % config.split_k == 0 or config.split_k % pieces == 0
    assert not [c for c in candidates(dataclasses.replace(GEMM, m=100_000)) if c.split_k > 1]


@pytest.mark.parametrize("pieces", range(1, 17))
@pytest.mark.parametrize("split", [2, 4, 8])
def test_each_unit_has_an_owner_with_a_slot_for_every_sender(pieces: int, split: int) -> None:
    """The arithmetic of custom_ops/sm90/split_k.h, for all splits that a kernel may be launched
    with."""
    if pieces % split and split % pieces:
        return
    taken: set[tuple[int, int]] = set()
    for unit in range(pieces):
        owner = unit * split // pieces
        first = (owner * pieces + split - 1) // split
        slots = {(owner, (unit - first) * split + sender) for sender in range(split)}
        assert 0 <= owner < split
        assert not slots & taken
        assert all(0 <= slot < max(pieces, split) for _, slot in slots)
        taken |= slots


def test_k_is_not_split_where_a_residual_has_fewer_buffers_than_units() -> None:
    residual = dataclasses.replace(GEMM, dtype=DType.F32, out=DType.F32, chain=("Bias", "Add"))
    for config in (c for c in candidates(residual) if c.split_k > 1):
        assert sm90.units(config, residual) // config.consumers <= 4


def test_resident_weights_need_room_and_several_tiles_for_a_block() -> None:
    def resident(problem: ConvProblem) -> bool:
        return any(c.resident for c in candidates(problem))

    assert resident(dataclasses.replace(CONV, h=56, w=56, p=56, q=56, c=64, k=64))
    assert not resident(dataclasses.replace(CONV, h=56, w=56, p=56, q=56, c=512, k=64))
    assert not resident(dataclasses.replace(CONV, n=1, c=64, k=64))


def test_swapped_products_divide_few_tiles_evenly() -> None:
    """6272 x 256 results are 98 tiles of 128 x 128; of 96 x 128 each SM has one."""
    (swapped,) = [config for config in candidates(SMALL) if config.swapped]
    assert (swapped.rows, swapped.columns) == (96, 128)
    assert swapped.product == (128, 96)
    assert sm90.tiles(swapped, SMALL) == HOPPER.sm_count
    assert sm90.splits(swapped, SMALL, HOPPER) == []


@pytest.mark.parametrize(
    "change",
    [{"chain": ("Bias", "Add")}, {"out": DType.F32}, {"k": 64}, {"n": 1}, {"n": 512}],
    ids=str,
)
def test_products_are_swapped_where_that_helps_and_stmatrix_can_transpose(
    change: dict[str, Any],
) -> None:
    assert not [
        config for config in candidates(dataclasses.replace(SMALL, **change)) if config.swapped
    ]
