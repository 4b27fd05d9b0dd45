"""Finds types and shapes that a model stores for its tensors and that are wrong.

Converters and edited models leave them behind: types from before a conversion, or the size of the
traced batch after the batch became symbolic. ONNX Runtime hardly uses them. They are found by
inference at sizes that no exporter is likely to have used. If one is wrong, none of the model's
stored types and shapes is used.
"""

from __future__ import annotations

import onnx
from onnx import ModelProto, TypeProto, ValueInfoProto

from onnxbolt.graph.sizes import Sizes
from onnxbolt.graph.skeleton import inferred_types

# tried for open dimensions; an image is divisible by 32, as networks expect
_SIZES = Sizes(3, (352, 352), 52)


def contradictions(model: ModelProto) -> list[str]:
    """One line for each stored type or shape that inference contradicts."""
    stored = [
        value
        for value in (*model.graph.value_info, *model.graph.output)
        if value.type.HasField("tensor_type")
    ]
    if not stored:
        return []
    try:
        found = inferred_types(model, _SIZES)
    except (onnx.shape_inference.InferenceError, onnx.checker.ValidationError):
        return []  # shapes.infer says so
    return [
        line
        for value in stored
        if value.name in found and (line := _contradiction(value, found[value.name]))
    ]


def _contradiction(value: ValueInfoProto, found: TypeProto) -> str:
    known, seen = value.type.tensor_type, found.tensor_type
    types = {known.elem_type, seen.elem_type} - {onnx.TensorProto.UNDEFINED}
    if len(types) < 2 and not _differ(known, seen):
        return ""
    return f"{value.name}: {_text(known)} is stored, {_text(seen)} was inferred"


def _differ(known: TypeProto.Tensor, seen: TypeProto.Tensor) -> bool:
    """True if the two shapes cannot both be right."""
    if not known.HasField("shape") or not seen.HasField("shape"):
        return False
    if len(known.shape.dim) != len(seen.shape.dim):
        return True
    return any(
        a.HasField("dim_value") and b.HasField("dim_value") and a.dim_value != b.dim_value
        for a, b in zip(known.shape.dim, seen.shape.dim, strict=True)
    )


def _text(kind: TypeProto.Tensor) -> str:
    sizes = [
        str(dim.dim_value) if dim.HasField("dim_value") else dim.dim_param or "?"
        for dim in kind.shape.dim
    ]
    name = onnx.TensorProto.DataType.Name(kind.elem_type).lower()
    return f"{name}[{', '.join(sizes)}]" if kind.HasField("shape") else name
