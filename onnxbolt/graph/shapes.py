"""Types and shapes of all tensors, by onnx's inference with data propagation, at a newer opset if
that infers more (newer.py).

Inference is given a skeleton of the model: large initializers are replaced by inputs of their type
and shape, which keeps it fast and below protobuf's 2 GiB; small ones stay, since shapes are
computed from their values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeGuard

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from onnx import ModelProto, NodeProto, numpy_helper

from onnxbolt.errors import InputError
from onnxbolt.graph import contrib
from onnxbolt.graph.edit import scalar
from onnxbolt.graph.exporter import (
    INTERNAL_DOMAIN,
    node_proto,
    tensor_proto,
    used_constants,
    used_variables,
    value_info,
)
from onnxbolt.graph.importer import tensor_type
from onnxbolt.graph.newer import newer
from onnxbolt.graph.order import in_order
from onnxbolt.graph.skeleton import LARGE, LEAST_IR, import_domains
from onnxbolt.graph.symbols import Meanings, is_generated
from onnxbolt.graph.values import evaluate

Shape = list[int | str | None]


def infer(graph: gs.Graph) -> None:
    """Set `dtype` and `shape` of every Variable as far as they are known; a symbolic dimension is a
    string, an unknown one None.

    Raises InputError where the model contradicts itself so much that onnx gives up.
    """
    _refine_all(graph)
    if any(_told(graph)):  # infer what follows from them
        _refine_all(graph)


def _refine_all(graph: gs.Graph) -> None:
    inferred = {value.name: value for value in _inferred(_skeleton(graph))}
    meanings = Meanings()
    for node in in_order(graph):
        for tensor in node.outputs:
            if tensor.name in inferred:
                _refine(node, tensor, inferred[tensor.name], meanings)


def infer_at(
    graph: gs.Graph, points: Sequence[Mapping[str, Sequence[int | str | None]]]
) -> list[dict[str, Shape]]:
    """The shapes of all tensors by name, for each of `points` (shapes of graph inputs by name); the
    graph is not changed. Sizes that the model computes by other operators than inference knows are
    evaluated.

    Raises InputError as `infer` does.
    """
    skeleton, variables = _skeleton(graph), used_variables(graph)
    found = []
    for point in points:
        sized = ModelProto()
        sized.CopyFrom(skeleton)
        _resize(sized, point)
        shapes: dict[str, Shape] = {name: list(shape) for name, shape in point.items()}
        while True:
            inferred = {value.name: tensor_type(value.type)[1] for value in _inferred(sized)}
            for name, shape in inferred.items():
                if shape is not None and name in variables:
                    shapes[name] = _merged(shape, variables[name].shape)
            values = {} if all(map(is_known, inferred.values())) else evaluate(sized, shapes)
            if not values:
                break
            shapes |= {name: list(value.shape) for name, value in values.items()}
        found.append(shapes)
    return found


def is_known(shape: Shape | None) -> TypeGuard[list[int]]:
    return shape is not None and all(isinstance(size, int) for size in shape)


def infer_inner(graph: gs.Graph, point: Mapping[str, Sequence[int | str | None]]) -> ModelProto:
    """The model without its weights, for inputs of the shapes of `point`; the subgraphs declare the
    shapes of their tensors.

    Raises InputError as `infer` does.
    """
    skeleton = _skeleton(graph)
    _resize(skeleton, point)
    return _with_shapes(skeleton)


def _resize(skeleton: ModelProto, point: Mapping[str, Sequence[int | str | None]]) -> None:
    for value in skeleton.graph.input:
        if value.name in point:
            value.CopyFrom(
                onnx.helper.make_tensor_value_info(
                    value.name, value.type.tensor_type.elem_type, list(point[value.name])
                )
            )


def _inferred(skeleton: ModelProto) -> Sequence[onnx.ValueInfoProto]:
    graph = _with_shapes(skeleton).graph
    return (*graph.value_info, *graph.output)


def _with_shapes(skeleton: ModelProto) -> ModelProto:
    try:
        return onnx.shape_inference.infer_shapes(
            newer(skeleton), check_type=False, strict_mode=False, data_prop=True
        )
    except (onnx.shape_inference.InferenceError, onnx.checker.ValidationError) as error:
        raise InputError(
            f"the model's shapes cannot be inferred: {error}; run onnx.checker.check_model on it"
        ) from error


def _refine(
    node: gs.Node, tensor: gs.Variable, value: onnx.ValueInfoProto, meanings: Meanings
) -> None:
    """Take over inferred types and shapes; a dimension that inference lost keeps its previous
    value."""
    dtype, shape = tensor_type(value.type)
    if dtype is None:
        return
    tensor.dtype = dtype
    if shape is not None:
        tensor.shape = meanings.shape(node, tensor, shape)


def _merged(new: Shape, old: Shape | None) -> Shape:
    return (
        [_better(*pair) for pair in zip(new, old, strict=True)]
        if old is not None and len(old) == len(new)
        else new
    )


def _better(new: int | str | None, old: int | str | None) -> int | str | None:
    if isinstance(new, int) or old is None:
        return new
    return old if new is None or is_generated(new) or isinstance(old, int) else new


def _skeleton(graph: gs.Graph) -> ModelProto:
    source: ModelProto = graph.source
    model = ModelProto(
        ir_version=max(source.ir_version, LEAST_IR),
        opset_import=graph.import_domains,
        functions=source.functions,
    )
    model.graph.name = source.graph.name or "graph"
    declared = {value.name: value for value in source.graph.input}
    model.graph.input.extend(
        value_info(tensor, declared.get(tensor.name)) for tensor in graph.inputs
    )
    for constant in used_constants(graph).values():
        if np.prod(constant.shape) > LARGE:
            model.graph.input.append(value_info(constant, None))
        else:
            model.graph.initializer.append(tensor_proto(constant))
    model.graph.input.extend(value_info(tensor, None) for tensor in _opaque_sources(graph))
    model.graph.node.extend(node for item in in_order(graph) for node in _stand_ins(item))
    model.graph.value_info.extend(_told(graph))
    import_domains(model)
    # outputs without a type: what the source says of them is merged in afterwards, so that it
    # cannot contradict inference
    model.graph.output.extend(onnx.ValueInfoProto(name=tensor.name) for tensor in graph.outputs)
    return model


def _told(graph: gs.Graph) -> Iterator[onnx.ValueInfoProto]:
    """The tensors of which something else than inference tells the shape: a filter the channels, or
    the source all of it, behind operators that inference does not know."""
    told = dict[str, onnx.ValueInfoProto]()
    for value in (*_of_unknown_channels(graph), *_in_front_of_unknown(graph)):
        told.setdefault(value.name, value)
    yield from told.values()


def _in_front_of_unknown(graph: gs.Graph) -> Iterator[onnx.ValueInfoProto]:
    """The known shapes of tensors that feed operators of ONNX with results of unknown shape."""
    for node in graph.nodes:
        if node.domain or all(tensor.shape is not None for tensor in node.outputs):
            continue
        for tensor in node.inputs:
            if tensor.inputs and tensor.shape is not None and isinstance(tensor.dtype, np.dtype):
                yield value_info(tensor, None)


def _of_unknown_channels(graph: gs.Graph) -> Iterator[onnx.ValueInfoProto]:
    """The images whose channels inference does not know, with those that a convolution's filters
    have: a Pad's or a Tile's counts are computed, for example."""
    told = set[str]()
    for node in graph.nodes:
        if node.domain or node.op != "Conv" or not isinstance(node.inputs[1], gs.Constant):
            continue
        x, weight = node.inputs[0], node.inputs[1]
        shape = x.shape
        if not x.inputs or shape is None or len(shape) != len(weight.shape) or x.name in told:
            continue
        if not isinstance(shape[1], int):
            told.add(x.name)
            channels = int(weight.shape[1]) * int(node.attrs.get("group", 1))
            kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(weight.dtype))
            sizes = [shape[0], channels, *shape[2:]]
            yield onnx.helper.make_tensor_value_info(x.name, kind, sizes)


def _opaque_sources(graph: gs.Graph) -> Iterator[gs.Variable]:
    """Tensors that are neither a node's output nor a graph input: sparse initializers."""
    inputs = {tensor.name for tensor in graph.inputs}
    for tensor in used_variables(graph).values():
        if not tensor.inputs and tensor.name not in inputs and tensor.dtype is not None:
            yield tensor


