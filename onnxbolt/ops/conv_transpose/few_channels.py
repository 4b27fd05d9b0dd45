"""Transposed convolutions of few channels, as a text detector's map of one has them, as a
convolution that makes all phases as channels, and a DepthToSpace.

    ConvTranspose(x, W, strides = b) + c  =  DepthToSpace(Conv(x, W') + c', b)

Kernels store a pixel's channels in accesses of 16 bytes, which pixels of few channels do not fill,
while those of a block of pixels do. W' is the weight that kernels of transposed convolutions have
(geometry.py), with zeros in front of the filter where these make its first pad a multiple of the
stride; c' repeats c for each phase.

Where sizes vary, this also spares ONNX Runtime's ConvTranspose the plan that it builds with cuDNN
for each run of another size than the last one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.graph.edit import (
    add_constant,
    derived,
    insert,
    is_float,
    optional,
    remove,
    stand_alone,
)
from onnxbolt.graph.names import fresh
from onnxbolt.graph.skipping import is_skipped
from onnxbolt.ops.conv_transpose.geometry import Axis, as_in_onnx, lies_in_rows
from onnxbolt.ops.conv_transpose.packing import by_phases

_MANY = 8  # channels of 16 bits in an access
_COMPLETE = frozenset({"dilations", "group", "output_padding", "pads", "strides"})


def rewrite(graph: gs.Graph) -> Sequence[str]:
    """Rewrite all that have a form without cut phases; a line for the report."""
    found = [node for node in list(graph.nodes) if _rewritten(graph, node)]
    words = "transposed convolutions of few channels written as Conv and DepthToSpace"
    return [f"conv_transpose: {len(found)} ({words})"] if found else []


def _rewritten(graph: gs.Graph, node: gs.Node) -> bool:
    axes = None if is_skipped(graph, node) else _axes(node)
    pads = _pads(axes) if axes is not None else None
    if axes is None or pads is None:
        return False
    x, weight = node.inputs[:2]
    (c, k), stride, taps = weight.shape[:2], axes[0].stride, [axis.taps for axis in axes]
    shape = (stride * stride * k, c, *taps)

    def arranged(values: np.ndarray) -> np.ndarray:
        filters = by_phases(values.swapaxes(0, 1), 1, axes)  # [phases x K, *taps, C]
        return np.ascontiguousarray(np.moveaxis(filters, -1, 1))

    inputs = [x, add_constant(graph, weight.name, derived(weight, arranged, weight.dtype, shape))]
    if (bias := optional(node.inputs, 2)) is not None:
        inputs.append(add_constant(graph, bias.name, np.tile(bias.values, stride * stride)))
    phases = gs.Variable(fresh(graph, f"{node.outputs[0].name}_phases"), x.dtype)
    stand_alone(phases)
    attributes = {
        "dilations": [1, 1],
        "group": 1,
        "kernel_shape": taps,
        "pads": pads,
        "strides": [1, 1],
    }
    insert(graph, "Conv", inputs, [phases], [node], attributes, at=node)
    outputs = list(node.outputs)
    node.outputs.clear()
    shuffle = {"blocksize": stride, "mode": "DCR"}
    insert(graph, "DepthToSpace", [phases], outputs, [node], shuffle, at=node)
    remove(graph, [node])
    return True


def _axes(node: gs.Node) -> tuple[Axis, ...] | None:
    """The axes of a transposed convolution of few channels of images, with zeros in front of its
    filter; None for any other node, and where phases of the output would be cut."""
    if node.op != "ConvTranspose" or node.domain or not set(node.attrs) >= _COMPLETE:
        return None
    weight, bias = node.inputs[1], optional(node.inputs, 2)
    constant = all(isinstance(t, gs.Constant) and is_float(t) for t in (weight, bias) if t)
    if not constant or len(weight.shape) != 4 or 0 in weight.shape or int(node.attrs["group"]) != 1:
        return None
    axes = tuple(replace(axis, front=-axis.pads[0] % axis.stride) for axis in as_in_onnx(node))
    strides = {axis.stride for axis in axes}
    few = int(weight.shape[1]) < _MANY and not lies_in_rows(node)
    blocks = len(strides) == 1 and min(strides) > 1 and all(axis.whole for axis in axes)
    return axes if few and blocks else None


def _pads(axes: Sequence[Axis]) -> list[int] | None:
    """The convolution's pads, which do not depend on the image's size; None if some cut it."""
    size = max(axis.stride * axis.reach + sum(axis.pads) for axis in axes)  # any will do
    pads = [axis.convolution_pads(size) for axis in axes]
    found = [first for first, _ in pads] + [last for _, last in pads]
    return found if min(found) >= 0 else None
