"""Types and shapes of a model as onnx infers them from inputs and constants alone; the types that
the model declares for other tensors are ignored.

Inference is given a skeleton: large constants are replaced by inputs of their type and shape, which
keeps it fast and below protobuf's 2 GiB; small ones stay, since shapes are computed from their
values.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, TypeProto, ValueInfoProto, helper

from onnxbolt.graph.order import protos_in_order
from onnxbolt.graph.scopes import subgraphs
from onnxbolt.graph.sizes import Sizes, filled, size_of

LARGE = 1024  # elements; a tensor that holds a shape has a handful
LEAST_IR = 8  # the first with model-local functions


def inferred_types(model: ModelProto, sizes: Sizes | None = None) -> dict[str, TypeProto]:
    """The type of each tensor that inference knows, by name, including those of subgraphs; symbolic
    dimensions of inputs get the numbers `sizes`.

    Raises onnx's InferenceError or ValidationError where the model contradicts itself so much that
    onnx gives up, ValueError where its nodes read one another in a cycle.
    """
    skeleton = ModelProto(
        ir_version=max(model.ir_version, LEAST_IR),
        opset_import=model.opset_import,
        functions=model.functions,
    )
    graph, given = skeleton.graph, {value.name for value in model.graph.input}
    graph.name = "skeleton"
    graph.input.extend(model.graph.input)
    for tensor in model.graph.initializer:
        if math.prod(tensor.dims) <= LARGE and not onnx.external_data_helper.uses_external_data(
            tensor
        ):
            graph.initializer.append(tensor)
        elif tensor.name not in given:
            graph.input.append(_declared(tensor.name, tensor))
    for sparse in model.graph.sparse_initializer:
        graph.input.append(
            helper.make_tensor_value_info(
                sparse.values.name, sparse.values.data_type, list(sparse.dims)
            )
        )
    for node in protos_in_order(model.graph.node):
        if (tensor := _large_constant(node)) is None:
            graph.node.append(node)
        else:
            graph.input.append(_declared(node.output[0], tensor))
    graph.output.extend(ValueInfoProto(name=value.name) for value in model.graph.output)
    if sizes is not None:
        _give_sizes(graph, sizes)
    import_domains(skeleton)
    inferred = onnx.shape_inference.infer_shapes(skeleton, data_prop=True)
    return {value.name: value.type for value in _all_values(inferred.graph)}


def import_domains(model: ModelProto) -> None:
    """Import the domains that nodes use and the model does not import. ONNX Runtime runs such
    models, inference refuses them."""
    known = {"", "ai.onnx"} | {entry.domain for entry in model.opset_import}
    new = sorted({node.domain for node in model.graph.node} - known)
    model.opset_import.extend(helper.make_opsetid(domain, 1) for domain in new)


def _declared(name: str, tensor: TensorProto) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, tensor.data_type, list(tensor.dims))


def _large_constant(node: NodeProto) -> TensorProto | None:
    """The value of a Constant node if it is large."""
    if (
        node.op_type != "Constant"
        or len(node.attribute) != 1
        or not node.attribute[0].HasField("t")
    ):
        return None
    tensor = node.attribute[0].t
    return tensor if math.prod(tensor.dims) > LARGE else None


def _give_sizes(graph: GraphProto, sizes: Sizes) -> None:
    """Replace open dimensions of inputs by numbers."""
    tensors = {
        value.name: value.type.tensor_type.shape.dim
        for value in graph.input
        if value.type.tensor_type.HasField("shape")
    }
    shapes = filled({name: [size_of(d) for d in dims] for name, dims in tensors.items()}, sizes)
    for name, dims in tensors.items():
        for dim, size in zip(dims, shapes[name], strict=True):
            dim.dim_value = size


def _all_values(graph: GraphProto) -> Iterator[ValueInfoProto]:
    yield from (*graph.input, *graph.value_info, *graph.output)
    for tensor in graph.initializer:
        yield _declared(tensor.name, tensor)
    for node in graph.node:
        for attribute in node.attribute:
            for inner in subgraphs(attribute):
                yield from _all_values(inner)
