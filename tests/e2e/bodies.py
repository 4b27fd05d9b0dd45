"""Puts a model into the body of an If, a Loop or a Scan, so that each model of the tests is one of
control flow as well."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import (
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
    helper,
    numpy_helper,
)

from onnxbolt.graph.scopes import names, rename

COUNT = 3  # iterations


def in_branches(model: ModelProto) -> ModelProto:
    """An If of an input: the model, or the negative of its results; both read the same weights."""
    result = _around(model)
    result.graph.input.append(helper.make_tensor_value_info("choose", TensorProto.BOOL, []))
    node = helper.make_node(
        "If",
        ["choose"],
        [value.name for value in model.graph.output],
        "if",
        then_branch=_body(model, "_then", {}),
        else_branch=_body(model, "_else", {}, negative=True),
    )
    result.graph.node.append(node)
    result.graph.output.extend(model.graph.output)
    return result


def in_loop(model: ModelProto) -> ModelProto:
    """A Loop that halves the model's first input in each iteration and collects its results. The
    first input is a state without a declared shape."""
    result, state = _around(model), model.graph.input[0]
    body = _body(model, "_loop", {state.name: "state"})
    kind = state.type.tensor_type.elem_type
    half = numpy_helper.from_array(
        np.array(0.5, helper.tensor_dtype_to_np_dtype(kind)), "half_of_state"
    )
    body.initializer.append(half)
    body.node.extend(
        [
            helper.make_node("Mul", ["state", half.name], ["next_state"]),
            helper.make_node("Identity", ["go"], ["goes"]),
        ]
    )
    body.input.extend(
        [
            helper.make_tensor_value_info("iteration", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("state", kind, None),
        ]
    )
    body.output.insert(0, helper.make_tensor_value_info("next_state", kind, None))
    body.output.insert(0, helper.make_tensor_value_info("goes", TensorProto.BOOL, None))
    result.graph.initializer.append(numpy_helper.from_array(np.array(COUNT), "count"))
    outputs = [f"{value.name}_all" for value in model.graph.output]
    result.graph.node.append(
        helper.make_node("Loop", ["count", "", state.name], ["last", *outputs], "loop", body=body)
    )
    result.graph.output.append(ValueInfoProto(name="last", type=state.type))
    _collect(result, model, COUNT)
    return result


def in_scan(model: ModelProto) -> ModelProto:
    """A Scan over a sequence of the model's first input, backwards, which counts."""
    result, first = _around(model), model.graph.input[0]
    body = _body(model, "_scan", {first.name: "slice"})
    one = numpy_helper.from_array(np.ones((), np.float32), "one_more")
    body.initializer.append(one)
    body.node.append(helper.make_node("Add", ["counted", one.name], ["counts"]))
    body.input.append(helper.make_tensor_value_info("counted", TensorProto.FLOAT, []))
    body.input.append(ValueInfoProto(name="slice", type=first.type))
    body.output.insert(0, helper.make_tensor_value_info("counts", TensorProto.FLOAT, []))
    sequence = result.graph.input[0].type.tensor_type.shape
    dims = [onnx.TensorShapeProto.Dimension(dim_value=COUNT), *sequence.dim]
    del sequence.dim[:]
    sequence.dim.extend(dims)
    result.graph.initializer.append(numpy_helper.from_array(np.zeros((), np.float32), "none_yet"))
    outputs = [f"{value.name}_all" for value in model.graph.output]
    result.graph.node.append(
        helper.make_node(
            "Scan",
            ["none_yet", first.name],
            ["number", *outputs],
            "scan",
            body=body,
            num_scan_inputs=1,
            scan_input_directions=[1],
        )
    )
    result.graph.output.append(helper.make_tensor_value_info("number", TensorProto.FLOAT, []))
    _collect(result, model, COUNT)
    return result


def _around(model: ModelProto) -> ModelProto:
    """The model without its nodes and outputs."""
    result = ModelProto()
    result.CopyFrom(model)
    for field in ("node", "output", "value_info"):
        result.graph.ClearField(field)
    return result


def _body(
    model: ModelProto, suffix: str, inputs: Mapping[str, str], negative: bool = False
) -> GraphProto:
    """The model's nodes as a body whose tensors are named with `suffix`, and that reads `inputs`
    under these names."""
    graph = onnx.helper.make_graph([], f"body{suffix}", [], [])
    nodes = [NodeProto.FromString(node.SerializeToString()) for node in model.graph.node]
    around = {value.name for value in model.graph.input} | {
        tensor.name for tensor in model.graph.initializer
    }
    made = [name for name in dict.fromkeys(names(model.graph)) if name and name not in around]
    new = {name: f"{name}{suffix}" for name in made} | dict(inputs)
    rename(nodes, new)
    graph.node.extend(nodes)
    for number, value in enumerate(model.graph.output):
        floating = value.type.tensor_type.elem_type in (TensorProto.FLOAT, TensorProto.FLOAT16)
        op = "Neg" if negative and floating else "Identity"
        name = f"result{number}{suffix}"
        graph.node.append(helper.make_node(op, [new.get(value.name, value.name)], [name]))
        kind = value.type.tensor_type.elem_type
        graph.output.append(helper.make_tensor_value_info(name, kind, None))
    return graph


def _collect(result: ModelProto, model: ModelProto, count: int) -> None:
    """Declare the results of all iterations."""
    for value in model.graph.output:
        kind = value.type.tensor_type
        sizes = [dim.dim_value or dim.dim_param or None for dim in kind.shape.dim]
        shape = [count, *sizes] if kind.HasField("shape") else None
        result.graph.output.append(
            helper.make_tensor_value_info(f"{value.name}_all", kind.elem_type, shape)
        )
