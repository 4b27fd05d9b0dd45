"""A copy of a model with float32 tensors instead of bfloat16 ones, or of all 16-bit ones.

Weights keep their rounded values; intermediate results are no longer rounded. ONNX Runtime has
hardly any bfloat16 kernels on the CPU, and the reference of a 16-bit model is its output without
rounding.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import numpy as np
from onnx import (
    AttributeProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
    numpy_helper,
)

from onnxbolt.graph import weights
from onnxbolt.graph.edit import Derived, Weight
from onnxbolt.graph.weights import Weights

BFLOAT16 = frozenset((TensorProto.BFLOAT16,))
SIXTEEN_BITS = frozenset((TensorProto.FLOAT16, TensorProto.BFLOAT16))
# attributes that name an element type
NAMING_TYPES = ("dtype", "output_dtype", "softmax_precision", "stash_type", "to")


def widened(
    model: ModelProto, types: frozenset[int] = BFLOAT16, large: Weights | None = None
) -> tuple[ModelProto, Weights]:
    """The copy, with float32 instead of `types`, and the data that its initializers lack, in the
    form of `large`.

    Op types of fused nodes keep their names.
    """
    copy = ModelProto()
    copy.CopyFrom(model)
    wide = dict(large or {})
    for tensor, original in zip(copy.graph.initializer, model.graph.initializer, strict=True):
        if tensor.data_type in types and weights.lacks_data(tensor, large or {}):
            read = partial(_float_values, original, large or {})
            wide[tensor.name] = Weight(
                tensor.name, Derived(read, np.dtype(np.float32), tensor.dims)
            )
            tensor.CopyFrom(
                TensorProto(name=tensor.name, dims=tensor.dims, data_type=TensorProto.FLOAT)
            )
    widening = _Widening(types)
    widening.graph(copy.graph)
    for function in copy.functions:
        widening.nodes(function.node)
        widening.values(function.value_info)
    return copy, wide


def _float_values(tensor: TensorProto, large: Weights) -> np.ndarray:
    return (large[tensor.name].values if tensor.name in large else weights.values(tensor)).astype(
        np.float32
    )


@dataclass(frozen=True)
class _Widening:
    """Changes protobuf messages in place."""

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
                if (
                    attribute.type == AttributeProto.INT
                    and attribute.name in NAMING_TYPES
                    and attribute.i in self.types
                ):
                    attribute.i = TensorProto.FLOAT
                if attribute.HasField("t"):
                    self.tensor(attribute.t)
                if attribute.HasField("g"):
                    self.graph(attribute.g)
                for inner in attribute.graphs:
                    self.graph(inner)

    def tensor(self, tensor: TensorProto) -> None:
        if tensor.data_type in self.types:
            tensor.CopyFrom(
                numpy_helper.from_array(
                    numpy_helper.to_array(tensor).astype(np.float32), tensor.name
                )
            )
