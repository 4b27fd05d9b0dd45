"""A model as a newer opset has it, for shape inference alone: onnx follows the values of shapes from opset 14 on, and much of what is
in use was exported for 11 to 13."""
from __future__ import annotations

import onnx
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto

_FROM, _BEFORE, _TO = 11, 14, 17
_ONNX = ("", "ai.onnx")
_TO_INPUTS = {"Squeeze": "axes", "Unsqueeze": "axes", "ReduceSum": "axes", "Split": "split"}  # attributes that became an input at 13


def newer(model: ModelProto) -> ModelProto:
    """A copy for inference; the model itself where its opset is another, or where a node may not be what its op is today: in subgraphs and
    functions, which would have to change as well."""
    entry = next((entry for entry in model.opset_import if entry.domain in _ONNX), None)
    is_old = entry is not None and _FROM <= entry.version < _BEFORE
    if not is_old or model.functions or any(map(_is_strange, model.graph.node)):
        return model
    copy = ModelProto()
    copy.CopyFrom(model)
    next(entry for entry in copy.opset_import if entry.domain in _ONNX).version = _TO
    for number, node in enumerate(copy.graph.node):
        wanted = _TO_INPUTS.get(node.op_type) if node.domain in _ONNX else None
        attribute = next((attribute for attribute in node.attribute if attribute.name == wanted), None)
        if attribute is not None:
            name = f"onnxbolt.{node.op_type}.{number}"
            values = list(attribute.ints)
            copy.graph.initializer.append(onnx.helper.make_tensor(name, TensorProto.INT64, [len(values)], values))
            node.attribute.remove(attribute)
            node.input.append(name)
    return copy


def _is_strange(node: NodeProto) -> bool:
    """Whether it has subgraphs, or outputs that BatchNormalization had when it trained."""
    has_graphs = any(attribute.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS) for attribute in node.attribute)
    return has_graphs or (node.op_type == "BatchNormalization" and len(node.output) > 1)
