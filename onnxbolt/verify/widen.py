"""A copy of a model whose bfloat16, or all 16-bit, tensors are float32.

Weights keep their rounded values; intermediate results are no longer rounded. ONNX Runtime has practically no bfloat16 on the CPU, and a
model in 16 bits is judged by what it would answer without rounding.
"""
from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, numpy_helper

BFLOAT16 = frozenset((TensorProto.BFLOAT16,))
SIXTEEN_BITS = frozenset((TensorProto.FLOAT16, TensorProto.BFLOAT16))
_NAMING_TYPES = ("dtype", "output_dtype", "softmax_precision", "stash_type", "to")  # attributes that name an element type


def widened(model: ModelProto, types: frozenset[int] = BFLOAT16) -> ModelProto:
    """The copy, with float32 in the place of `types`; op types of fused nodes keep their names."""
    copy = ModelProto()
    copy.CopyFrom(model)
    widening = _Widening(types)
    widening.graph(copy.graph)
    for function in copy.functions:
        widening.nodes(function.node)
        widening.values(function.value_info)
    return copy


@dataclass(frozen=True)
class _Widening:
    """Changes what it is given in place."""

    types: frozenset[int]

    def graph(self, graph: GraphProto) -> None:
        for tensor in graph.initializer:
            self.tensor(tensor)
        for sparse in graph.sparse_initializer:
            self.tensor(sparse.values)
        self.values((*graph.input, *graph.output, *graph.value_info))
        self.nodes(graph.node)

    def values(self, values: Iterable[ValueInfoProto]) -> None:
        for value in values:
            kind = value.type.tensor_type if value.type.HasField("tensor_type") else None
            if kind is not None and kind.elem_type in self.types:
                kind.elem_type = TensorProto.FLOAT

    def nodes(self, nodes: Iterable[NodeProto]) -> None:
        for node in nodes:
            for attribute in node.attribute:
                if attribute.type == AttributeProto.INT and attribute.name in _NAMING_TYPES and attribute.i in self.types:
                    attribute.i = TensorProto.FLOAT
                if attribute.HasField("t"):
                    self.tensor(attribute.t)
                if attribute.HasField("g"):
                    self.graph(attribute.g)
                for inner in attribute.graphs:
                    self.graph(inner)

    def tensor(self, tensor: TensorProto) -> None:
        if tensor.data_type in self.types:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float32), tensor.name))
