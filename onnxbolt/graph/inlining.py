"""Model-local functions: their bodies take the place of calls, as in ONNX Runtime, so that chains go on through them."""
from __future__ import annotations

import onnx.inliner
from onnx import FunctionProto, ModelProto, TensorProto

from onnxbolt.graph import contrib
from onnxbolt.graph.exporter import FUSED_DOMAIN, copy_fields

_KEPT = (FUSED_DOMAIN, contrib.DOMAIN)  # ours, and those for which ONNX Runtime has kernels


def inlined(model: ModelProto) -> ModelProto:
    """The model without calls of its functions; `model` itself where there are none, or where a function is of another opset."""
    if not calls(model):
        return model
    skeleton = ModelProto()
    copy_fields(model, skeleton, skip=("graph",))
    copy_fields(model.graph, skeleton.graph, skip=("initializer",))
    # the inliner needs their names alone, which it gives to no new tensor then
    skeleton.graph.initializer.extend(TensorProto(name=tensor.name) for tensor in model.graph.initializer)
    kept = [(function.domain, function.name) for function in model.functions if function.domain in _KEPT]
    try:
        result = onnx.inliner.inline_selected_functions(skeleton, kept, exclude=True)
    except RuntimeError:  # the inliner converts no opsets
        return model
    del result.graph.initializer[:]
    result.graph.initializer.extend(model.graph.initializer)
    return result


def calls(model: ModelProto) -> list[FunctionProto]:
    """The functions whose bodies could stand for their calls."""
    return [function for function in model.functions if function.domain not in _KEPT]


def left(model: ModelProto) -> list[str]:
    """A line for the report where functions are still called."""
    names = ", ".join(sorted({function.name for function in calls(model)}))
    return [f"functions that stay, since their opset is not the model's; nothing inside of them is fused: {names}"] if names else []
