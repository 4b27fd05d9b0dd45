"""A model as a newer opset has it, for shape inference alone: onnx follows the values of shapes
from opset 14 on, and much of what is in use was exported for 11 to 13."""

from __future__ import annotations

from onnx import AttributeProto, ModelProto, NodeProto

# between them no operator changed its form, but for BatchNormalization that trains
_FROM, _TO = 13, 17
_ONNX = ("", "ai.onnx")


def newer(model: ModelProto) -> ModelProto:
    """A copy for inference; the model itself where its opset is another, or where a node may not
    be what its op is today: in subgraphs and functions, which would have to change as well."""
    entry = next((entry for entry in model.opset_import if entry.domain in _ONNX), None)
    is_old = entry is not None and entry.version == _FROM
    if not is_old or model.functions or any(map(_is_strange, model.graph.node)):
        return model
    copy = ModelProto()
    copy.CopyFrom(model)
    next(entry for entry in copy.opset_import if entry.domain in _ONNX).version = _TO
    return copy


def _is_strange(node: NodeProto) -> bool:
    """Whether it has subgraphs, or outputs that BatchNormalization had when it trained."""
    has_graphs = any(
        attribute.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS)
        for attribute in node.attribute
    )
    return has_graphs or (node.op_type == "BatchNormalization" and len(node.output) > 1)
