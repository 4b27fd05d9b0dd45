"""Resize of height and width in NHWC that our kernels do not have (own.py): by nearest neighbour,
with constant scales or sizes.

The node stays and works on NHWC, for which ONNX Runtime's kernel for nearest neighbours can be
used, since it resizes any axes.
"""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.forms import FIRST_TO_LAST
from onnxbolt.graph.edit import constant_integers
from onnxbolt.layout.assignment import Assignment, channels_last
from onnxbolt.layout.carry import Carry, Writer

OPS = ("Resize",)


def rule(node: gs.Node, state: Assignment) -> Carry | None:
    x = node.inputs[0]
    if not channels_last(x, state) or len(x.shape) != 4:
        return None
    form = state.form(x)
    reads = (form, *(None for _ in node.inputs[1:]))
    return Carry(reads, (form,), _emit) if _is_standard(node) else None


def _is_nearest(node: gs.Node) -> bool:
    """True if ONNX Runtime's kernel for any axes supports the node."""
    coordinates = node.attrs.get("coordinate_transformation_mode")
    return (
        node.attrs.get("mode", "nearest") == "nearest"
        and "axes" not in node.attrs
        and coordinates != "tf_crop_and_resize"
    )


def _is_standard(node: gs.Node) -> bool:
    """True if the node can work on NHWC with its constant scales or sizes in another order."""
    if not _is_nearest(node):
        return False
    factors = _factors(node)
    values = constant_integers(node, factors) if factors is not None else None
    unchanged = node.inputs[0].shape[1] if factors == 3 else 1
    return values is not None and values[1] == unchanged


def _factors(node: gs.Node) -> int | None:
    """The position of the input with four constant scales (2) or sizes (3); None if there is
    none."""
    return next((i for i in (2, 3) if len(constant_integers(node, i) or ()) == 4), None)


def _emit(writer: Writer, node: gs.Node, carry: Carry) -> None:
    form = carry.writes[0]
    index = _factors(node)
    assert index is not None  # the rule has looked
    values = node.inputs[index].values.reshape(-1)[list(FIRST_TO_LAST[4])]
    if index == 3 and form.channels is not None:
        values[-1] = len(form.channels)
    # unused inputs stay: in models of opset 11 and 12 they are empty tensors instead of omitted
    inputs = list(node.inputs)
    inputs[0] = writer.get(node.inputs[0], form)
    inputs[index] = writer.constant(node.inputs[index].name, np.ascontiguousarray(values))
    writer.replace(node, inputs, form)
