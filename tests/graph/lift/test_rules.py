"""Each rule: the lifted model answers as ONNX Runtime does for the old one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper

import onnxbolt
from onnxbolt.errors import LiftError
from onnxbolt.graph.exporter import export_model
from onnxbolt.graph.importer import WORKING_OPSET, import_model
from onnxbolt.graph.lift import default_opset, lifted
from onnxbolt.graph.shapes import infer
from tests.support import Net, feeds_of, run

IMAGE = (2, 3, 4, 6)


def through(model: ModelProto) -> ModelProto:
    """The model, imported and exported."""
    graph = import_model(model)
    infer(graph)
    return export_model(graph)


def assert_equal(model: ModelProto) -> ModelProto:
    """Importing the model lifts it, and changes no answer."""
    result, feeds = through(model), feeds_of(model)
    onnx.checker.check_model(result, full_check=True)
    assert default_opset(result) == WORKING_OPSET
    for expected, got in zip(run(model, feeds), run(result, feeds), strict=True):
        assert got.dtype == expected.dtype
        np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-6)
    return result


def one(
    op: str,
    opset: int,
    *others: object,
    shape: Sequence[int | str] = IMAGE,
    outputs: int = 1,
    **attributes: Any,
) -> ModelProto:
    """A model of one node, whose inputs behind x are constants."""
    net = Net({"x": shape}, opset=opset)
    inputs = [
        net.const(other, other.dtype if isinstance(other, np.ndarray) else np.float32)
        for other in others
    ]
    return net.model(*net.several(op, "x", *inputs, outputs=outputs, **attributes))


CHANNEL = np.array([0.5, -1.0, 2.0], np.float32)
CASES = {
    "clip-6": one("Clip", 6 + 1, min=-0.5, max=0.5),
    "clip-6 from below": one("Clip", 10, min=0.0),
    "clip-6 from above": one("Clip", 9, max=0.25),
    "clip-6 without bounds": one("Clip", 8),
    "pad-2": one("Pad", 7, pads=[0, 0, 1, 2, 0, 0, 0, 1]),
    "pad-2 with a value": one("Pad", 8, pads=[0, 0, 1, 1, 0, 0, 1, 1], value=1.5),
    "pad-2 reflect": one("Pad", 10, mode="reflect", pads=[0, 0, 1, 1, 0, 0, 1, 1]),
    "slice-1": one("Slice", 9, starts=[1, -3], ends=[3, 1000], axes=[2, 3]),
    "slice-1 without axes": one("Slice", 7, starts=[0, 1], ends=[1, 3]),
    "topk-1": one("TopK", 9, outputs=2, k=2, axis=3),
    "upsample-7": one("Upsample", 8, mode="nearest", scales=[1.0, 1.0, 2.0, 3.0]),
    "upsample-7 linear": one("Upsample", 7, mode="linear", scales=[1.0, 1.0, 2.0, 1.5]),
    "upsample-9": one("Upsample", 9, [1.0, 1.0, 2.0, 2.5], mode="nearest"),
    "resize-10 larger": one("Resize", 10, [1.0, 1.0, 1.5, 2.0], mode="nearest"),
    "resize-10 smaller": one("Resize", 10, [1.0, 1.0, 0.5, 0.7], mode="nearest"),
    "resize-10 linear": one("Resize", 10, [1.0, 1.0, 0.5, 2.0], mode="linear"),
    "softmax-1 of images": one("Softmax", 8, axis=1),
    "softmax-1 of pixels": one("Softmax", 9, axis=3),
    "softmax-11 of images": one("Softmax", 11, axis=-3),
    "softmax-1 by default": one("Softmax", 7),
    "softmax-1 of pooled images": one("LogSoftmax", 7, shape=(2, 5, 1, 1)),
    "hardmax-1": one("Hardmax", 10, axis=2),
    "dropout-7": one("Dropout", 7, ratio=0.3),
    "dropout-10": one("Dropout", 10),
    "gemm-7": one("Gemm", 8, np.float32(np.ones((6, 3))), CHANNEL, shape=(2, 6), alpha=0.5),
    "scatter-9": one(
        "Scatter",
        9,
        np.array([[0, 2], [1, 1]], np.int64),
        [[1.0, 2.0], [3.0, 4.0]],
        shape=(2, 3),
        axis=1,
    ),
    "squeeze-1": one("Squeeze", 9, shape=(2, 1, 3, 1), axes=[1, 3]),
    "squeeze-11 of all": one("Squeeze", 11, shape=(2, 1, 3, 1)),
    "unsqueeze-1": one("Unsqueeze", 7, axes=[0, 3]),
    "reducesum-1": one("ReduceSum", 10, axes=[2, 3], keepdims=0),
    "reducesum-11 of all": one("ReduceSum", 11),
    "split-2": one("Split", 8, outputs=2, axis=3, split=[2, 4]),
    "split-11 in halves": one("Split", 11, outputs=2, axis=-1),
    "batchnormalization-7": one(
        "BatchNormalization", 7, np.abs(CHANNEL), CHANNEL, CHANNEL, np.abs(CHANNEL)
    ),
    "batchnormalization-7, spatial=1": one(
        "BatchNormalization", 8, np.abs(CHANNEL), CHANNEL, CHANNEL, np.abs(CHANNEL), spatial=1
    ),
    "maxpool-1": one("MaxPool", 7, kernel_shape=[2, 2], strides=[2, 2]),
    "averagepool-7": one("AveragePool", 9, kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
    "prelu-7": one("PRelu", 7, CHANNEL.reshape(3, 1, 1)),
}


@pytest.mark.parametrize("name", CASES)
def test_a_rule_keeps_what_its_node_computes(name: str) -> None:
    assert_equal(CASES[name])


def test_statistics_of_each_element() -> None:
    rng = np.random.default_rng(0)
    x, mean, scale, bias = (
        rng.standard_normal(shape).astype(np.float32)
        for shape in (IMAGE, IMAGE[1:], IMAGE[1:], IMAGE[1:])
    )
    variance = rng.uniform(0.5, 2, IMAGE[1:]).astype(np.float32)
    model = one("BatchNormalization", 8, scale, bias, mean, variance, spatial=0, epsilon=0.01)
    expected = (x - mean) / np.sqrt(variance + np.float32(0.01)) * scale + bias
    np.testing.assert_allclose(run(through(model), {"x": x})[0], expected, rtol=1e-5, atol=1e-5)


def test_mask_that_is_read() -> None:
    """Opset 7 had it in x's type, and ONNX Runtime has all ones there."""
    model = one("Dropout", 9, outputs=2)
    model.graph.output[1].CopyFrom(
        helper.make_tensor_value_info(model.graph.output[1].name, TensorProto.FLOAT, IMAGE)
    )
    y, mask = run(through(model), feeds_of(model))
    np.testing.assert_array_equal(y, feeds_of(model)["x"])
    assert mask.dtype == np.float32
    np.testing.assert_array_equal(mask, np.ones(IMAGE))


