"""Nodes for which onnx's reference evaluator (onnx 1.23) gives another value than ONNX Runtime.

They may not be folded by it. The evaluator's deviations:

- BatchNormalization before opset 14: takes mean and variance of the input, as in training.
- Operators with pads and `auto_pad`: pads SAME_LOWER and SAME_UPPER otherwise.
- MaxPool, AveragePool, LpPool: mixes up pads of two axes; with `ceil_mode` counts windows and their
  elements otherwise.
- Resize: rounds coordinates otherwise (nearest, align_corners, antialias).
- RoiAlign takes other samples, LRN sums other channels.
- Unique with sorted=0: sorts.
- Cast and CastLike to types of 4 and 8 bits that numpy lacks: rounds and saturates otherwise.
"""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.graph.edit import auto_pad

_NEVER = frozenset({"AveragePool", "LRN", "LpPool", "MaxPool", "RoiAlign"})
_OPSETS = {"BatchNormalization": 14}  # the first opset at which the evaluator is right
_COORDINATES = frozenset({"half_pixel", "pytorch_half_pixel", "asymmetric"})


def differs(node: gs.Node, opset: int) -> bool:
    """True unless the node's value is known to be the same in ONNX Runtime."""
    if node.op == "Unique":
        return not node.attrs.get("sorted", 1)
    if node.op == "Resize":
        return not _plain_resize(node)
    if node.op in ("Cast", "CastLike"):
        return _is_narrow(node.outputs[0].dtype)
    return node.op in _NEVER or opset < _OPSETS.get(node.op, 0) or auto_pad(node) != "NOTSET"


def _plain_resize(node: gs.Node) -> bool:
    """True for the interpolation of images, in which the two agree; folding it matters for position
    embeddings."""
    mode, coordinates = (
        node.attrs.get("mode", "nearest"),
        node.attrs.get("coordinate_transformation_mode", "half_pixel"),
    )
    special = any(node.attrs.get(name, 0) for name in ("antialias", "exclude_outside"))
    return mode in ("linear", "cubic") and coordinates in _COORDINATES and not special


def _is_narrow(dtype: object) -> bool:
    """True for ml_dtypes' types of a byte or less, and for unknown types."""
    return not isinstance(dtype, np.dtype) or (dtype.itemsize == 1 and dtype.isbuiltin != 1)
