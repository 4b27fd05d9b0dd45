"""Normalizations of groups of channels: exporters' forms, vectors of each image, epilogues,
refusals, bodies in plain ONNX Runtime, verification."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onnxbolt
from onnxbolt import Report
from onnxbolt.domains import CONTRIB
from onnxbolt.families import named
from onnxbolt.inspection import inspect_model
from tests.support import Net, planned, run

N, C, SIDE, GROUPS = 2, 48, 6, 8
SHAPE = (N, C, SIDE, SIDE)
SAME = [1, 1, 1, 1]
Build = Callable[[Net, str], str]


@pytest.fixture(autouse=True)
def _planned() -> Iterator[None]:
    with planned(named("group_norm")):
        yield


def _net(build: Build, opset: int, batch: int | str = N, side: int | str = SIDE) -> onnx.ModelProto:
    """`build` between two convolutions, with a vector of each image besides."""
    net = Net({"x": (batch, 16, side, side), "t": (batch, C, 1, 1), "u": (batch, C, 1, 1)}, opset)
    y = build(net, net.conv("x", 16, C, 3, pads=SAME))
    return net.model(net.conv(y, C, 16, 3, pads=SAME))


def _optimized(out: Path, source: onnx.ModelProto, precision: str = "fp16") -> Report:
    return onnxbolt.optimize(
        source, out, archs="sm_90a", precision=precision, fuse="all", library=False
    )


def _run(model: Path | onnx.ModelProto) -> np.ndarray:
    rng = np.random.default_rng(0)
    feeds = {"x": rng.normal(3, 2, (N, 16, SIDE, SIDE)).astype(np.float32)}
    feeds |= {name: rng.normal(0, 1, (N, C, 1, 1)).astype(np.float32) for name in "tu"}
    return run(model, feeds)[0]


def _rules(report: Report) -> list[str]:
    return [node.rule for node in report.fused if node.rule.startswith("group_norm")]


def _columns(net: Net) -> str:
    return net.const(np.random.default_rng(5).normal(0.5, 1, (C, 1, 1)).astype(np.float32))


def _group(net: Net, x: str) -> str:
    size = C if net.opset >= 21 else GROUPS
    factors = net.normal(size), net.normal(size)
    return net.node("GroupNormalization", x, *factors, num_groups=GROUPS, epsilon=1e-3)


def _instance(net: Net, x: str) -> str:
    return net.node("InstanceNormalization", x, net.normal(C), net.normal(C), epsilon=1e-3)


def _reshaped(net: Net, x: str) -> str:
    """As TorchScript and dynamo decompose it below opset 21; the shape is computed."""
    one, zero = (net.const(np.full(GROUPS, v, np.float32)) for v in (1, 0))
    shape = net.node("Shape", x)
    y = net.node("Reshape", x, net.const([0, GROUPS, -1], np.int64))
    y = net.node("InstanceNormalization", y, one, zero, epsilon=1e-3)
    y = net.node("Reshape", y, shape)
    return net.node("Add", net.node("Mul", y, _columns(net)), _columns(net))


def _reshaped_alone(net: Net, x: str) -> str:
    """With factors of groups, and without those of channels."""
    y = net.node("Reshape", x, net.const([0, GROUPS, -1], np.int64))
    y = net.node("InstanceNormalization", y, net.normal(GROUPS), net.normal(GROUPS))
    return net.node("Reshape", y, net.const([0, C, SIDE, SIDE], np.int64))


def _layer(net: Net, x: str) -> str:
    factors = (
        net.const(
            np.broadcast_to(np.random.default_rng(i).normal(0, 1, (C, 1, 1)), (C, SIDE, SIDE))
            .astype(np.float32)
            .copy()
        )
        for i in (0, 1)
    )
    return net.node("LayerNormalization", x, *factors, axis=1, epsilon=1e-3)


def _silu(net: Net, x: str) -> str:
    y = _group(net, x)
    return net.node("Mul", y, net.node("Sigmoid", y))


def _leaky(net: Net, x: str) -> str:
    return net.node("LeakyRelu", _instance(net, x), alpha=0.1)


def _residual(net: Net, x: str) -> str:
    return net.node("Add", net.node("Relu", _group(net, x)), x)


def _before(net: Net, x: str) -> str:
    return _silu(net, net.node("Add", x, "t"))


def _modulated(net: Net, x: str) -> str:
    scale = net.node("Add", net.const(np.float32(1)), "t")
    y = net.node("Add", net.node("Mul", _group(net, x), scale), "u")
    return net.node("Mul", y, net.node("Sigmoid", y))


def _both(net: Net, x: str) -> str:
    return _modulated(net, net.node("Add", "u", x))


FORMS: dict[str, tuple[Build, int, str]] = {
    "opset 18": (_group, 18, "group_norm"),
    "opset 21": (_group, 21, "group_norm"),
    "instance": (_instance, 13, "group_norm"),
    "reshaped": (_reshaped, 17, "group_norm"),
    "reshaped, factors of groups": (_reshaped_alone, 18, "group_norm"),
    "whole images": (_layer, 17, "group_norm"),
    "SiLU": (_silu, 21, "group_norm+Silu"),
    "LeakyRelu": (_leaky, 17, "group_norm+LeakyRelu"),
    "residual": (_residual, 21, "group_norm+Relu+Add"),
    "before": (_before, 18, "group_norm+Silu"),
    "modulated": (_modulated, 21, "group_norm+Silu"),
    "both": (_both, 21, "group_norm+Silu"),
}


@pytest.mark.parametrize("precision", ["keep", "fp16", "bf16"])
@pytest.mark.parametrize("form", FORMS)
def test_forms(tmp_path: Path, form: str, precision: str) -> None:
    """Nodes are verified while optimizing; between the convolutions no layout conversion is
    left."""
    build, opset, rule = FORMS[form]
    source, out = _net(build, opset), tmp_path / "out.onnx"
    report = _optimized(out, source, precision)
    assert _rules(report) == [rule]
    written = [node.op_type for node in onnx.load(out).graph.node]
    assert sum(op.startswith("GroupNorm") for op in written) == 1
    assert sum("NhwcToNchw" in op for op in written) == 0
    assert report.passed
    if precision != "bf16":
        expected = _run(source)
        limit = 1e-5 if precision == "keep" else 5e-3
        assert np.linalg.norm(_run(out) - expected) <= limit * np.linalg.norm(expected)


def test_words_say_which_vectors_a_node_reads(tmp_path: Path) -> None:
    names = {}
    for form in ("SiLU", "before", "modulated", "both"):
        build, opset, _ = FORMS[form]
        _optimized(tmp_path / "out.onnx", _net(build, opset))
        nodes = onnx.load(tmp_path / "out.onnx").graph.node
        (node,) = (node for node in nodes if node.op_type.startswith("GroupNorm"))
        names[form] = (node.op_type, len(node.input))
    assert names == {
        "SiLU": ("GroupNorm_Silu_f16", 3),
        "before": ("GroupNorm_Shifted_Silu_f16", 4),
        "modulated": ("GroupNorm_Modulated_Silu_f16", 5),
        "both": ("GroupNorm_Shifted_Modulated_Silu_f16", 6),
    }


@pytest.mark.parametrize("form", ["opset 18", "reshaped", "instance", "before", "modulated"])
def test_sizes_may_be_symbolic(tmp_path: Path, form: str) -> None:
    build, opset, rule = FORMS[form]
    source = _net(build, opset, "batch", "side")
    report = _optimized(tmp_path / "out.onnx", source)
    assert _rules(report) == [rule]
    expected = _run(source)
    difference = np.linalg.norm(_run(tmp_path / "out.onnx") - expected)
    assert difference <= 5e-3 * np.linalg.norm(expected)


def test_written_models_are_inspected(tmp_path: Path) -> None:
    _optimized(tmp_path / "out.onnx", _net(_both, 21))
    found = [node.op_type for node in inspect_model(onnx.load(tmp_path / "out.onnx")).nodes]
    assert "GroupNorm_Shifted_Modulated_Silu_f16" in found


def _unknown(net: Net, x: str) -> str:
    """Factors that are computed."""
    factor = net.node("Reshape", net.node("Slice", "t", *_first(net)), net.const([C], np.int64))
    return net.node("InstanceNormalization", x, factor, net.normal(C))


def _first(net: Net) -> tuple[str, str, str]:
    begin, end, axis = (net.const([value], np.int64) for value in (0, 1, 0))
    return begin, end, axis


def _by_pixel(net: Net, x: str) -> str:
    """Factors that differ among pixels: no kernel recognizes it as a norm of images."""
    return net.node("LayerNormalization", x, net.normal(C, SIDE, SIDE), axis=1)


def test_near_misses_are_refused(tmp_path: Path) -> None:
    report = _optimized(tmp_path / "out.onnx", _net(_unknown, 17))
    assert _rules(report) == []
    reasons = [r.reason for r in report.refusals if r.op == "InstanceNormalization"]
    assert reasons == ["its input has no known channels, or its factors are no constants"]


def test_factors_of_pixels_are_no_factors_of_channels(tmp_path: Path) -> None:
    report = _optimized(tmp_path / "out.onnx", _net(_by_pixel, 17))
    reasons = [r.reason for r in report.refusals if r.op == "LayerNormalization"]
    assert reasons == ["it is not over the last axis alone"]


def test_a_sum_that_others_read_stays(tmp_path: Path) -> None:
    def build(net: Net, x: str) -> str:
        total = net.node("Add", x, "t")
        return net.node("Add", _group(net, total), total)

    source = _net(build, 21)
    _optimized(tmp_path / "out.onnx", source)
    nodes = [node.op_type for node in onnx.load(tmp_path / "out.onnx").graph.node]
    assert not any("Shifted" in node for node in nodes)
    assert any(node.startswith("GroupNorm_Add") for node in nodes)


# --- onnxruntime.transformers' operators, in NHWC and without kernels for CPUs ------------------


def _contrib(net: Net, x: str, op: str = "GroupNorm", *more: str) -> str:
    """Between Transposes, with a SiLU of its own."""
    rows = net.node("Transpose", x, perm=[0, 2, 3, 1])
    factors = net.normal(C), net.normal(C)
    attrs: dict[str, Any] = {"groups": GROUPS, "epsilon": 1e-3, "activation": 1, "domain": CONTRIB}
    y = net.node(op, rows, *factors, *more, **attrs)
    return net.node("Transpose", y, perm=[0, 3, 1, 2])


def _skip(net: Net, x: str) -> str:
    vectors = net.node("Reshape", "t", net.const([0, C], np.int64))
    return _contrib(net, x, "SkipGroupNorm", vectors)


def _as_standard(net: Net, x: str) -> str:
    """The same as `_contrib`, with the same random factors."""
    gamma, beta = (net.normal(C) for _ in range(2))
    one, zero = (net.const(np.full(GROUPS, v, np.float32)) for v in (1, 0))
    y = net.node("Reshape", x, net.const([0, GROUPS, -1], np.int64))
    y = net.node("InstanceNormalization", y, one, zero, epsilon=1e-3)
    y = net.node("Reshape", y, net.node("Shape", x))
    for op, factor in (("Mul", gamma), ("Add", beta)):
        y = net.node(op, y, net.node("Reshape", factor, net.const([C, 1, 1], np.int64)))
    return net.node("Mul", y, net.node("Sigmoid", y))


def _skip_as_standard(net: Net, x: str) -> str:
    return _as_standard(net, net.node("Add", x, "t"))


@pytest.mark.parametrize("precision", ["keep", "fp16"])
@pytest.mark.parametrize(
    ("build", "standard"), [(_contrib, _as_standard), (_skip, _skip_as_standard)]
)
@pytest.mark.parametrize("batch", [N, "batch"])
def test_operators_in_nhwc(
    batch: int | str, build: Build, standard: Build, precision: str, tmp_path: Path
) -> None:
    """No Transpose remains, and plain ONNX Runtime runs the result, though not the original."""
    out = tmp_path / "out.onnx"
    report = onnxbolt.optimize(
        _net(build, 17, batch),
        out,
        archs="sm_90a",
        precision=precision,
        fuse="all",
        library=False,
        verify=False,
    )
    assert _rules(report) == ["group_norm+Silu"]
    written = [node.op_type for node in onnx.load(out).graph.node]
    assert not [op for op in written if op == "Transpose" or op.endswith("GroupNorm")]
    assert sum("NhwcToNchw" in op for op in written) == 0
    expected = _run(_net(standard, 17))
    limit = 1e-5 if precision == "keep" else 5e-3
    assert np.linalg.norm(_run(out) - expected) <= limit * np.linalg.norm(expected)


def test_operators_in_nhwc_of_unknown_factors_are_refused(tmp_path: Path) -> None:
    def build(net: Net, x: str) -> str:
        factor = net.node("Reshape", net.node("Slice", "t", *_first(net)), net.const([C], np.int64))
        attrs: dict[str, Any] = {"groups": GROUPS, "channels_last": 0, "domain": CONTRIB}
        return net.node("GroupNorm", x, factor, net.normal(C), **attrs)

    out = tmp_path / "out.onnx"
    report = onnxbolt.optimize(
        _net(build, 17), out, archs="sm_90a", fuse="all", library=False, verify=False
    )
    reasons = [refusal.reason for refusal in report.refusals if refusal.op == "GroupNorm"]
    assert reasons == ["its input has no known channels, or its factors are no constants"]
    assert "GroupNorm" in [node.op_type for node in onnx.load(out).graph.node]


def test_a_cast_behind_it_is_no_step_of_its_kernel(tmp_path: Path) -> None:
    """The lock file names the kernels of the problems that were decided."""
    net = Net({"x": (N, 16, SIDE, SIDE)}, 21)
    y = net.node("Relu", _group(net, net.conv("x", 16, C, 3, pads=SAME)))
    report = _optimized(tmp_path / "out.onnx", net.model(y))
    assert _rules(report) == ["group_norm+Relu+CastF32"]


def test_lrn_is_refused(tmp_path: Path) -> None:
    net = Net({"x": (N, 16, SIDE, SIDE)})
    y = net.node("LRN", net.node("Relu", net.conv("x", 16, C, 3, pads=SAME)), size=5)
    report = _optimized(tmp_path / "out.onnx", net.model(net.conv(y, C, 16, 3, pads=SAME)))
    (refusal,) = [refusal for refusal in report.refusals if refusal.op == "LRN"]
    assert refusal.reason.startswith("its sums over neighbouring channels have no kernel")
