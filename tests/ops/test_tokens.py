"""Normalizations of tokens that constant rows are added to: class tokens, positions, second
readers; near misses; bodies in plain ONNX Runtime, verification. The kernels wait for a GPU, so
that the tests switch them on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import onnxbolt
from onnxbolt import Report
from onnxbolt.inspection import inspect_model
from tests.support import Net, run

BATCH, LENGTH, WIDTH = 3, 6, 64
Build = Callable[[Net], str]


def source_of(
    build: Build, batch: int | str = BATCH, opset: int = 17, length: int | str = LENGTH
) -> onnx.ModelProto:
    net = Net({"x": (batch, length, WIDTH)}, opset)
    return net.model(build(net))


def _optimized(out: Path, source: onnx.ModelProto, precision: str = "fp16") -> Report:
    return onnxbolt.optimize(
        source, out, archs="sm_90a", precision=precision, fuse="all", library=False
    )


def _run(model: Path | onnx.ModelProto) -> np.ndarray:
    x = np.random.default_rng(0).normal(1, 2, (BATCH, LENGTH, WIDTH)).astype(np.float32)
    return run(model, {"x": x})[0]


def _layer(net: Net, x: str) -> str:
    return net.node("LayerNormalization", x, net.normal(WIDTH), net.normal(WIDTH), axis=-1)


def _rows(net: Net, count: int) -> str:
    return net.normal(1, count, WIDTH)


def _positions(net: Net) -> str:
    return _layer(net, net.node("Add", net.node("Tanh", "x"), _rows(net, LENGTH)))


def _in_front(net: Net) -> str:
    return _layer(net, net.node("Add", net.normal(LENGTH, WIDTH), net.node("Tanh", "x")))


def _with_head(net: Net, head: str, count: int) -> str:
    return net.node(
        "Add", net.node("Concat", head, net.node("Tanh", "x"), axis=1), _rows(net, LENGTH + count)
    )


def _class_token(net: Net) -> str:
    token = np.repeat(net.rng.normal(size=(1, 1, WIDTH)), BATCH, axis=0)
    return _layer(net, _with_head(net, net.const(token), 1))


def _expanded(net: Net) -> str:
    """Two tokens, expanded to a batch that is known at run time alone."""
    batch = net.node("Shape", "x", start=0, end=1)
    sizes = net.node("Concat", batch, net.const([2, WIDTH], np.int64), axis=0)
    head = net.node("Expand", net.normal(1, 2, WIDTH), sizes)
    total = _with_head(net, head, 2)
    return net.node("Sub", _layer(net, total), net.node("Exp", net.node("Tanh", total)))


def _several_tokens(net: Net) -> str:
    """A class token and one of distillation, as DeiT has them."""
    heads = [np.repeat(net.rng.normal(size=(1, 1, WIDTH)), BATCH, axis=0) for _ in range(2)]
    both = net.node("Concat", *map(net.const, heads), net.node("Tanh", "x"), axis=1)
    return _layer(net, net.node("Add", both, _rows(net, LENGTH + 2)))


def _positions_of_x(net: Net) -> str:
    """Register tokens have no positions, as in DINOv2 with registers and DeiT III."""
    tokens = np.repeat(net.rng.normal(size=(1, 3, WIDTH)), BATCH, axis=0)
    placed = net.node("Add", net.node("Tanh", "x"), _rows(net, LENGTH))
    total = net.node("Concat", net.const(tokens), placed, axis=1)
    return net.node("Sub", _layer(net, total), net.node("Exp", net.node("Tanh", total)))


def _without_positions(net: Net) -> str:
    """Tokens alone, as BEiT and DINOv3 have them."""
    batch = net.node("Shape", "x", start=0, end=1)
    sizes = net.node("Concat", batch, net.const([1, WIDTH], np.int64), axis=0)
    heads = [net.node("Expand", net.normal(1, 1, WIDTH), sizes) for _ in range(2)]
    return _layer(net, net.node("Concat", *heads, net.node("Tanh", "x"), axis=1))


def _rms(net: Net) -> str:
    total = net.node("Add", net.node("Tanh", "x"), _rows(net, LENGTH))
    squares = net.node("ReduceMean", net.node("Mul", total, total), axes=[-1])
    root = net.node("Sqrt", net.node("Add", squares, net.const(1e-3)))
    return net.node("Mul", net.node("Div", total, root), net.normal(WIDTH))


FORMS: dict[str, tuple[Build, int | str, list[str]]] = {
    "positions": (_positions, BATCH, ["TokenLayerNorm_Add_Scale_Bias"]),
    "positions, symbolic": (_positions, "batch", ["TokenLayerNorm_Add_Scale_Bias"]),
    "rows in front": (_in_front, BATCH, ["TokenLayerNorm_Add_Scale_Bias"]),
    "class token": (_class_token, BATCH, ["TokenLayerNorm_prefix1_Add_Scale_Bias"]),
    "expanded tokens": (_expanded, "batch", ["TokenLayerNorm_prefix2_Add_Store_Scale_Bias"]),
    "several tokens": (_several_tokens, BATCH, ["TokenLayerNorm_prefix2_Add_Scale_Bias"]),
    "positions of x alone": (
        _positions_of_x,
        BATCH,
        ["TokenLayerNorm_prefix3_Add_Store_Scale_Bias"],
    ),
    "no positions": (_without_positions, "batch", ["TokenLayerNorm_prefix2_Add_Scale_Bias"]),
    "RMS": (_rms, BATCH, ["TokenRmsNorm_Add_Scale"]),
}


@pytest.mark.parametrize("precision", ["keep", "fp16"])
@pytest.mark.parametrize("form", FORMS)
def test_each_form_is_one_node_and_verified(form: str, precision: str, tmp_path: Path) -> None:
    build, batch, types = FORMS[form]
    source, out = source_of(build, batch), tmp_path / "out.onnx"
    report = _optimized(out, source, precision)
    assert report.passed
    element = "f32" if precision == "keep" else "f16"
    assert [node.op for node in report.fused if "Norm" in node.op] == [
        f"{name}_{element}" for name in types
    ]
    operators = {node.op_type for node in onnx.load(out).graph.node}
    assert operators.isdisjoint({"Add", "Concat", "Expand", "LayerNormalization"})
    tolerance = 1e-5 if precision == "keep" else 2e-2
    np.testing.assert_allclose(_run(out), _run(source), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("opset", [17, 18])
def test_bfloat16_is_verified(opset: int, tmp_path: Path) -> None:
    report = _optimized(tmp_path / "out.onnx", source_of(_expanded, "batch", opset), "bf16")
    assert report.passed
    assert "TokenLayerNorm_prefix2_Add_Store_Scale_Bias_bf16" in [node.op for node in report.fused]


def test_the_node_has_the_rows_of_all_tokens(tmp_path: Path) -> None:
    """The head is added to the first rows, and the kernels are those for tokens."""
    source, out = source_of(_class_token), tmp_path / "out.onnx"
    _optimized(out, source, "keep")
    model = onnx.load(out)
    (node,) = (node for node in model.graph.node if node.op_type.startswith("TokenLayerNorm"))
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    assert attributes["prefix"] == 1
    held = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    given = [onnx.numpy_helper.to_array(t) for t in source.graph.initializer]
    head = next(array for array in given if array.shape == (BATCH, 1, WIDTH))
    (rows,) = (array for array in given if array.shape == (1, LENGTH + 1, WIDTH))
    expected = rows[0].copy()
    expected[0] += head[0, 0]
    np.testing.assert_array_equal(held[node.input[1]], expected)
    (described,) = inspect_model(model).nodes[-1:]
    assert [config.named()["tokens"] for config in described.configs] == [True]


def _row(net: Net) -> str:
    return _layer(net, net.node("Add", net.node("Tanh", "x"), net.normal(WIDTH)))


def _each_its_own(net: Net) -> str:
    return _layer(net, _with_head(net, net.normal(BATCH, 1, WIDTH), 1))


def _behind(net: Net) -> str:
    """The constant tokens are the last ones."""
    both = net.node("Concat", net.node("Tanh", "x"), net.normal(BATCH, 1, WIDTH), axis=1)
    return _layer(net, net.node("Add", both, _rows(net, LENGTH + 1)))


def _read_twice(net: Net) -> str:
    """Others read the tokens before positions are added."""
    token = np.repeat(net.rng.normal(size=(1, 1, WIDTH)), BATCH, axis=0)
    both = net.node("Concat", net.const(token), net.node("Tanh", "x"), axis=1)
    total = net.node("Add", both, _rows(net, LENGTH + 1))
    return net.node("Sub", _layer(net, total), net.node("Exp", both))


def _broadcast(net: Net) -> str:
    """One token of x serves all positions."""
    one = net.node("ReduceMax", "x", axes=[1], keepdims=1)
    return _layer(net, net.node("Add", one, _rows(net, LENGTH)))


def _other_columns(net: Net) -> str:
    x = net.node("ReduceMax", "x", axes=[2], keepdims=1)
    return _layer(net, net.node("Add", x, _rows(net, LENGTH)))


@pytest.mark.parametrize("build", [_row, _broadcast, _other_columns])
def test_other_sums_are_computed_before(build: Build, tmp_path: Path) -> None:
    source, out = source_of(build), tmp_path / "out.onnx"
    report = _optimized(out, source, "keep")
    assert report.passed
    assert "LayerNorm_Scale_Bias_f32" in [node.op for node in report.fused]
    np.testing.assert_allclose(_run(out), _run(source), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("build", [_each_its_own, _behind, _read_twice])
def test_other_tokens_are_joined_before(build: Build, tmp_path: Path) -> None:
    """Those are no head of each sequence, or others read them, too."""
    source, out = source_of(build), tmp_path / "out.onnx"
    report = _optimized(out, source, "keep")
    assert report.passed
    assert "TokenLayerNorm_Add_Scale_Bias_f32" in [node.op for node in report.fused]
    assert "Concat" in [node.op_type for node in onnx.load(out).graph.node]
    np.testing.assert_allclose(_run(out), _run(source), rtol=1e-5, atol=1e-5)
