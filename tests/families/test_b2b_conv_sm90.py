"""A convolution and 1x1 convolutions behind it in one kernel: which family serves what, and that
candidates fit an SM."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from onnxbolt.archs import get
from onnxbolt.dtypes import DType
from onnxbolt.families import b2b_conv_sm90, candidates, named
from onnxbolt.families.base import Family, Schedule
from onnxbolt.families.blocks import staging, stem
from onnxbolt.problems import ConvProblem

FAMILY, STEM_FAMILY = named("b2b_conv_sm90"), named("b2b_stem_sm90")
CHAIN = ("Bias", "Relu", "Gemm", "Bias", "Relu")
BLOCK = ConvProblem(
    32,
    56,
    56,
    64,
    64,
    3,
    3,
    56,
    56,
    (1, 1, 1, 1),
    (1, 1),
    (1, 1),
    1,
    DType.F16,
    DType.F16,
    CHAIN,
    inner=(64,),
)
STEM = dataclasses.replace(BLOCK, h=224, w=224, c=3, p=112, q=112, strides=(2, 2), nchw=True)


def changed(problem: ConvProblem, **changes: Any) -> ConvProblem:
    return dataclasses.replace(problem, **changes)


def families(problem: ConvProblem) -> set[Family[Any]]:
    return {config.family for config in candidates(problem, get(90))}


def test_a_block_that_reads_nchw_has_the_stem_family() -> None:
    assert families(STEM) == {STEM_FAMILY}
    assert FAMILY in families(BLOCK) - {STEM_FAMILY}


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": DType.F32, "out": DType.F32},
        {"c": 13},
        {"k": 60},
        {"inner": (264,)},
        {"groups": 64},
        {"inner": (64,) * 4, "chain": ("Bias", *("Gemm", "Bias") * 4)},
    ],
)
def test_problems_without_a_kernel(change: dict[str, Any]) -> None:
    assert not FAMILY.candidates(changed(BLOCK, **change), get(90))


@pytest.mark.parametrize(
    "change",
    [
        {"inner": (64, 64), "chain": (*CHAIN, "Gemm", "Bias")},
        {"k": 136},
        {"k": 60},
        {"c": 5},
        {"chain": (*CHAIN[:-1], "Add")},
        {"dilations": (2, 2)},
    ],
)
def test_stem_problems_without_a_kernel(change: dict[str, Any]) -> None:
    assert not STEM_FAMILY.candidates(changed(STEM, **change), get(90))


@pytest.mark.parametrize("number", [75, 80, 86, 89])
def test_older_architectures_have_b2b_conv_2x_and_nothing_for_a_stem(
    number: int,
) -> None:
    assert {config.family for config in candidates(BLOCK, get(number))} == {named("b2b_conv_2x")}
    assert not candidates(STEM, get(number))


@pytest.mark.parametrize(
    "widths", [(16, 16), (64, 256), (96, 96), (192, 192), (128, 64, 256), (24, 40, 8, 16)]
)
@pytest.mark.parametrize("c", [8, 48, 64, 96, 512])
@pytest.mark.parametrize("residual", [(), ("Add",)])
def test_candidates_fit(widths: tuple[int, ...], c: int, residual: tuple[str, ...]) -> None:
    chain = (*("Bias", "Relu", "Gemm") * (len(widths) - 1), "Bias", *residual, "Relu")
    problem = changed(BLOCK, c=c, k=widths[-1], inner=widths[:-1], chain=chain)
    found = FAMILY.candidates(problem, get(90))
    assert found
    for config in found:
        assert all(
            n >= width and n % 16 == 0 for n, width in zip(config.widths, widths, strict=True)
        )
        rows, inner, k = config.rows, config.columns, config.k
        ring = config.stages * (rows + (0 if config.resident else inner)) * k
        weights = 9 * -(-c // k) * k * inner if config.resident else 0
        assert (
            2 * (ring + weights) + b2b_conv_sm90.fixed_bytes(config, problem)
            <= get(90).shared_memory_per_block
        )
        # the producer's
        assert (
            b2b_conv_sm90.registers(config)
            <= get(90).registers_per_sm // (128 * config.consumers + 128) // 8 * 8 + 72
        )
        assert rows // 64 % (1 if config.schedule is Schedule.PINGPONG else config.consumers) == 0


@pytest.mark.parametrize(
    ("inner", "k", "stages"), [((192,), 192, 3), ((256,), 64, 1), ((64,), 256, 0), ((96,), 96, 2)]
)
def test_weights_that_do_not_stay_pass_behind_a_tile(
    inner: tuple[int], k: int, stages: int
) -> None:
    problem = changed(BLOCK, inner=inner, k=k)
    found = [config for config in FAMILY.candidates(problem, get(90)) if not config.resident]
    assert found
    for config in found:
        assert b2b_conv_sm90.stages_behind(config, problem.dtype.bytes) == stages < config.stages


def test_48_channels_come_in_one_copy_or_in_three() -> None:
    assert {config.k for config in FAMILY.candidates(changed(BLOCK, c=48), get(90))} == {48, 64}


@pytest.mark.parametrize("widths", [(16, 16), (48, 48), (64, 64), (24, 128), (96, 64)])
@pytest.mark.parametrize("size", [3, 7])
def test_stem_candidates_fit(widths: tuple[int, int], size: int) -> None:
    found = STEM_FAMILY.candidates(
        changed(STEM, r=size, s=size, inner=widths[:1], k=widths[1]), get(90)
    )
    assert found
    for config in found:
        inner, columns = config.columns, config.later_columns
        assert (inner, columns) >= widths
        assert (config.filter, config.strides) == ((size, size, 3), (2, 2))
        assert (
            stem.shared_memory(config, columns) + 2 * inner * columns
            <= get(90).shared_memory_per_block
        )
        assert (
            128 * config.consumers * stem.registers(config, inner // 4 + columns // 2)
            <= get(90).registers_per_sm
        )


def test_a_residual_has_a_buffer_for_each_of_up_to_four_units_of_a_warpgroup() -> None:
    """128 rows of 48 columns are two units; 64 rows are one, which two buffers serve."""
    narrow = changed(BLOCK, c=48, k=48, inner=(48,), chain=(*CHAIN[:-1], "Add"))
    plain = changed(narrow, chain=CHAIN[:-1])
    configs = FAMILY.candidates(narrow, get(90))
    extra = {
        config.rows // (config.consumers if config.schedule is Schedule.COOPERATIVE else 1): (
            (b2b_conv_sm90.fixed_bytes(config, narrow) - b2b_conv_sm90.fixed_bytes(config, plain))
            // config.consumers
        )
        for config in configs
    }
    assert extra == {64: 0, 128: 2 * 64 * 48 * 2}


@pytest.mark.parametrize(
    ("columns", "out", "residual", "stored"),
    [
        (48, DType.F16, False, 48),
        (80, DType.BF16, False, 80),
        (96, DType.F16, False, 32),
        (96, DType.F16, True, 48),
        (112, DType.F16, True, 112),
        (160, DType.F16, False, 32),
        (160, DType.F16, True, 80),
        (64, DType.F16, True, 64),
        (32, DType.F16, True, 32),
        (16, DType.F16, True, 16),
        (48, DType.F32, False, 16),
        (256, DType.F16, True, 64),
        (40, DType.F16, False, 40),
    ],
)
def test_short_rows_are_stored_whole_where_at_most_two_share_a_bank(
    columns: int, out: DType, residual: bool, stored: int
) -> None:
    """As StoredColumns of custom_ops/sm90/tensor_map.h."""
    assert staging.stored_columns(columns, out, residual) == stored
