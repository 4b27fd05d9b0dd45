"""The stored graphs: each runs, is what its name says, and has one form behind
`canonicalize.quantized`."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest

from onnxbolt.canonicalize import quantized
from onnxbolt.canonicalize.quantized.scaling import INTEGERS, is_dequantize, is_quantize
from onnxbolt.graph.exporter import export_model
from onnxbolt.graph.importer import import_model
from onnxbolt.graph.shapes import infer
from tests.canonicalize.compare import operators, outputs_of
from tests.quantized import stored
from tests.quantized.subjects import SUBJECTS
from tests.quantized.tools import TOOLS

_LARGEST = 20_000  # bytes of a file
_PRODUCTS = ("Conv", "Gemm", "MatMul")
_STEPS = 0.02  # one step of a code within a model, relative to the largest output


def graph_of(name: str) -> gs.Graph:
    graph = import_model(stored.graph(name))
    infer(graph)
    return graph


def test_all_are_stored() -> None:
    assert stored.names() == sorted(f"{s}.{form}" for s in SUBJECTS for form in TOOLS)


@pytest.mark.parametrize("name", stored.names())
def test_each_is_small_and_near_its_original(name: str) -> None:
    assert (stored.FOLDER / f"{name}{stored.SUFFIX}").stat().st_size <= _LARGEST
    model, original = stored.graph(name), SUBJECTS[name.partition(".")[0]]()
    outputs = [value.name for value in original.graph.output]
    feeds = _feeds(model)
    (y,) = outputs_of(model, [value.name for value in model.graph.output], feeds)
    (expected,) = outputs_of(
        original, outputs, {key: value.astype(np.float32) for key, value in feeds.items()}
    )
    error = np.linalg.norm(y.astype(np.float64) - expected) / np.linalg.norm(expected)
    assert error < 0.15


@pytest.mark.parametrize("name", stored.names())
def test_one_form_with_the_same_results(name: str) -> None:
    """Bit for bit, but for the order in which Gemm adds its bias; integer kernels of QOperator
    round otherwise than floats."""
    model, graph = stored.graph(name), graph_of(name)
    quantized.rewrite(graph)
    exported = export_model(graph)
    onnx.checker.check_model(exported)
    _is_canonical(graph)
    outputs, feeds = [value.name for value in model.graph.output], _feeds(model)
    (before,), (after,) = (outputs_of(each, outputs, feeds) for each in (model, exported))
    if "qoperator" in name:
        assert np.abs(after - before).max() <= _STEPS * np.abs(before).max()
    elif before.dtype == np.float32 and not is_dequantize(graph.outputs[0].inputs[0]):
        np.testing.assert_allclose(after, before, rtol=0, atol=2.0**-21 * np.abs(before).max())
    else:
        assert after.tobytes() == before.tobytes()


def _is_canonical(graph: gs.Graph) -> None:
    assert not [op for op in operators(graph) if "QLinear" in op or "QGemm" in op]
    for node in graph.nodes:
        if is_quantize(node):
            assert not isinstance(node.inputs[0], gs.Constant)
        if node.op in _PRODUCTS:
            x, weight = (tensor.inputs[0] for tensor in node.inputs[:2])
            assert is_dequantize(x)
            assert is_dequantize(weight)
            assert isinstance(weight.inputs[0], gs.Constant)
            assert weight.inputs[0].dtype not in INTEGERS or weight.inputs[0].dtype == np.int8
            assert all(isinstance(bias, gs.Constant) for bias in node.inputs[2:])
        if node.op == "Clip":
            assert node.inputs[0].dtype == np.float32


def test_tools_agree_on_the_form() -> None:
    """QDQ and QOperator of the same choices are the same nodes; ModelOpt and Brevitas differ by
    Clips alone."""
    for subject in SUBJECTS:
        counts = {}
        for form in TOOLS:
            graph = graph_of(f"{subject}.{form}")
            quantized.rewrite(graph)
            counts[form] = Counter(operators(graph))
        for choice in ("u8s8.channel", "u8u8.tensor"):
            assert counts[f"ort.qdq.{choice}"] == counts[f"ort.qoperator.{choice}"]
        clips = counts["brevitas.int8"] - counts["modelopt.int8"]
        assert set(clips) == {"Clip"}


def _feeds(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    (x,) = model.graph.input
    dtype = onnx.helper.tensor_dtype_to_np_dtype(x.type.tensor_type.elem_type)
    shape = [dim.dim_value for dim in x.type.tensor_type.shape.dim]
    return {x.name: np.random.default_rng(5).standard_normal(shape).astype(dtype)}
