"""Shape of an image whose channels are stored last: its sizes in the order of ONNX.

    Shape(x) = Gather(Shape(x stored as NHWC), [0, 3, 1, 2])

Feature pyramids read the shapes of the images that they add, for the sizes of a Resize. No image is
brought into NCHW only for that. Of padded channels the original's number counts.
"""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.forms import LAST_TO_FIRST, PLAIN
from onnxbolt.layout.assignment import Assignment, channels_last
from onnxbolt.layout.carry import Carry, Writer

OPS = ("Shape",)
_ANY = np.iinfo(np.int64).max  # a limit that no size reaches


def rule(node: gs.Node, state: Assignment) -> Carry | None:
    x = node.inputs[0]
    if not channels_last(x, state):
        return None
    return Carry((state.form(x),), (PLAIN,), _emit)


def _emit(writer: Writer, node: gs.Node, carry: Carry) -> None:
    (x,), (y,), (form,) = node.inputs, node.outputs, carry.reads
    assert form is not None  # the rule has set it
    wanted = slice(node.attrs.get("start", 0), node.attrs.get("end", len(x.shape)))
    order = np.array(LAST_TO_FIRST[len(x.shape)][wanted], np.int64)
    sizes = [writer.scratch(y, np.int64)]
    writer.add("Shape", [writer.get(x, form)], [sizes[0]], {}, y, node)
    if form.channels is not None:  # there may be more of them, for padding
        most = np.full(len(x.shape), _ANY)
        most[-1] = x.shape[1]
        sizes.append(writer.scratch(y, np.int64))
        writer.add("Min", [sizes[0], writer.constant(y.name, most)], [sizes[1]], {}, y, node)
    index = writer.constant(y.name + ".order", order)
    target = writer.produce(y, PLAIN)
    writer.add("Gather", [sizes[-1], index], [target], {"axis": 0}, y, node)
    writer.drop(node)
