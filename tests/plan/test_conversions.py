"""The convolutions that convert their output from NHWC to NCHW, chosen by predicted times."""

from __future__ import annotations

from dataclasses import replace

import pytest

from onnxbolt.archs import get
from onnxbolt.dtypes import DType
from onnxbolt.plan import conversions
from onnxbolt.plan.cost import layout_us, predict
from onnxbolt.problems import ConvProblem
from tests.support import Net, fused, ops


@pytest.mark.parametrize(("factor", "written"), [(0.5, True), (100.0, False)])
def test_a_convolution_writes_nchw_where_that_is_faster(
    monkeypatch: pytest.MonkeyPatch, factor: float, written: bool
) -> None:
    def slower(problem: ConvProblem, arch: int) -> tuple[object, float]:
        config, us = predict(problem, arch)
        return config, us * (factor if problem.y_nchw else 1.0)

    monkeypatch.setattr(conversions, "predict", slower)
    net = Net({"x": (8, 64, 32, 32)})
    assert (
        ops(fused(net.model(net.conv("x", 64, 8)), "fp16", arch=90))[-1].endswith("_to_nchw")
        is written
    )


def _both(n: int, size: int, c: int, k: int, window: int, out: DType, *chain: str) -> ConvProblem:
    padding, same = -k % 8, (window // 2,) * 4
    return ConvProblem(
        n,
        size,
        size,
        c,
        k + padding,
        window,
        window,
        size,
        size,
        same,
        (1, 1),
        (1, 1),
        1,
        DType.F16,
        out,
        ("Bias", *chain, "Store"),
        y_nchw=True,
        padding=padding,
    )


# microseconds on an H200: both forms in one kernel, and the faster of that and rows with a change
# of layout behind them
MEASURED = (
    (_both(8, 80, 64, 21, 3, DType.F32, "Relu"), 11.9, True),
    (_both(8, 80, 256, 255, 1, DType.F32), 31.2, True),
    (_both(32, 56, 64, 100, 3, DType.F16, "Relu"), 33.8, True),
    (_both(8, 80, 128, 128, 3, DType.F32, "Relu"), 36.2, False),
    (_both(32, 14, 256, 1024, 1, DType.F32, "Add", "Relu"), 24.5, False),
)


@pytest.mark.parametrize(("problem", "us", "faster"), MEASURED)
def test_predictions_of_both_forms_are_near_measurements(
    problem: ConvProblem, us: float, faster: bool
) -> None:
    predicted, rows = predict(problem, 90)[1], predict(problem.in_rows, 90)[1]
    assert 0.85 <= predicted / us <= 1.15
    moved = problem.rows * (
        problem.k * problem.dtype.bytes + (problem.k - problem.padding) * problem.out.bytes
    )
    assert (predicted < rows + layout_us(moved, get(90))) == faster


@pytest.mark.parametrize(("factor", "written"), [(0.5, True), (100.0, False)])
def test_a_convolution_writes_both_forms_where_that_is_faster(
    monkeypatch: pytest.MonkeyPatch, factor: float, written: bool
) -> None:
    def slower(problem: ConvProblem, arch: int) -> tuple[object, float]:
        config, us = predict(problem, arch)
        return config, us * (factor if problem.both_forms else 1.0)

    monkeypatch.setattr(conversions, "predict", slower)
    net = Net({"x": (8, 64, 32, 32)})
    y = net.conv("x", 64, 21, 3)
    found = ops(fused(net.model(y, net.conv(y, 21, 8, 3)), "fp16", arch=90))
    assert (
        "FusedConv_Bias_Store_CastF32_f16_pad3_to_nchw" in found,
        "NhwcToNchw_CastF32_f16_pad3" in found,
    ) == (written, not written)


def test_rows_without_padding_are_not_written_beside_planes() -> None:
    """TMA cannot store rows of 12 values of 2 bytes, and the Split's parts take no padding."""
    net = Net({"x": (8, 64, 80, 80)})
    y = net.conv("x", 64, 12, 3)
    part, other = net.several("Split", net.node("Sigmoid", y), outputs=2, axis=1)
    found = ops(fused(net.model(y, other, net.conv(part, 6, 16)), "fp16", arch=90))
    assert "FusedConv_Bias_f16" in found
    assert not any("Store" in op for op in found)


def test_descriptions_name_the_output_layouts() -> None:
    problem = ConvProblem(
        1,
        8,
        8,
        64,
        3,
        1,
        1,
        8,
        8,
        (0,) * 4,
        (1, 1),
        (1, 1),
        1,
        DType.F16,
        DType.F32,
        ("Bias",),
        y_nchw=True,
    )
    assert problem.description == "conv 1x8x8x64 to 3, 1x1, to NCHW, f16 to f32, Bias"
    both = replace(problem, k=8, chain=("Bias", "Store"), padding=5)
    assert (
        both.description == "conv 1x8x8x64 to 8, 1x1, to NHWC and NCHW of 3, f16 to f32, Bias+Store"
    )
