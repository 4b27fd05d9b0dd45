"""A conversion of the result to another element type of the kernels (ONNX Cast); it ends the
chain."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from onnxbolt.candidates import Anchor, Link
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import CASTS, Step
from onnxbolt.patterns.types import StepPattern


def _match(node: gs.Node, tensor: gs.Tensor, anchor: Anchor) -> Link | str | None:
    to = next((dtype for dtype in DType if dtype.onnx == node.attrs.get("to")), None)
    if to is None or to is anchor.dtype or to not in (anchor.dtype, DType.F32):
        return None
    return Link(Step(CASTS[to]), None, (node,), node.outputs[0])


STEPS = (StepPattern(("Cast",), _match),)