def _stand_ins(node: gs.Node) -> Sequence[NodeProto]:
    """The node itself; for a recognized node, an operator of ONNX Runtime and a Range, nodes with
    outputs of the same types and shapes."""
    if node.domain == INTERNAL_DOMAIN:
        if attention := contrib.attention(node):
            return attention
        return [onnx.helper.make_node("Identity", [node.inputs[0].name], [node.outputs[0].name])]
    return contrib.stand_ins(node) or _count(node) or [node_proto(node)]


def _count(node: gs.Node) -> Sequence[NodeProto]:
    """For the Range from 0 to before n, a tensor of n numbers, whose size inference knows where n
    is that of a tensor's axis."""
    if node.op != "Range" or node.domain or scalar(node.inputs[0]) != 0:
        return []
    if scalar(node.inputs[2]) != 1 or node.inputs[0].dtype != np.int64:
        return []
    axis, shape = (f"{node.outputs[0].name}/{name}" for name in ("axis", "shape"))
    zero = numpy_helper.from_array(np.zeros(1, np.int64))
    return [
        onnx.helper.make_node("Constant", [], [axis], value=zero),
        onnx.helper.make_node("Unsqueeze", [node.inputs[1].name, axis], [shape]),
        onnx.helper.make_node("ConstantOfShape", [shape], [node.outputs[0].name], value=zero),
    ]
