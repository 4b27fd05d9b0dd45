"""A Slice that cuts the borders of a convolution's result  =  the convolution with other pads:

    Conv(x, w, pads = [b, e], strides = [s])[p : -q]  =  Conv(x, w, pads = [b - s p, e - s q])
    ConvTranspose(x, w, pads = [b, e])[p : -q]        =  ConvTranspose(x, w, pads = [b + p, e + q])

Causal convolutions of speech models are written so: padded at both sides, or transposed, and what
depends on later inputs is cut off. The Slice's end may be computed, as the size of its input less a
constant. Cuts that would take more than a Conv's pads stay.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.graph.computed_sizes import size_at
from onnxbolt.graph.edit import constant_integers, pinned, producer, prune, scalar

_FOREVER = np.iinfo(np.int32).max  # exporters write this end, or a larger one, for none
_MOST_STEPS = 6  # between a shape and the end that is computed from it
_MOVES = frozenset({"Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze"})


@dataclass(frozen=True)
class _Cut:
    """Elements that a Slice leaves out at both ends of an axis."""

    axis: int
    begin: int
    end: int


def run(graph: gs.Graph) -> int:
    """Move Slices into the convolutions in front of them; returns how many."""
    slices = [node for node in graph.nodes if node.op == "Slice" and not node.domain]
    count = sum(_moved(graph, node) for node in slices)
    if count:
        prune(graph)  # the shapes that only ends were computed from
    return count


def _moved(graph: gs.Graph, node: gs.Node) -> bool:
    conv, cut = producer(node.inputs[0]), _cut(node)
    if conv is None or conv.op not in ("Conv", "ConvTranspose") or conv.domain or cut is None:
        return False
    (whole,) = conv.outputs
    pads = _pads(conv, cut)
    others = (reader for reader in whole.outputs if reader is not node)
    if pads is None or pinned(graph, whole) or not all(_is_for(graph, o, node) for o in others):
        return False
    conv.attrs["pads"], conv.origin = pads, None
    conv.provenance = tuple(dict.fromkeys((*conv.provenance, *node.provenance)))
    outputs = list(node.outputs)
    node.outputs.clear()
    conv.outputs = outputs
    return True


def _pads(conv: gs.Node, cut: _Cut) -> list[int] | None:
    """The convolution's pads with the cut; None if its own are not written out, or are too few."""
    if not {"pads", "strides"} <= conv.attrs.keys() or {"auto_pad", "output_shape"} & set(
        conv.attrs
    ):
        return None
    pads, strides, place = list(conv.attrs["pads"]), conv.attrs["strides"], cut.axis - 2
    if not 0 <= place < len(strides):
        return None
    step = 1 if conv.op == "ConvTranspose" else -strides[place]
    pads[place] += step * cut.begin
    pads[place + len(strides)] += step * cut.end
    return pads if min(pads) >= 0 else None


def _cut(node: gs.Node) -> _Cut | None:
    """The cut of a Slice of one axis by steps of 1; None for any other Slice."""
    shape = node.inputs[0].shape
    starts, axes, steps = (constant_integers(node, index) for index in (1, 3, 4))
    if shape is None or not starts or not axes or len(axes) != 1 or steps not in (None, [1]):
        return None
    if len(node.inputs) > 4 and steps is None:
        return None
    axis, begin = axes[0] % len(shape), starts[0]
    size, end = shape[axis], _end(node, shape[axis])
    if end is None:
        return None
    if isinstance(size, int):
        begin, end, _ = slice(begin, end).indices(size)
        end -= size
    elif end >= _FOREVER:
        end = 0
    return _Cut(axis, begin, -end) if begin >= 0 and end <= 0 else None


def _end(node: gs.Node, size: int | str | None) -> int | None:
    """A Slice's end: a constant, or the size of the axis less a constant."""
    ends = constant_integers(node, 2)
    if ends is not None:
        return ends[0] if ends[0] else None  # 0: nothing is left
    less = producer(node.inputs[2])
    for _ in range(_MOST_STEPS):
        if less is not None and less.op in _MOVES and not less.domain:
            less = producer(less.inputs[0])
    if less is None or less.op != "Sub" or less.domain or size is None:
        return None
    count = scalar(less.inputs[1])
    return None if size_at(less.inputs[0], 0) != size or not count else -int(count)


def _is_for(graph: gs.Graph, shape: gs.Node, node: gs.Node) -> bool:
    """True for a Shape from which the end of the Slice `node` is computed, and nothing else."""
    reader = shape if shape.op == "Shape" and not shape.domain else None
    for _ in range(2 * _MOST_STEPS):
        if reader is None or len(reader.outputs) != 1 or pinned(graph, reader.outputs[0]):
            return False
        (tensor,) = reader.outputs
        reader = tensor.outputs[0] if len(tensor.outputs) == 1 else None
        if reader is node:
            return True
    return False
