"""Normalizations of sums of embeddings: words, token types, positions, second readers; near misses;
bodies in plain ONNX Runtime, verification. The kernels wait for a GPU, so that the tests switch
them on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import onnxbolt
from onnxbolt import Report
from onnxbolt.errors import InputError
from onnxbolt.inspection import inspect_model
from onnxbolt.opspec import OpSpec, ops_from_json, ops_to_json
from tests.support import Net

BATCH, LENGTH, WIDTH = 3, 6, 64
WORDS, TYPES, POSITIONS = 20, 2, 9
SHAPE = (BATCH, LENGTH)
Build = Callable[[Net], str]


def source_of(
    build: Build,
    shape: tuple[int | str, ...] = SHAPE,
    opset: int = 17,
    element: int = TensorProto.INT64,
) -> onnx.ModelProto:
    names = ("ids", "types", "places")
    net = Net(dict.fromkeys(names, shape), opset, types=dict.fromkeys(names, element))
    return net.model(build(net))


def _optimized(out: Path, source: onnx.ModelProto, precision: str = "fp16") -> Report:
    return onnxbolt.optimize(
        source, out, archs="sm_90a", precision=precision, fuse="all", library=False
    )


def _run(model: Path | onnx.ModelProto) -> np.ndarray:
    """Negative indices count from the end."""
    held = str(model) if isinstance(model, Path) else model.SerializeToString()
    session = onnxruntime.InferenceSession(held, providers=["CPUExecutionProvider"])
    limits = {"ids": WORDS, "types": TYPES, "places": POSITIONS}
    random, feeds = np.random.default_rng(0), {}
    for given in session.get_inputs():
        element = np.int64 if given.type == "tensor(int64)" else np.int32
        limit = limits[given.name]
        feeds[given.name] = random.integers(-limit, limit, SHAPE).astype(element)
    found: np.ndarray = session.run(None, feeds)[0]
    return found


def _layer(net: Net, x: str) -> str:
    return net.node("LayerNormalization", x, net.normal(WIDTH), net.normal(WIDTH), axis=-1)


def _words(net: Net, ids: str = "ids") -> str:
    return net.node("Gather", net.normal(WORDS, WIDTH), ids)


def _types(net: Net) -> str:
    return net.node("Gather", net.normal(TYPES, WIDTH), "types")


def _places(net: Net) -> str:
    return net.node("Gather", net.normal(POSITIONS, WIDTH), "places")


def _rows(net: Net, length: int = LENGTH) -> str:
    return net.normal(1, length, WIDTH)


def _sum(net: Net, *terms: str) -> str:
    first, *others = terms
    for term in others:
        first = net.node("Add", first, term)
    return first


def _bert(net: Net) -> str:
    """Words, positions that are constants, types."""
    return _layer(net, _sum(net, _words(net), _types(net), _rows(net)))


def _roberta(net: Net) -> str:
    """Positions are computed; axes of tables may be negative."""
    places = net.node("Gather", net.normal(POSITIONS, WIDTH), "places", axis=-2)
    return _layer(net, _sum(net, _sum(net, _words(net), _types(net)), places))


def _distilbert(net: Net) -> str:
    return _layer(net, _sum(net, _words(net), _rows(net)))


def _modernbert(net: Net) -> str:
    return _layer(net, _words(net))


def _gpt2(net: Net) -> str:
    """Positions of the length at run time, the same for all sequences; the residual reads the
    sum."""
    length = net.node("Squeeze", net.node("Shape", "ids", start=1, end=2))
    zero, one = net.const(np.int64(0), np.int64), net.const(np.int64(1), np.int64)
    places = net.node("Unsqueeze", net.node("Range", zero, length, one), net.const([0], np.int64))
    total = _sum(net, _words(net), net.node("Gather", net.normal(POSITIONS, WIDTH), places))
    return net.node("Sub", _layer(net, total), net.node("Exp", net.node("Tanh", total)))


def _flat_positions(net: Net) -> str:
    """Indices [S], in front of the words."""
    flat = net.node("Cast", net.node("ReduceMax", "places", axes=[0], keepdims=0), to=7)
    return _layer(
        net, _sum(net, net.node("Gather", net.normal(POSITIONS, WIDTH), flat), _words(net))
    )


def _t5(net: Net) -> str:
    """An RMS norm, whose x the residual reads as well."""
    total = _words(net)
    squares = net.node("ReduceMean", net.node("Mul", total, total), axes=[-1])
    root = net.node("Sqrt", net.node("Add", squares, net.const(1e-3)))
    normalized = net.node("Mul", net.node("Div", total, root), net.normal(WIDTH))
    return net.node("Sub", normalized, net.node("Exp", net.node("Tanh", total)))


_LAYER = "EmbeddingLayerNorm_i64"
FORMS: dict[str, tuple[Build, tuple[int | str, ...], str]] = {
    "BERT": (_bert, SHAPE, f"{_LAYER}_tables2_Add_Scale_Bias"),
    "BERT, symbolic": (_bert, ("batch", LENGTH), f"{_LAYER}_tables2_Add_Scale_Bias"),
    "RoBERTa": (_roberta, ("batch", "length"), f"{_LAYER}_tables3_Scale_Bias"),
    "DistilBERT": (_distilbert, SHAPE, f"{_LAYER}_tables1_Add_Scale_Bias"),
    "ModernBERT": (_modernbert, ("batch", "length"), f"{_LAYER}_tables1_Scale_Bias"),
    "GPT-2": (_gpt2, ("batch", LENGTH), f"{_LAYER}_tables1_Add_Store_Scale_Bias"),
    "flat positions": (_flat_positions, SHAPE, f"{_LAYER}_tables2_Scale_Bias"),
    "T5": (_t5, SHAPE, "EmbeddingRmsNorm_i64_tables1_Store_Scale"),
}


@pytest.mark.parametrize("precision", ["keep", "fp16", "bf16"])
@pytest.mark.parametrize("form", FORMS)
def test_each_form_is_one_node_and_verified(form: str, precision: str, tmp_path: Path) -> None:
    build, shape, expected = FORMS[form]
    source, out = source_of(build, shape), tmp_path / "out.onnx"
    report = _optimized(out, source, precision)
    assert report.passed
    element = {"keep": "f32", "fp16": "f16", "bf16": "bf16"}[precision]
    assert [n.op for n in report.fused if "Norm" in n.op] == [f"{expected}_{element}"]
    operators = {node.op_type for node in onnx.load(out).graph.node}
    assert operators.isdisjoint({"Add", "Gather", "LayerNormalization"})
    if precision == "bf16":
        return  # ONNX Runtime's CPU provider lacks nodes behind it; verification widens them
    tolerance = 1e-5 if precision == "keep" else 2e-2
    np.testing.assert_allclose(_run(out), _run(source), rtol=tolerance, atol=tolerance)


def test_indices_of_32_bits_are_another_op_type(tmp_path: Path) -> None:
    source, out = source_of(_bert, element=TensorProto.INT32), tmp_path / "out.onnx"
    report = _optimized(out, source, "keep")
    assert "EmbeddingLayerNorm_i32_tables2_Add_Scale_Bias_f32" in [n.op for n in report.fused]
    np.testing.assert_allclose(_run(out), _run(source), rtol=1e-5, atol=1e-5)


def test_the_node_has_indices_and_tables(tmp_path: Path) -> None:
    """x are the indices that have the sum's shape, whichever the sum begins with."""
    source, out = source_of(_flat_positions), tmp_path / "out.onnx"
    _optimized(out, source, "keep")
    model = onnx.load(out)
    (node,) = (node for node in model.graph.node if node.op_type.startswith("Embedding"))
    held = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    assert node.input[0] == "ids"
    assert held[node.input[1]].shape == (WORDS, WIDTH)
    assert held[node.input[3]].shape == (POSITIONS, WIDTH)
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    assert attributes["columns"] == WIDTH
    described = next(n for n in inspect_model(model).nodes if n.name == node.name)
    assert [(c.named()["tokens"], c.named()["tables"]) for c in described.configs] == [(True, 2)]


