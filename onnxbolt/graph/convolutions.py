"""Convolutions and poolings that a model leaves to ONNX Runtime."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator

from onnx import ModelProto, NodeProto

from onnxbolt.domains import FUSED
from onnxbolt.graph.scopes import subgraphs

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
