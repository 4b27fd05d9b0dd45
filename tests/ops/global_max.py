"""A fused op from outside of the package that takes the place of ordinary nodes: the largest value
of each image. It has no C++ part."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_graphsurgeon as gs

from onnxbolt.extensions import Extension
from onnxbolt.families.base import Family, KernelConfig
from onnxbolt.forms import FIRST_TO_LAST, LAST_TO_FIRST
from onnxbolt.ops.base import FusedOp, Replacement, Signature
from onnxbolt.ops.body import Body, epilogue


@dataclass(frozen=True, kw_only=True)
class GlobalMaxConfig(KernelConfig):
    """One kernel whatever the shape."""


class GlobalMaxKernel(Family[GlobalMaxConfig]):
    """One kernel for each pair of element types."""

    number, name, config = 1802, "global_max", GlobalMaxConfig
    takes, kinds = ("element", "output"), frozenset({"global_max_pool"})


class GlobalMaxPool(FusedOp):
    """x [N, H, W, C] to y [N, 1, 1, C] (ONNX GlobalMaxPool)."""

    name, op_type = "global_max_pool", "GlobalMaxPool_nhwc"
    operators = ("GlobalMaxPool",)
    channels_last = takes_cast = True

    def replacement(self, node: gs.Node) -> Replacement:
        """Every one."""
        return Replacement()

    def body(self, body: Body, signature: Signature, opset: int) -> str:
        """The operator on NCHW."""
        x = body("Transpose", [body.load("x")], perm=LAST_TO_FIRST[4])
        y = body("Transpose", [body("GlobalMaxPool", [x])], perm=FIRST_TO_LAST[4])
        return epilogue(body, signature.steps, opset, y)


EXTENSION = Extension(name="maxima", ops=(GlobalMaxPool(),), families=(GlobalMaxKernel(),))
