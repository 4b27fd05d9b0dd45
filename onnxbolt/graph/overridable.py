"""Initializers that are also graph inputs: from IR 4 on these are defaults that a caller may
override, so no kernel can use such a weight in packed form.

Some exporters list all of them nevertheless, as IR 3 required.
"""

from __future__ import annotations

import onnx_graphsurgeon as gs
from onnx import ModelProto

from onnxbolt.graph.edit import producer
from onnxbolt.graph.fields import copy_fields
from onnxbolt.spelling import option


def frozen(model: ModelProto, wanted: bool | None) -> tuple[ModelProto, list[str]]:
    """The model without the inputs that have initializers, and a line for the report; `model`
    itself and no line if nothing changes.

    `wanted` is Options.freeze_initializers: None stands for models all of whose initializers are
    inputs.
    """
    weights = {tensor.name for tensor in model.graph.initializer}
    listed = weights & {value.name for value in model.graph.input}
    if model.ir_version < 4 or not listed or not (listed == weights if wanted is None else wanted):
        return model, []
    result = ModelProto()
    copy_fields(model, result, skip=("graph",))
    copy_fields(model.graph, result.graph, skip=("input",))
    result.graph.input.extend(value for value in model.graph.input if value.name not in listed)
    reason = (
        "as requested"
        if wanted
        else (
            "because all initializers are graph inputs;"
            f" {option('freeze_initializers', False)} lets callers override them"
        )
    )
    return result, [
        f"freeze-initializers: {len(listed)} initializers that are graph inputs became constants,"
        f" {reason}"
    ]


def remedy_for(weight: gs.Tensor) -> str:
    """The remedy by which a tensor that should be constant becomes constant."""
    if not is_input(weight):
        return "compute it before the export, so that it is an initializer"
    return (
        "it is a graph input: if the model has an initializer for it,"
        f" {option('freeze_initializers', True)} makes it a constant"
    )


def is_input(tensor: gs.Tensor) -> bool:
    """True if no node computes the tensor, or only a Cast, which the precision stage may have
    added."""
    node = producer(tensor)
    while node is not None and node.op == "Cast":
        node = producer(node.inputs[0])
    return node is None