def test_metadata_have_the_type_of_the_indices(tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    _optimized(out, source_of(_bert))
    entries = {entry.key: entry.value for entry in onnx.load(out).metadata_props}
    ops: tuple[OpSpec, ...] = ops_from_json(entries["onnxbolt.ops"])
    (spec,) = (op for op in ops if op.kind == "embedding_layer_norm")
    assert (spec.operands, spec.indices and spec.indices.value) == ("tnttvv", "i64")
    assert ops_from_json(ops_to_json(ops)) == ops


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"indices": "f32"}, "indices 'f32' is unknown"),
        ({"indices": None}, "the type of its indices"),
    ],
)
def test_damaged_metadata_are_refused(changed: dict[str, str | None], reason: str) -> None:
    row = {
        "name": "EmbeddingLayerNorm_i64_tables2_Scale_f16",
        "kind": "embedding_layer_norm",
        "element": "f16",
        "output": "f16",
        "chain": ["Scale"],
        "inputs": "tnt",
        "indices": "i64",
    }
    assert ops_from_json(json.dumps([row]))[0].operands == "tntv"
    damaged = {key: value for key, value in (row | changed).items() if value is not None}
    with pytest.raises(InputError, match=reason):
        ops_from_json(json.dumps([damaged]))


def _computed(net: Net) -> str:
    other = net.node("Tanh", net.node("Tanh", _types(net)))
    return _layer(net, _sum(net, _words(net), other))


