"""A model at a newer opset, for shape inference only: onnx propagates the values of shape tensors
from opset 14 on, and many models were exported for 11 to 13."""

from __future__ import annotations

from onnx import AttributeProto, ModelProto, NodeProto

# no operator changed its form between these, except BatchNormalization in training mode
_FROM, _TO = 13, 17
_ONNX = ("", "ai.onnx")


def newer(model: ModelProto) -> ModelProto:
    """A copy of the model for inference. The model itself if its opset is not one of these, or if a
    node may have changed its meaning: in subgraphs and functions, which would have to change as
    well."""
    entry = next((entry for entry in model.opset_import if entry.domain in _ONNX), None)
    is_old = entry is not None and entry.version == _FROM
    if not is_old or model.functions or any(map(_is_strange, model.graph.node)):
        return model
    copy = ModelProto()
    copy.CopyFrom(model)
    next(entry for entry in copy.opset_import if entry.domain in _ONNX).version = _TO
    return copy


def _is_strange(node: NodeProto) -> bool:
    """True if a node has subgraphs, or is a BatchNormalization with the outputs of training."""
    has_graphs = any(
        attribute.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS)
        for attribute in node.attribute
    )
    return has_graphs or (node.op_type == "BatchNormalization" and len(node.output) > 1)
