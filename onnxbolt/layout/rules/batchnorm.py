"""BatchNormalization with constant statistics in NHWC: y = x * scale + shift for each channel."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from onnxbolt.canonicalize.batchnorm import scale_and_shift
from onnxbolt.forms import take
from onnxbolt.layout.assignment import Assignment, channels_last
from onnxbolt.layout.carry import Carry, Writer

OPS = ("BatchNormalization",)


def rule(node: gs.Node, state: Assignment) -> Carry | None:
    x = node.inputs[0]
    if not channels_last(x, state) or len(node.outputs) != 1 or scale_and_shift(node) is None:
        return None
    form = state.form(x)
    return Carry((form, None, None, None, None), (form,), _emit)


def _emit(writer: Writer, node: gs.Node, carry: Carry) -> None:
    form = carry.writes[0]
    x, y = node.inputs[0], node.outputs[0]
    found = scale_and_shift(node)
    assert found is not None  # the rule has looked
    vectors = [
        writer.constant(f"{y.name}.{name}", take(values, form.channels, 0).astype(x.dtype))
        for name, values in zip(("scale", "shift"), found, strict=True)
    ]
    scaled = writer.variable(y, form)
    writer.add("Mul", [writer.get(x, form), vectors[0]], [scaled], {}, y, node)
    writer.add("Add", [scaled, vectors[1]], [writer.produce(y, form)], {}, y, node)
    writer.drop(node)