def _four(net: Net) -> str:
    return _layer(net, _sum(net, _words(net), _types(net), _places(net), _words(net, "places")))


def _of_several_types(net: Net) -> str:
    narrow = net.node("Cast", "types", to=TensorProto.INT32)
    return _layer(net, _sum(net, _words(net), net.node("Gather", net.normal(TYPES, WIDTH), narrow)))


def _rows_of_each(net: Net) -> str:
    return _layer(net, _sum(net, _words(net), net.normal(BATCH, LENGTH, WIDTH)))


def _three_axes(net: Net) -> str:
    """The indices have an axis more."""
    return _layer(net, _words(net, net.node("Unsqueeze", "ids", net.const([0], np.int64))))


def _twice(net: Net) -> str:
    words = _words(net)
    return _layer(net, _sum(net, words, words))


REFUSED: dict[str, tuple[Build, str]] = {
    "another term": (_computed, "neither an embedding nor constant"),
    "four": (_four, "adds up at most 3 embeddings"),
    "types": (_of_several_types, "indices of different types"),
    "rows of each sequence": (_rows_of_each, "no row for each token"),
    "axes": (_three_axes, "known to have the batch and tokens"),
}


@pytest.mark.parametrize("form", REFUSED)
def test_other_sums_are_refused_with_a_reason(form: str, tmp_path: Path) -> None:
    build, reason = REFUSED[form]
    source, out = source_of(build), tmp_path / "out.onnx"
    report = _optimized(out, source, "keep")
    assert report.passed
    assert not any(node.op.startswith("Embedding") for node in report.fused)
    assert any(reason in refusal.reason for refusal in report.refusals)
    np.testing.assert_allclose(_run(out), _run(source), rtol=1e-5, atol=1e-5)


def _read_apart(net: Net) -> str:
    """Others read the words alone."""
    words = _words(net)
    return net.node("Sub", _layer(net, _sum(net, words, _types(net))), net.node("Exp", words))


@pytest.mark.parametrize("build", [_read_apart, _twice])
def test_embeddings_that_others_read_stay(build: Build, tmp_path: Path) -> None:
    source, out = source_of(build), tmp_path / "out.onnx"
    report = _optimized(out, source, "keep")
    assert report.passed
    assert not any("tables2" in node.op for node in report.fused)
    np.testing.assert_allclose(_run(out), _run(source), rtol=1e-5, atol=1e-5)
