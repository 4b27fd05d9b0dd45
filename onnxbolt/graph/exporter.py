"""gs.Graph -> ModelProto. Whatever no stage changed is copied from the source model byte for
byte."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

from onnxbolt import domains
from onnxbolt.graph import weights
from onnxbolt.graph.edit import Constant, Weight
from onnxbolt.graph.element_types import onnx_dtype
from onnxbolt.graph.fields import copy_fields
from onnxbolt.graph.importer import tensor_type
from onnxbolt.graph.order import in_order
from onnxbolt.graph.skeleton import LEAST_IR
from onnxbolt.graph.weights import Weights

FUSED_DOMAIN, INTERNAL_DOMAIN = domains.FUSED, domains.INTERNAL
# the fields of a graph that are written anew
_WRITTEN = (
    "node",
    "initializer",
    "sparse_initializer",
    "value_info",
    "input",
    "output",
    "quantization_annotation",
)


def export_model(
    graph: gs.Graph,
    functions: Sequence[FunctionProto] = (),
    metadata: Mapping[str, str] | None = None,
) -> ModelProto:
    """The ModelProto of a graph that `import_model` made, with `functions` and with `metadata`
    (keys of metadata_props) added.

    Raises ValueError where a stage left a cycle or a node of the internal domain behind.
    """
    return weights.complete(*export_apart(graph, functions, metadata))


def export_apart(
    graph: gs.Graph,
    functions: Sequence[FunctionProto] = (),
    metadata: Mapping[str, str] | None = None,
) -> tuple[ModelProto, Weights]:
    """As `export_model`, but large initializers have no data; the second result has their constants
    by name."""
    source: ModelProto = graph.source
    model = ModelProto()
    copy_fields(source, model, skip=("graph", "functions", "metadata_props", "opset_import"))
    model.opset_import.extend(graph.import_domains)
    copy_fields(
        source.graph,
        model.graph,
        skip=_WRITTEN,
    )
    model.ir_version = max(source.ir_version, LEAST_IR)
    if any(part.domain == FUSED_DOMAIN for part in (*graph.nodes, *functions)) and not any(
        o.domain == FUSED_DOMAIN for o in model.opset_import
    ):
        model.opset_import.append(onnx.helper.make_opsetid(FUSED_DOMAIN, 1))
    new = {(f.domain, f.name) for f in functions}
    model.functions.extend(
        [f for f in source.functions if (f.domain, f.name) not in new] + list(functions)
    )
    properties = {entry.key: entry.value for entry in source.metadata_props} | dict(metadata or {})
    onnx.helper.set_model_props(model, properties)
    return model, _fill(graph, model.graph)


def export_body(
    graph: gs.Graph, inputs: Collection[str], initializers: Collection[str]
) -> GraphProto:
    """The graph of a body's model (bodies.py) as the body: with its own `inputs` and
    `initializers`, and without those around it."""
    target = GraphProto()
    copy_fields(graph.source.graph, target, skip=_WRITTEN)
    large = _fill(graph, target)
    own = [t for t in target.initializer if t.name in initializers]
    for field, kept in (
        ("input", [value for value in target.input if value.name in inputs]),
        ("initializer", [tensor_proto(large[t.name]) if t.name in large else t for t in own]),
    ):
        target.ClearField(field)
        getattr(target, field).extend(kept)
    return target


def _fill(graph: gs.Graph, target: GraphProto) -> Weights:
    """Write the nodes, the constants and the types of inner tensors; returns the constants that
    were written without data."""
    source: GraphProto = graph.source.graph
    constants = used_constants(graph)
    target.node.extend(
        node_proto(item) for item in in_order(graph, [c for c in constants.values() if _is_node(c)])
    )
    variables = used_variables(graph)
    alive = constants.keys() | variables.keys() | graph.captured | {t.name for t in graph.outputs}
    initializers = {
        name: constant for name, constant in constants.items() if not _is_node(constant)
    }
    large = {
        name: constant
        for name, constant in initializers.items()
        if isinstance(constant, Weight) and constant.is_large
    }
    target.initializer.extend(_initializers(graph, initializers, large))
    target.sparse_initializer.extend(s for s in source.sparse_initializer if s.values.name in alive)
    target.quantization_annotation.extend(
        a for a in source.quantization_annotation if a.tensor_name in alive
    )
    declared = {value.name: value for value in (*source.input, *source.output)}
    target.input.extend(value_info(tensor, declared.get(tensor.name)) for tensor in graph.inputs)
    target.output.extend(value_info(tensor, declared.get(tensor.name)) for tensor in graph.outputs)
    target.value_info.extend(_inner_types(graph, variables | constants))
    return large


def used_constants(graph: gs.Graph) -> dict[str, gs.Constant]:
    """Constants that a node, an output or a subgraph reads, by name, in order of first use."""
    tensors = [tensor for node in graph.nodes for tensor in node.inputs] + list(graph.outputs)
    tensors += [graph.constants[name] for name in sorted(graph.captured) if name in graph.constants]
    used: dict[str, gs.Constant] = {}
    for tensor in tensors:
        if isinstance(tensor, gs.Constant):
            used.setdefault(tensor.name, tensor)
    return used


def used_variables(graph: gs.Graph) -> dict[str, gs.Variable]:
    tensors = (tensor for node in graph.nodes for tensor in (*node.inputs, *node.outputs))
    return {
        tensor.name: tensor for tensor in tensors if isinstance(tensor, gs.Variable) and tensor.name
    }


def _initializers(
    graph: gs.Graph, constants: dict[str, gs.Constant], large: Weights
) -> Iterator[TensorProto]:
    """The source's initializers in its order, overridable ones included, then new ones; `large`
    ones have no data."""
    overridable = {tensor.name for tensor in graph.inputs}
    for tensor in graph.source.graph.initializer:
        if tensor.name in overridable:
            yield tensor
        elif tensor.name in constants:
            yield _initializer(constants.pop(tensor.name), large)
    for constant in constants.values():
        yield _initializer(constant, large)


def _initializer(constant: gs.Constant, large: Weights) -> TensorProto:
    if constant.name not in large:
        return tensor_proto(constant)
    return TensorProto(
        name=constant.name, dims=constant.shape, data_type=onnx_dtype(constant.dtype)
    )


def _is_node(constant: gs.Constant) -> bool:
    """True if the constant is still the Constant node of the source model."""
    if not isinstance(constant, Constant) or constant.origin is None:
        return False
    return constant.untouched and constant.name == constant.origin.output[0]


def tensor_proto(constant: gs.Constant) -> TensorProto:
    """The constant with its data: the source's own TensorProto, renamed if need be, while its
    values are unchanged and in the message."""
    if (
        not isinstance(constant, Constant)
        or not constant.untouched
        or weights.is_apart(constant.proto)
    ):
        return onnx.numpy_helper.from_array(constant.values, constant.name)
    tensor = constant.proto
    if constant.name != tensor.name:
        tensor = TensorProto()
        tensor.CopyFrom(constant.proto)
        tensor.name = constant.name
    return tensor


def node_proto(item: Any) -> NodeProto:
    """The NodeProto of a node: its origin, if it has one, with the current inputs and outputs."""
    if isinstance(item, Constant) and item.origin is not None:
        return item.origin
    if item.domain == INTERNAL_DOMAIN:
        raise ValueError(
            f"node {item.name!r} is {INTERNAL_DOMAIN}.{item.op}: call"
            " canonicalize.activations.restore before export"
        )
    inputs, outputs = [t.name for t in item.inputs], [t.name for t in item.outputs]
    origin: NodeProto | None = getattr(item, "origin", None)
    if origin is not None and (list(origin.input), list(origin.output)) == (inputs, outputs):
        return origin
    node = NodeProto()
    if origin is not None:
        node.CopyFrom(origin)
        del node.input[:], node.output[:]
    else:
        node.op_type, node.name, node.domain = item.op, item.name, item.domain or ""
        node.attribute.extend(_attribute(item, name, value) for name, value in item.attrs.items())
    node.input.extend(inputs)
    node.output.extend(outputs)
    return node


def _attribute(node: gs.Node, name: str, value: Any) -> onnx.AttributeProto:
    if isinstance(value, onnx.AttributeProto):
        return value
    if isinstance(value, np.ndarray):
        value = onnx.numpy_helper.from_array(value)
    if isinstance(value, (list, tuple)) and not value:
        return onnx.helper.make_attribute(name, [], attr_type=_list_type(node, name))
    return onnx.helper.make_attribute(name, value)


def _list_type(node: gs.Node, name: str) -> int:
    """The attribute type of an empty list, whose elements cannot tell it: from the operator's
    schema, else integers."""
    if onnx.defs.has(node.op, node.domain or ""):
        attributes = onnx.defs.get_schema(node.op, node.domain or "").attributes
        if name in attributes:
            return int(attributes[name].type)  # type: ignore[call-overload]  # an IntEnum
    return int(onnx.AttributeProto.INTS)


def value_info(tensor: gs.Tensor, source: ValueInfoProto | None) -> ValueInfoProto:
    """The type of a tensor: the source's own entry if that is still true."""
    if source is not None and _still_true(tensor, source):
        return source
    return onnx.helper.make_tensor_value_info(
        tensor.name, onnx_dtype(tensor.dtype), None if tensor.shape is None else list(tensor.shape)
    )


def _still_true(tensor: gs.Tensor, source: ValueInfoProto) -> bool:
    dtype, shape = tensor_type(source.type)
    if dtype is None or tensor.dtype is None:  # a sequence, a map, or nothing known
        return True
    if dtype != tensor.dtype:
        return False
    if shape is None or tensor.shape is None:
        return True
    return len(shape) == len(tensor.shape) and all(
        a == b or not (isinstance(a, int) and isinstance(b, int))
        for a, b in zip(shape, tensor.shape, strict=True)
    )


def _inner_types(graph: gs.Graph, tensors: Mapping[str, gs.Tensor]) -> Iterator[ValueInfoProto]:
    """Types of inner tensors: the source's entries that are still true, then those of new
    tensors."""
    ends = {tensor.name for tensor in (*graph.inputs, *graph.outputs)}
    for value in graph.stored_types:
        if value.name in tensors and value.name not in ends:
            tensor = tensors[value.name]
            if tensor.shape is not None or _still_true(tensor, value):
                yield value_info(tensor, value)
    for name, tensor in tensors.items():
        if (
            name not in graph.source_tensors
            and isinstance(tensor, gs.Variable)
            and tensor.dtype is not None
            and tensor.shape is not None
        ):
            yield value_info(tensor, None)
