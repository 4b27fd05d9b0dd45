"""Stored types and shapes that are not true are not believed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import ModelProto, TensorProto, helper
from onnxruntime.transformers.float16 import convert_float_to_float16

import onnxbolt
from onnxbolt.graph.importer import import_model
from onnxbolt.graph.shapes import infer
from onnxbolt.graph.stale import contradictions
from tests.support import Net, fused, ops

FLOAT, HALF = TensorProto.FLOAT, TensorProto.FLOAT16
Stored = tuple[int, Sequence[int | str] | None]


def network(stored: Stored, open_sizes: bool = True) -> ModelProto:
    """Two convolutions; `stored` is what the model says of the tensor between them."""
    net = Net({"x": ("N", 8, 48, "W") if open_sizes else (2, 8, 48, 96)})
    between = net.node("Relu", net.conv("x", 8, 16, 3, pads=[1] * 4, strides=[2, 2]))
    model = net.model(net.conv(between, 16, 8))
    model.graph.value_info.append(helper.make_tensor_value_info(between, *stored))
    return model


WRONG: list[Stored] = [
    (FLOAT, (1, 16, 24, 0)),  # inferred by a converter from a width of -1
    (FLOAT, (1, 16, 24, 48)),  # traced before the batch became symbolic
    (FLOAT, ("N", 16, 25, "V")),
    (FLOAT, ("N", 16, 24)),
    (HALF, ("N", 16, 24, "V")),
    (HALF, None),
]


@pytest.mark.parametrize("stored", WRONG)
def test_wrong_entries_are_not_believed(stored: Stored) -> None:
    model, bare = network(stored), network((FLOAT, None))
    assert len(contradictions(model)) == 1
    assert ops(fused(model)) == ops(fused(bare))
    assert sum(op.startswith("FusedConv") for op in ops(fused(model))) == 2
    graphs = [import_model(made) for made in (model, bare)]
    for graph in graphs:
        infer(graph)
    shapes, expected = (
        [(node.outputs[0].dtype, node.outputs[0].shape) for node in graph.nodes] for graph in graphs
    )
    assert shapes == expected
    assert (
        graphs[0]
        .notes[0]
        .startswith(
            "value_info: 1 of 2 stored types and shapes contradict shape inference, so none of"
            " them is used"
        )
    )
    assert not graphs[1].notes


@pytest.mark.parametrize(
    "stored", [(FLOAT, ("N", 16, 24, "V")), (FLOAT, None), (FLOAT, ("batch", "c", "h", "w"))]
)
def test_right_entries_are_kept(stored: Stored) -> None:
    model = network(stored)
    assert contradictions(model) == []
    assert list(import_model(model).stored_types) == list(model.graph.value_info)


def test_one_wrong_entry_discredits_what_inference_cannot_see() -> None:
    """Behind a Reshape to a computed shape, a batch of one was traced."""
    net = Net({"x": ("N", 4), "s": (2,)}, types={"s": TensorProto.INT64})
    first = net.node("Relu", "x")
    behind = net.node("Reshape", first, "s")
    model = net.model(net.node("Exp", behind))
    model.graph.value_info.extend(
        helper.make_tensor_value_info(name, FLOAT, [1, 4]) for name in (first, behind)
    )
    graph = import_model(model)
    infer(graph)
    assert all(not isinstance(size, int) for size in graph.nodes[1].outputs[0].shape)


def test_outputs_keep_their_types_alone() -> None:
    model = network((FLOAT, None))
    model.graph.output[0].CopyFrom(
        helper.make_tensor_value_info(model.graph.output[0].name, FLOAT, [1, 8, 24, 48])
    )
    graph = import_model(model)
    assert graph.outputs[0].dtype == "float32"
    assert graph.outputs[0].shape is None
    infer(graph)
    inferred: Any = graph.outputs[0].shape
    assert inferred[:3] == ["N", 8, 24]


def test_report_names_one(tmp_path: Path) -> None:
    report = onnxbolt.optimize(
        network(WRONG[0]), f"{tmp_path}/out.onnx", fuse="all", library=False, archs="sm_80"
    )
    assert any(
        "float[1, 16, 24, 0] is stored, float[3, 16, 24, 176] was inferred" in line
        for line in report.changes
    )
    assert report.passed
    assert "value_info: 1 of 2 stored types" in report.text()
    written = onnx.load(f"{tmp_path}/out.onnx")
    assert all(
        dim.dim_value or dim.dim_param
        for value in written.graph.value_info
        for dim in value.type.tensor_type.shape.dim
    )


def test_fixed_sizes_are_compared_as_they_are() -> None:
    assert contradictions(network((FLOAT, (2, 16, 24, 48)), open_sizes=False)) == []
    assert contradictions(network((FLOAT, (2, 16, 48, 48)), open_sizes=False))


@pytest.mark.parametrize("keep_io_types", [False, True])
def test_onnx_runtimes_float16_converter(keep_io_types: bool, tmp_path: Path) -> None:
    """It infers shapes of a width of -1, which ends in sizes of 0 and 1, and puts Casts of
    inputs behind the nodes that read them."""
    net = Net({"x": (-1, 3, 48, -1)}, opset=11)
    y = net.node("Relu", net.conv("x", 3, 16, 3, pads=[1] * 4, strides=[2, 2]))
    for _ in range(3):
        y = net.node("Relu", net.conv(y, 16, 16, 3, pads=[1] * 4, strides=[2, 2]))
    model = convert_float_to_float16(
        net.model(net.node("GlobalAveragePool", y)), keep_io_types=keep_io_types
    )
    report = onnxbolt.optimize(
        model, f"{tmp_path}/out.onnx", fuse="all", library=False, archs="sm_80"
    )
    assert report.passed
    assert sum(node.op.startswith("FusedConv") for node in report.fused) == 4
    assert any(line.startswith("value_info: ") for line in report.changes)
    del model.graph.value_info[:]
    bare = onnxbolt.optimize(model, fuse="all", library=False, verify=False, archs="sm_80")
    assert [node.op for node in report.fused] == [node.op for node in bare.fused]
