"""Normalizations that vectors of each sequence modulate: with and without a residual, a gate and
further readers; near misses; bodies in plain ONNX Runtime, verification."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxbolt
from onnxbolt import Report
from tests.support import Net, run

BATCH, LENGTH, WIDTH = 3, 6, 64
Build = Callable[[Net], str]


def source_of(build: Build, batch: int | str = BATCH) -> onnx.ModelProto:
    net = Net({"x": (batch, LENGTH, WIDTH), "t": (batch, WIDTH), "r": (batch, LENGTH, WIDTH)})
    return net.model(net.node("MatMul", build(net), net.normal(WIDTH, WIDTH, scale=0.1)))


def _optimized(out: Path, source: onnx.ModelProto, precision: str = "keep") -> Report:
    return onnxbolt.optimize(
        source, out, archs="sm_90a", precision=precision, fuse="all", library=False
    )


def _run(model: Path | onnx.ModelProto) -> np.ndarray:
    rng = np.random.default_rng(0)
    shapes = {"x": (BATCH, LENGTH, WIDTH), "t": (BATCH, WIDTH), "r": (BATCH, LENGTH, WIDTH)}
    feeds = {name: rng.normal(0, 1, shape).astype(np.float32) for name, shape in shapes.items()}
    return run(model, feeds)[0]


def _vectors(net: Net, count: int) -> list[str]:
    """Vectors [B, C] of each sequence."""
    product = net.node("MatMul", "t", net.normal(WIDTH, count * WIDTH, scale=0.1))
    sizes = net.const([WIDTH] * count, np.int64)
    return net.several("Split", product, sizes, outputs=count, axis=1)


def _row(net: Net, vector: str) -> str:
    return net.node("Unsqueeze", vector, net.const([1], np.int64))


def _layer(net: Net, x: str) -> str:
    ones, zeros = (net.const(np.full(WIDTH, value, np.float32)) for value in (1, 0))
    return net.node("LayerNormalization", x, ones, zeros, axis=-1, epsilon=1e-3)


def _modulated(net: Net, y: str, scale: str, shift: str) -> str:
    raised = net.node("Add", net.const(1.0), _row(net, scale))
    return net.node("Add", net.node("Mul", y, raised), _row(net, shift))


def _alone(net: Net) -> str:
    scale, shift = _vectors(net, 2)
    return _modulated(net, _layer(net, net.node("Tanh", "x")), scale, shift)


def _raised_before(net: Net) -> str:
    """(1 + scale)[:, None], as the last norm of Stable Diffusion 3 has it."""
    scale, shift = _vectors(net, 2)
    raised = _row(net, net.node("Add", scale, net.const(1.0)))
    y = _layer(net, net.node("Tanh", "x"))
    return net.node("Add", _row(net, shift), net.node("Mul", raised, y))


def _residual(net: Net) -> str:
    scale, shift = _vectors(net, 2)
    total = net.node("Add", net.node("Tanh", "x"), "r")
    return _modulated(net, _layer(net, total), scale, shift)


def _gated(net: Net) -> str:
    scale, shift, gate = _vectors(net, 3)
    product = net.node("Mul", _row(net, gate), net.node("Tanh", "x"))
    total = net.node("Add", "r", product)
    return _modulated(net, _layer(net, total), scale, shift)


def _block(net: Net) -> str:
    """The sum is that of the next block as well, as in DiT."""
    scale, shift, gate = _vectors(net, 3)
    product = net.node("Mul", net.node("Tanh", "x"), _row(net, gate))
    total = net.node("Add", product, "r")
    y = _modulated(net, _layer(net, total), scale, shift)
    return net.node("Sub", y, net.node("Exp", net.node("Tanh", total)))


def _rms(net: Net) -> str:
    scale, shift = _vectors(net, 2)
    x = net.node("Tanh", "x")
    squares = net.node("ReduceMean", net.node("Mul", x, x), axes=[-1])
    root = net.node("Sqrt", net.node("Add", squares, net.const(1e-3)))
    y = net.node("Mul", net.node("Div", x, root), net.normal(WIDTH))
    return _modulated(net, y, scale, shift)


FORMS: dict[str, tuple[Build, int | str, str]] = {
    "alone": (_alone, BATCH, "ModulatedLayerNorm_Scale_Bias"),
    "raised before": (_raised_before, BATCH, "ModulatedLayerNorm_Scale_Bias"),
    "residual": (_residual, BATCH, "ModulatedLayerNorm_Add_Scale_Bias"),
    "gate": (_gated, BATCH, "ModulatedLayerNorm_Gated_Add_Scale_Bias"),
    "gate, symbolic": (_gated, "batch", "ModulatedLayerNorm_Gated_Add_Scale_Bias"),
    "block": (_block, BATCH, "ModulatedLayerNorm_Gated_Add_Store_Scale_Bias"),
    "one sequence": (_block, 1, "ModulatedLayerNorm_Gated_Add_Store_Scale_Bias"),
    "RMS": (_rms, BATCH, "ModulatedRmsNorm_Scale"),
}


@pytest.mark.parametrize("precision", ["keep", "fp16", "bf16"])
@pytest.mark.parametrize("form", FORMS)
def test_each_form_is_one_node_and_verified(form: str, precision: str, tmp_path: Path) -> None:
    build, batch, name = FORMS[form]
    source, out = source_of(build, batch), tmp_path / "out.onnx"
    report = _optimized(out, source, precision)
    assert report.passed
    element = {"keep": "f32", "fp16": "f16", "bf16": "bf16"}[precision]
    assert [node.op for node in report.fused if "Norm" in node.op] == [f"{name}_{element}"]
    operators = {node.op_type for node in onnx.load(out).graph.node}
    assert operators.isdisjoint({"Add", "Mul", "LayerNormalization"})
    if batch != 1 and precision != "bf16":
        tolerance = 1e-5 if precision == "keep" else 2e-2
        np.testing.assert_allclose(_run(out), _run(source), rtol=tolerance, atol=tolerance)


def _of_rows(net: Net) -> str:
    """A scale for each row."""
    _, shift = _vectors(net, 2)
    y = _layer(net, net.node("Tanh", "x"))
    raised = net.node("Add", net.node("Sigmoid", "r"), net.const(1.0))
    return net.node("Add", net.node("Mul", y, raised), _row(net, shift))


def _of_all(net: Net) -> str:
    """The vectors of one sequence serve all."""
    scale, shift = (net.node("ReduceMax", v, axes=[0], keepdims=1) for v in _vectors(net, 2))
    return _modulated(net, _layer(net, net.node("Tanh", "x")), scale, shift)


def _unraised(net: Net) -> str:
    scale, shift = _vectors(net, 2)
    y = net.node("Mul", _layer(net, net.node("Tanh", "x")), _row(net, scale))
    return net.node("Add", y, _row(net, shift))


def _scaled_alone(net: Net) -> str:
    scale, _ = _vectors(net, 2)
    raised = net.node("Add", net.const(1.0), _row(net, scale))
    return net.node("Mul", _layer(net, net.node("Tanh", "x")), raised)


def _read_before(net: Net) -> str:
    """Others read the normalized rows."""
    scale, shift = _vectors(net, 2)
    y = _layer(net, net.node("Tanh", "x"))
    return net.node("Sub", _modulated(net, y, scale, shift), net.node("Exp", y))


def _scale_read_twice(net: Net) -> str:
    """Others read 1 + scale."""
    scale, shift = _vectors(net, 2)
    raised = net.node("Add", net.const(1.0), _row(net, scale))
    y = net.node("Mul", _layer(net, net.node("Tanh", "x")), raised)
    return net.node("Sub", net.node("Add", y, _row(net, shift)), net.node("Exp", raised))


@pytest.mark.parametrize(
    "build", [_of_rows, _of_all, _unraised, _scaled_alone, _read_before, _scale_read_twice]
)
def test_near_misses_are_normalized_alone(build: Build, tmp_path: Path) -> None:
    source, out = source_of(build), tmp_path / "out.onnx"
    report = _optimized(out, source)
    assert report.passed
    found = [node.op for node in report.fused if "Norm" in node.op]
    assert found == ["LayerNorm_Scale_Bias_f32"]
    np.testing.assert_allclose(_run(out), _run(source), rtol=1e-5, atol=1e-5)
