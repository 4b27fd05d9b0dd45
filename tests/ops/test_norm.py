"""Normalizations of rows: recognition with residuals and second readers, refusals, bodies in plain
ONNX Runtime, verification."""

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
from onnxbolt.inspection import inspect_model
from onnxbolt.match.patterns import anchors
from onnxbolt.ops.norm import LayerNorm, RmsNorm
from tests.support import Net, run

ROWS, WIDTH = (2, 5), 96
SHAPE = (*ROWS, WIDTH)
Build = Callable[[Net], str]


def _source(build: Build, opset: int = 17) -> onnx.ModelProto:
    net = Net({"x": SHAPE, "r": SHAPE}, opset)
    return net.model(build(net))


def _optimized(out: Path, source: onnx.ModelProto, precision: str = "fp16") -> Report:
    return onnxbolt.optimize(
        source, out, archs="sm_90a", precision=precision, fuse="all", library=False
    )


def _run(model: Path | onnx.ModelProto) -> np.ndarray:
    rng = np.random.default_rng(0)
    feeds = {name: rng.normal(3, 2, SHAPE).astype(np.float32) for name in ("x", "r")}
    return run(model, feeds)[0]


def _layer(net: Net, x: str, **attributes: Any) -> str:
    return net.node("LayerNormalization", x, net.normal(WIDTH), net.normal(WIDTH), **attributes)


def _alone(net: Net) -> str:
    return _layer(net, "x", axis=-1, epsilon=1e-3)


def _without_beta(net: Net) -> str:
    return net.node("LayerNormalization", "x", net.normal(WIDTH), axis=2)


def _residual(net: Net) -> str:
    return _layer(net, net.node("Add", net.node("Tanh", "x"), "r"))


def _stored(net: Net) -> str:
    total = net.node("Add", net.node("Tanh", "x"), "r")
    return net.node("Sub", _layer(net, total), net.node("Exp", total))


def _twice(net: Net) -> str:
    total = net.node("Add", net.node("Tanh", "x"), "r")
    return net.node("Sub", _layer(net, total), _layer(net, total))


def _behind_a_product(net: Net) -> str:
    return _layer(net, net.node("Add", net.linear("x", WIDTH, WIDTH), "r"))


def _rms(net: Net) -> str:
    return net.node("RMSNormalization", "x", net.normal(WIDTH), epsilon=1e-3)


def _simplified(net: Net) -> str:
    return net.node("SimplifiedLayerNormalization", "x", net.normal(WIDTH), epsilon=1e-3)


def _skip(net: Net) -> str:
    vectors = net.normal(WIDTH), net.normal(WIDTH)
    return net.node("SkipLayerNormalization", "x", "r", *vectors, domain=CONTRIB, epsilon=1e-3)


def _skip_stored(net: Net) -> str:
    net.node("SkipLayerNormalization", "x", "r", net.normal(WIDTH), domain=CONTRIB)
    net.nodes[-1].output.extend(["", "", "total"])
    return net.node("Sub", net.nodes[-1].output[0], net.node("Exp", "total"))


def _skip_simplified(net: Net) -> str:
    return net.node("SkipSimplifiedLayerNormalization", "x", "r", net.normal(WIDTH), domain=CONTRIB)


def _mean(net: Net, x: str) -> str:
    if net.opset < 18:
        return net.node("ReduceMean", x, axes=[-1])
    return net.node("ReduceMean", x, net.const([-1], np.int64))


def _decomposed(net: Net) -> str:
    """As exporters write it for opsets before 17, behind a residual that is read further."""
    total = net.node("Add", net.node("Tanh", "x"), "r")
    deviation = net.node("Sub", total, _mean(net, total))
    square = net.node("Pow", deviation, net.const(2.0))
    variance = net.node("Add", _mean(net, square), net.const(1e-3))
    y = net.node("Div", deviation, net.node("Sqrt", variance))
    y = net.node("Add", net.node("Mul", y, net.normal(WIDTH)), net.normal(WIDTH))
    return net.node("Sub", y, net.node("Exp", total))


def _decomposed_rms(net: Net) -> str:
    """As exporters write T5's and Llama's, behind values beyond a hundred."""
    x = net.node("Mul", net.node("Tanh", "x"), net.const(300.0))
    square = net.node("Pow", x, net.const(2.0))
    variance = net.node("Add", _mean(net, square), net.const(1e-3))
    inverse = net.node("Reciprocal", net.node("Sqrt", variance))
    return net.node("Mul", net.normal(WIDTH), net.node("Mul", x, inverse))


FORMS: dict[str, tuple[Build, int, list[str]]] = {
    "alone": (_alone, 17, ["layer_norm+Scale+Bias"]),
    "without beta": (_without_beta, 18, ["layer_norm+Scale"]),
    "residual": (_residual, 17, ["layer_norm+Add+Scale+Bias"]),
    "second reader": (_stored, 17, ["layer_norm+Add+Store+Scale+Bias"]),
    "two norms of a sum": (
        _twice,
        17,
        ["layer_norm+Add+Store+Scale+Bias", "layer_norm+Scale+Bias"],
    ),
    "behind a product": (_behind_a_product, 17, ["gemm+Bias", "layer_norm+Add+Scale+Bias"]),
    "RMS": (_rms, 23, ["rms_norm+Scale"]),
    "simplified": (_simplified, 17, ["rms_norm+Scale"]),
    "skip": (_skip, 17, ["layer_norm+Add+Scale+Bias"]),
    "skip, second reader": (_skip_stored, 17, ["layer_norm+Add+Store+Scale"]),
    "skip, simplified": (_skip_simplified, 17, ["rms_norm+Add+Scale"]),
    "decomposed": (_decomposed, 13, ["layer_norm+Add+Store+Scale+Bias"]),
    "decomposed, RMS": (_decomposed_rms, 17, ["rms_norm+Scale"]),
}


