"""Kernels of products of codes: which there are, and what their configurations say."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from onnxbolt.archs import ARCHS, get
from onnxbolt.codegen.render import Instance
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import QUANTIZE
from onnxbolt.families import config_from, named
from onnxbolt.families.blocks import sm90
from onnxbolt.families.blocks.codes import CodesConfig, Offsets, PartialSums
from onnxbolt.families.blocks.sm90 import Sm90Config
from onnxbolt.families.blocks.staging import loads_residual
from onnxbolt.problems import GemmProblem, QuantizedConvProblem, QuantizedGemmProblem

GEMM, CONV = named("quantized_gemm_sm90"), named("quantized_conv_sm90")
BASE = QuantizedGemmProblem(
    6304, 768, 768, DType.I8, DType.I8, ("Dequantize", "Bias", "Relu", "QuantizeI8")
)
IMAGE = QuantizedConvProblem(
    *(32, 28, 28, 128, 256, 3, 3, 28, 28, (1, 1, 1, 1), (1, 1), (1, 1), 1),
    *(DType.U8, DType.U8, ("Dequantize", "Bias", "QuantizeU8")),
)


def _gemms(**changes: object) -> list[CodesConfig]:
    return list(GEMM.candidates(replace(BASE, **changes), get(90)))  # type: ignore[arg-type]


def _convs(**changes: object) -> list[CodesConfig]:
    return list(CONV.candidates(replace(IMAGE, **changes), get(90)))  # type: ignore[arg-type]


def test_they_run_on_hopper_alone() -> None:
    for family in (GEMM, CONV):
        assert [arch.number for arch in ARCHS.values() if family.runs_on(arch)] == [90]


def test_tiles_have_whole_groups_of_16_columns_and_are_not_swapped() -> None:
    """A block's share of a cluster's weights has, too, where results have 8 bits."""
    codes, values = [*_gemms(), *_gemms(n=208), *_convs()], _gemms(n=40, out=DType.F16)
    assert all(config.columns // config.cluster[0] % 16 == 0 for config in codes)
    found = [*codes, *values]
    assert all(config.columns % 16 == 0 for config in found)
    assert {config.columns for config in values} == {48}
    assert not any(config.swapped for config in found)
    numbers = [*replace(found[0], swapped=True).row()]
    with pytest.raises(ValueError, match="swapped tiles"):
        config_from(numbers)


@pytest.mark.parametrize(
    ("out", "columns", "access"),
    [(DType.I8, 16, 16), (DType.F16, 8, 8), (DType.F32, 4, 4), (DType.BF16, 1000, 8)],
)
def test_results_have_rows_of_16_bytes(out: DType, columns: int, access: int) -> None:
    found = _gemms(n=columns, out=out, chain=("Dequantize", "Bias"))
    assert {config.access_out for config in found} == {access}
    assert _gemms(n=columns + access // 2, out=out, chain=("Dequantize", "Bias")) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"k": 24},
        {"n": 24},
        {"chain": ("Dequantize", "AddCodesI8", "AddCodesI8", "QuantizeI8")},
    ],
)
def test_other_gemms_have_none(changes: dict[str, object]) -> None:
    assert _gemms(**changes) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"groups": 2},
        {"groups": 128, "k": 128},
        {"c": 24},
        {"strides": (9, 1)},
        {"pads": (129, 1, 1, 1)},
    ],
)
def test_other_convolutions_have_none(changes: dict[str, object]) -> None:
    assert _convs(**changes) == []


def test_two_tensors_are_read_where_results_are_values() -> None:
    chain = ("Dequantize", "AddCodesI8", "AddCodesI8")
    assert _gemms(chain=chain, out=DType.F16)


def test_codes_of_a_residual_are_staged_where_values_are_stored_beside_the_result() -> None:
    """Only values that are added do not come by TMA."""
    chain = ("Dequantize", "Bias", "AddCodesI8", "Relu", "QuantizeI8")
    config = replace(_gemms(chain=chain)[0].instance(), rows=128, columns=256)
    stored, added = (*chain[:-1], "StoreF32", chain[-1]), ("Dequantize", "Bias", "AddF32", "Relu")
    instances = [
        Instance(config, DType.I8, DType.I8, each) for each in (chain, stored, (*added, chain[-1]))
    ]
    codes_alone, beside, values = map(GEMM.shared_memory, instances)
    assert codes_alone == beside
    assert [loads_residual(each) for each in instances] == [True, True, False]
    assert values != codes_alone


def test_offsets_follow_from_the_zero_point_and_the_padding() -> None:
    assert {config.offsets for config in _gemms()} == {Offsets.NONE}
    assert {config.offsets for config in _gemms(offsets=True)} == {Offsets.BY_COLUMN}
    assert {config.offsets for config in _convs()} == {Offsets.NONE}
    assert {config.offsets for config in _convs(offsets=True)} == {Offsets.BY_COLUMN}
    both = _convs(offsets=True, border=True)
    assert {config.offsets for config in both} == {Offsets.BY_PIXEL}
    assert config_from(both[0].row()) == both[0]


def test_sums_of_floats_are_added_in_fp32_every_128() -> None:
    floats = {"dtype": DType.E4M3, "out": DType.E4M3}
    found = _gemms(**floats)
    assert all(config.partial_sums and config.k <= 128 for config in found)
    assert all(
        2 * sm90.accumulators(config) <= sm90.MAX_ACCUMULATORS[config.consumers] for config in found
    )
    assert not any(config.partial_sums for config in _gemms(**floats, k=128) if config.k <= 128)
    assert not any(config.partial_sums for config in _gemms())


def test_kernels_that_have_the_registers_have_two_sets_of_partial_sums() -> None:
    floats = {"dtype": DType.E4M3, "out": DType.E4M3}
    found = _gemms(**floats)
    two = [config for config in found if config.partial_sums is PartialSums.TWO]
    assert max(sm90.accumulators(config) for config in two) == 64
    assert max(sm90.accumulators(each) for each in two if each.cluster != (1, 1)) == 48
    assert not any(config.consumers == 3 for config in two)
    assert {config.consumers for config in found if config not in two} <= {2, 3}
    residual = ("Dequantize", "AddCodesE4M3", "QuantizeE4M3")
    images = _convs(**floats, chain=residual)
    assert all(
        sm90.accumulators(config) <= 48
        for config in images
        if config.partial_sums is PartialSums.TWO
    )


@pytest.mark.parametrize(
    ("size", "dtype", "activation", "measured"),
    [
        ((6304, 2304, 768), DType.I8, "Relu", 19.27),
        ((1280, 768, 3072), DType.I8, "Relu", 6.96),
        ((6304, 3072, 768), DType.I8, "GeluErf", 32.64),
        ((1280, 3072, 768), DType.I8, "GeluErf", 9.1),
    ],
)
def test_predictions_are_near_what_an_h200_takes(
    size: tuple[int, int, int], dtype: DType, activation: str, measured: float
) -> None:
    chain = ("Dequantize", "Bias", activation, QUANTIZE[dtype])
    problem, arch = QuantizedGemmProblem(*size, dtype, dtype, chain), get(90)
    found = GEMM.candidates(problem, arch)
    predicted = min(GEMM.predicted_us(problem, config, arch) for config in found)
    assert predicted == pytest.approx(measured, rel=0.2)


@pytest.mark.parametrize(
    ("size", "activation", "measured"),
    [
        ((6304, 2304, 768), "Relu", 22.03),
        ((16384, 4096, 1024), "Relu", 129.58),
        ((16384, 1024, 4096), "Relu", 111.16),
        ((6304, 3072, 768), "GeluErf", 39.5),
    ],
)
def test_predictions_of_two_sets_of_partial_sums_are_near_an_h200s(
    size: tuple[int, int, int], activation: str, measured: float
) -> None:
    chain, arch = ("Dequantize", "Bias", activation, "QuantizeE4M3"), get(90)
    problem = QuantizedGemmProblem(*size, DType.E4M3, DType.E4M3, chain)
    found = GEMM.candidates(problem, arch)
    predicted = min(GEMM.predicted_us(problem, config, arch) for config in found)
    assert predicted == pytest.approx(measured, rel=0.2)


@pytest.mark.parametrize(
    ("image", "channels", "steps", "measured"),
    [
        (28, (128, 512), ("Bias",), 7.75),
        (56, (64, 256), ("Bias",), 13.56),
        (56, (64, 256), ("Bias", "AddCodesI8", "Relu"), 19.98),
        (14, (256, 1024), ("Bias", "AddCodesI8", "Relu"), 8.32),
    ],
)
def test_predictions_of_convolutions_are_near_an_h200s(
    image: int, channels: tuple[int, int], steps: tuple[str, ...], measured: float
) -> None:
    """ResNet-50's at batch 32 whose epilogues are most of their time."""
    sizes = {"h": image, "w": image, "p": image, "q": image, "r": 1, "s": 1, "pads": (0,) * 4}
    c, k = channels
    types = {"dtype": DType.I8, "out": DType.I8, "c": c, "k": k}
    chain = ("Dequantize", *steps, "QuantizeI8")
    problem = replace(IMAGE, **sizes, **types, chain=chain)  # type: ignore[arg-type]
    found = CONV.candidates(problem, get(90))
    predicted = min(CONV.predicted_us(problem, config, get(90)) for config in found)
    assert predicted == pytest.approx(measured, rel=0.2)