def old(op: str, opset: int, y: Sequence[int], **attributes: Any) -> ModelProto:
    """A node of two inputs at an opset that ONNX Runtime runs no more."""
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node(op, ["x", "w"], ["y"], **attributes)],
        "old",
        [value("x", TensorProto.FLOAT, IMAGE), value("w", TensorProto.FLOAT, y)],
        [helper.make_empty_tensor_value_info("y")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=3)


@pytest.mark.parametrize(
    ("shape", "axis", "seen"),
    [((3,), 1, (3, 1, 1)), ((3, 4), 1, (3, 4, 1)), ((6,), None, (6,)), ((4, 6), 2, (4, 6))],
)
def test_broadcasting_by_an_axis(
    shape: tuple[int, ...], axis: int | None, seen: tuple[int, ...]
) -> None:
    model = old("Sub", 6, shape, broadcast=1, **({} if axis is None else {"axis": axis}))
    feeds = feeds_of(model)
    result = run(through(model), feeds)[0]
    np.testing.assert_array_equal(result, feeds["x"] - feeds["w"].reshape(seen))


def test_slopes_of_channels() -> None:
    model = old("PRelu", 6, (3,))
    feeds = feeds_of(model)
    x, slope = feeds["x"], feeds["w"].reshape(3, 1, 1)
    np.testing.assert_array_equal(run(through(model), feeds)[0], np.where(x < 0, x * slope, x))


