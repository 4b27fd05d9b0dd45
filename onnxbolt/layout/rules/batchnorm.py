"""Inference BatchNormalization in channels last: y = x * scale + shift along the last axis."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_graphsurgeon as gs

from onnxbolt.canonicalize.batchnorm import scale_and_shift
from onnxbolt.layout.assign import Assignment, Carry
from onnxbolt.layout.form import take
from onnxbolt.layout.rules import channels_last

if TYPE_CHECKING:
    from onnxbolt.rewrite import Rewriter

OPS = ("BatchNormalization",)


def rule(node: gs.Node, state: Assignment) -> Carry | None:
    x = node.inputs[0]
    if not channels_last(x, state) or len(node.outputs) != 1 or scale_and_shift(node) is None:
        return None
    form = state.form(x)
    return Carry((form, None, None, None, None), (form,), _emit)


def _emit(rewriter: Rewriter, node: gs.Node, carry: Carry) -> None:
    form = carry.writes[0]
    x, y = node.inputs[0], node.outputs[0]
    found = scale_and_shift(node)
    assert found is not None  # the rule has looked
    vectors = [
        rewriter.constant(f"{y.name}.{name}", take(values, form.channels, 0).astype(x.dtype))
        for name, values in zip(("scale", "shift"), found, strict=True)
    ]
    scaled = rewriter.variable(y, form)
    rewriter.add("Mul", [rewriter.get(x, form), vectors[0]], [scaled], {}, y, node)
    rewriter.add("Add", [scaled, vectors[1]], [rewriter.produce(y, form)], {}, y, node)
    rewriter.drop(node)