@pytest.mark.parametrize("precision", ["keep", "fp16"])
@pytest.mark.parametrize("form", FORMS)
def test_each_form_is_one_node_and_verified(form: str, precision: str, tmp_path: Path) -> None:
    build, opset, rules = FORMS[form]
    source, out = _source(build, opset), tmp_path / "out.onnx"
    report = _optimized(out, source, precision)
    assert report.passed
    assert [node.rule for node in report.fused if node.rule in rules] == rules
    tolerance = 1e-5 if precision == "keep" else 2e-2
    np.testing.assert_allclose(_run(out), _run(source), rtol=tolerance, atol=tolerance)


def test_bfloat16_is_verified(tmp_path: Path) -> None:
    report = _optimized(tmp_path / "out.onnx", _source(_stored), "bf16")
    assert report.passed
    assert [node.op for node in report.fused if "norm" in node.rule] == [
        "LayerNorm_Add_Store_Scale_Bias_bf16"
    ]


def _over_two_axes(net: Net) -> str:
    shape = (ROWS[1], WIDTH)
    return net.node("LayerNormalization", "x", net.normal(*shape), axis=1)


def _computed_scale(net: Net) -> str:
    scale = net.node("ReduceMax", "r", axes=[0, 1], keepdims=0)
    return net.node("LayerNormalization", "x", scale)


def _mean_is_read(net: Net) -> str:
    y, mean = net.several("LayerNormalization", "x", net.normal(WIDTH), outputs=2)
    return net.node("Add", y, mean)


def _skip_whose_mean_is_read(net: Net) -> str:
    vectors = net.normal(WIDTH), net.normal(WIDTH)
    y, mean = net.several("SkipLayerNormalization", "x", "r", *vectors, outputs=2, domain=CONTRIB)
    return net.node("Add", y, mean)


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (_over_two_axes, "it is not over the last axis alone"),
        (_computed_scale, "its scale or bias is no constant with a value for each column"),
        (_mean_is_read, "its mean or variance is read as well"),
        (_skip_whose_mean_is_read, "its mean or variance is read as well"),
    ],
)
def test_near_misses_are_in_the_report(build: Build, reason: str, tmp_path: Path) -> None:
    report = _optimized(tmp_path / "out.onnx", _source(build))
    assert not [node for node in report.fused if "norm" in node.rule]
    assert reason in report.text()


def test_a_broadcast_residual_is_added_before(tmp_path: Path) -> None:
    net = Net({"x": SHAPE, "r": (1, 1, WIDTH)})
    y = _layer(net, net.node("Add", net.node("Tanh", "x"), net.node("Tanh", "r")))
    report = _optimized(tmp_path / "out.onnx", net.model(y))
    assert "layer_norm+Scale+Bias" in [node.rule for node in report.fused]


@pytest.fixture
def unmatched(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No norm begins a candidate."""
    with monkeypatch.context() as patched:
        for op in (LayerNorm, RmsNorm):
            patched.setattr(op, "anchors", lambda self: ())
        anchors.cache_clear()
        yield
    anchors.cache_clear()


@pytest.mark.usefixtures("unmatched")
@pytest.mark.parametrize("opset", [13, 17, 18])
@pytest.mark.parametrize("build", [_decomposed, _decomposed_rms])
def test_one_that_no_kernel_takes_is_written_in_fp16(
    build: Build, opset: int, tmp_path: Path
) -> None:
    """Its statistics stay in fp32, and no Pow forces other nodes into fp32."""
    source, out = _source(build, opset), tmp_path / "out.onnx"
    report = _optimized(out, source)
    assert report.passed
    assert not [node for node in report.fused if "norm" in node.rule]
    assert {kept.op for kept in report.kept} <= {"Exp", "Sub"}  # a Sub reads the Exp
    operators = [node.op_type for node in onnx.load(out).graph.node]
    standard = build is _decomposed and opset >= 17
    assert ("LayerNormalization" in operators) == standard == ("Sqrt" not in operators)
    np.testing.assert_allclose(_run(out), _run(source), rtol=2e-2, atol=2e-2)


def _symbolic() -> onnx.ModelProto:
    net = Net({"x": ("rows", WIDTH), "r": ("rows", WIDTH)})
    return net.model(_residual(net))


RANGES: dict[str, Any] = {
    "min_shapes": {"x": (1, WIDTH), "r": (1, WIDTH)},
    "opt_shapes": {"x": (1280, WIDTH), "r": (1280, WIDTH)},
    "max_shapes": {"x": (100352, WIDTH), "r": (100352, WIDTH)},
    "archs": "sm_90a",
    "precision": "fp16",
    "fuse": "all",
    "library": False,
    "verify": False,
}


def test_symbolic_rows_have_a_kernel_for_each_size(tmp_path: Path) -> None:
    """The table is in the node, in its inspection, and kept by a lock file."""
    out, again, lock = (tmp_path / name for name in ("out.onnx", "again.onnx", "bolt.lock"))
    report = onnxbolt.optimize(_symbolic(), out, lock=lock, **RANGES)
    assert [node.rule for node in report.fused] == ["layer_norm+Add+Scale+Bias"]
    (node,) = inspect_model(onnx.load(out)).nodes
    assert [config.family.name for config in node.configs] == ["norm"] * len(node.configs)
    assert node.configs[0].min_m <= 1 < node.configs[-1].max_m
    onnxbolt.optimize(_symbolic(), again, lock=lock, frozen=True, **RANGES)
    (frozen,) = inspect_model(onnx.load(again)).nodes
    assert frozen.configs == node.configs