def test_subgraphs_are_lifted() -> None:
    limits: tuple[dict[str, Any], ...] = ({"min": 0.0}, {"max": 1.0, "min": -1.0})
    branches = [
        helper.make_graph(
            [helper.make_node("Clip", ["x"], ["o"], **bounds)],
            "b",
            [],
            [helper.make_empty_tensor_value_info("o")],
        )
        for bounds in limits
    ]
    for branch in branches:
        branch.output[0].CopyFrom(helper.make_tensor_value_info("o", TensorProto.FLOAT, IMAGE))
    net = Net({"x": IMAGE}, opset=10)
    condition = net.node("Less", net.node("ReduceMean", "x", keepdims=0), net.const(0.1))
    net.nodes.append(
        helper.make_node("If", [condition], ["y"], then_branch=branches[0], else_branch=branches[1])
    )
    assert_equal(net.model("y"))


def test_newer_models_are_left_alone() -> None:
    model = one("Clip", 13, 0.0, 1.0)
    assert lifted(model, WORKING_OPSET).nodes is model.graph.node


def test_nodes_without_another_form_stay_as_they_are() -> None:
    net = Net({"x": IMAGE}, opset=8)
    model = net.model(net.node("Clip", net.node("Sigmoid", "x"), min=0.0))
    nodes = lifted(model, WORKING_OPSET).nodes
    assert nodes[0] is model.graph.node[0]
    assert [node.op_type for node in nodes] == ["Sigmoid", "Constant", "Clip"]


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (
            one("Resize", 10, [1.0, 1.0, 0.5, 2.0], mode="nearest"),
            "Resize 'resize0' of opset 10 .* enlarges one axis and shrinks another",
        ),
        (old("Dropout", 6, (3,)), "it is in training mode"),
        (old("Foo", 5, (3,)), None),
    ],
)
def test_nodes_that_cannot_be_lifted_say_why(model: ModelProto, reason: str | None) -> None:
    if reason is None:  # an operator that ONNX does not know: ONNX Runtime may, at any opset
        assert lifted(model, WORKING_OPSET).nodes[0] == model.graph.node[0]
    else:
        with pytest.raises(LiftError, match=reason):
            lifted(model, WORKING_OPSET)


def test_what_version_converter_loses_stays() -> None:
    """Sparse initializers and quantization annotations."""
    net = Net({"x": (2, 3)}, opset=10)
    model = net.model(net.node("Clip", net.node("MatMul", "x", "w"), min=0.0))
    model.graph.output[0].CopyFrom(
        helper.make_tensor_value_info(model.graph.output[0].name, TensorProto.FLOAT, [2, 4])
    )
    values, indices = (
        helper.make_tensor("w", TensorProto.FLOAT, [2], [1.0, 2.0]),
        helper.make_tensor("", TensorProto.INT64, [2], [0, 5]),
    )
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [3, 4]))
    annotation = model.graph.quantization_annotation.add(tensor_name=model.graph.node[0].output[0])
    annotation.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="x")
    result, feeds = through(model), feeds_of(model)
    np.testing.assert_array_equal(run(result, feeds)[0], run(model, feeds)[0])
    assert default_opset(result) == WORKING_OPSET
    assert list(result.graph.sparse_initializer) == list(model.graph.sparse_initializer)
    assert list(result.graph.quantization_annotation) == list(model.graph.quantization_annotation)


def test_report_and_file_of_a_model_that_cannot_be_lifted(tmp_path: Path) -> None:
    model = one("Resize", 10, [1.0, 1.0, 0.5, 2.0], mode="nearest")
    weights = [
        helper.make_tensor_value_info(t.name, t.data_type, list(t.dims))
        for t in model.graph.initializer
    ]
    model.graph.input.extend(weights)  # initializers that are inputs would be frozen
    report = onnxbolt.optimize(model, f"{tmp_path}/out.onnx")
    assert "enlarges one axis" in report.passed_through
    assert f"written unchanged: {report.passed_through}" in report.text()
    written = onnx.load(f"{tmp_path}/out.onnx")
    assert written.graph == model.graph
    assert list(written.opset_import) == list(model.opset_import)
    assert onnxbolt.session_options(f"{tmp_path}/out.onnx") is not None