def test_large_resident_weights_leave_fewer_stages() -> None:
    """Those of K = 1024 leave two warpgroups six stages, and three have no room for them. Tiles
    that hold a whole ring keep it, and values of 16 bits, which have not been measured, too."""
    floats = {"dtype": DType.E4M3, "out": DType.E4M3, "m": 16384, "n": 4096}

    def rings(configs: Iterable[Sm90Config]) -> set[tuple[int, int, int]]:
        return {(each.rows, each.consumers, each.stages) for each in configs if each.resident}

    assert {(64, 2, 8), (64, 3, 8)} <= rings(_gemms(**floats, k=768))
    assert rings(each for each in _gemms(**floats, k=1024) if each.columns == 128) == {(64, 2, 6)}
    assert not any(stages == 6 for _, _, stages in rings(_gemms(**floats, k=768)))
    half = GemmProblem(16384, 4096, 512, DType.F16, DType.F16, ("Bias", "Relu"))
    values = named("gemm_sm90").candidates(half, get(90))
    assert not any(stages == 6 for _, _, stages in rings(values))


def test_codes_are_predicted_to_be_faster_than_values_of_16_bits() -> None:
    arch, half = get(90), named("gemm_sm90")
    ours = min(GEMM.predicted_us(BASE, config, arch) for config in _gemms())
    values = GemmProblem(6304, 768, 768, DType.F16, DType.F16, ("Bias", "Relu"))
    theirs = min(half.predicted_us(values, c, arch) for c in half.candidates(values, arch))
    assert 1.2 < theirs / ours < 2.2
