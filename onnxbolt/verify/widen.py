"""A copy of a bfloat16 model whose bfloat16 tensors are float32: ONNX Runtime has practically no bfloat16 on the CPU.

Weights keep their rounded values; intermediate results are no longer rounded.
"""
from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, numpy_helper

_TYPES = ("dtype", "output_dtype", "softmax_precision", "stash_type", "to")  # attributes that name an element type


def widened(model: ModelProto) -> ModelProto:
    """The copy; op types of fused nodes keep their names."""
    copy = ModelProto()
    copy.CopyFrom(model)
    _graph(copy.graph)
    for function in copy.functions:
        _nodes(function.node)
        _values(function.value_info)
    return copy


def _graph(graph: GraphProto) -> None:
    for tensor in graph.initializer:
        _tensor(tensor)
    for sparse in graph.sparse_initializer:
        _tensor(sparse.values)
    _values((*graph.input, *graph.output, *graph.value_info))
    _nodes(graph.node)


def _values(values: Iterable[ValueInfoProto]) -> None:
    for value in values:
        kind = value.type.tensor_type if value.type.HasField("tensor_type") else None
        if kind is not None and kind.elem_type == TensorProto.BFLOAT16:
            kind.elem_type = TensorProto.FLOAT


def _nodes(nodes: Iterable[NodeProto]) -> None:
    for node in nodes:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.INT and attribute.name in _TYPES and attribute.i == TensorProto.BFLOAT16:
                attribute.i = TensorProto.FLOAT
            if attribute.HasField("t"):
                _tensor(attribute.t)
            if attribute.HasField("g"):
                _graph(attribute.g)
            for inner in attribute.graphs:
                _graph(inner)


def _tensor(tensor: TensorProto) -> None:
    if tensor.data_type == TensorProto.BFLOAT16:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float32), tensor.name))
