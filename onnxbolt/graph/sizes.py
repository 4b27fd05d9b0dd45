"""Negative dimensions: older exporters write -1 for an unknown size, and ONNX Runtime reads it
so."""

from __future__ import annotations

from collections.abc import Iterator

from onnx import GraphProto, ModelProto, TensorShapeProto

from onnxbolt.graph.scopes import subgraphs


def has_negative(model: ModelProto) -> bool:
    """True if a declared size is negative."""
    return next(_negative(model.graph), None) is not None


def open_negative(model: ModelProto) -> None:
    """Remove negative sizes, which onnx's inference and numpy would take for numbers."""
    for dim in list(_negative(model.graph)):
        dim.ClearField("dim_value")


def _negative(graph: GraphProto) -> Iterator[TensorShapeProto.Dimension]:
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.HasField("tensor_type"):
            yield from (dim for dim in value.type.tensor_type.shape.dim if dim.dim_value < 0)
    for node in graph.node:
        for attribute in node.attribute:
            for inner in subgraphs(attribute):
                yield from _negative(inner)
