"""Convolutions that a written model leaves to ONNX Runtime, and whether their sizes vary.

ONNX Runtime's CUDA provider may search for the fastest algorithm of each of them, for every new
size of its input again. `runtime.cuda_provider` chooses the kind of search by these facts, which it
reads from the model's metadata.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

from onnx import ModelProto, NodeProto

from onnxbolt.domains import FUSED
from onnxbolt.graph.importer import tensor_type
from onnxbolt.graph.scopes import subgraphs
from onnxbolt.graph.sizes import Size
from onnxbolt.names import CONVOLUTIONS, FIXED, INPUTS, NONE, OPEN

_SEARCHED = frozenset({"Conv", "ConvTranspose", "FusedConv", "NhwcConv", "NhwcFusedConv"})
_POOLINGS = frozenset({"AveragePool", "GlobalAveragePool", "GlobalMaxPool", "MaxPool"})


def convolutions(model: ModelProto) -> Iterator[NodeProto]:
    """The convolutions that ONNX Runtime runs, also in subgraphs and in functions of others."""
    return _left(model, _SEARCHED)


def poolings(model: ModelProto) -> Iterator[NodeProto]:
    """The poolings that ONNX Runtime runs, also in subgraphs and in functions of others."""
    return _left(model, _POOLINGS)


def _left(model: ModelProto, operators: Container[str]) -> Iterator[NodeProto]:
    yield from _of_nodes(model.graph.node, operators)
    for function in model.functions:
        if function.domain != FUSED:
            yield from _of_nodes(function.node, operators)


def _of_nodes(nodes: Iterable[NodeProto], operators: Container[str]) -> Iterator[NodeProto]:
    for node in nodes:
        if node.op_type in operators and node.domain != FUSED:
            yield node
        for attribute in node.attribute:
            for inner in subgraphs(attribute):
                yield from _of_nodes(inner.node, operators)


def facts_of(
    model: ModelProto, shapes: Mapping[str, Sequence[Size] | None] | None = None
) -> dict[str, str]:
    """The entries of a written model's metadata for `runtime.cuda_provider`. `shapes` are those of
    tensors, as far as they are known; without them, those that the model declares."""
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = {
        value.name: tensor_type(value.type)[1]
        for value in model.graph.input
        if value.name not in weights
    }
    if shapes is None:
        shapes = inputs | {
            value.name: tensor_type(value.type)[1] for value in model.graph.value_info
        }
    left = [shapes.get(node.input[0]) for node in convolutions(model)]
    return {
        CONVOLUTIONS: _sizes_of(left) if left else NONE,
        INPUTS: _sizes_of(inputs.values()),
    }


def _sizes_of(shapes: Iterable[Sequence[Size] | None]) -> str:
    known = (s is not None and all(isinstance(size, int) for size in s) for s in shapes)
    return FIXED if all(known) else OPEN
