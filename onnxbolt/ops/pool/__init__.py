"""Poolings of lines in NLC, images in NHWC and volumes in NDHWC (ONNX MaxPool, AveragePool,
GlobalAveragePool, and ReduceMean over all spatial axes).

A line is an image of height 1. A window of one slice, of one pixel of each slice or of whole slices
is one of an image (custom_ops/ops/pool/pool.cc). Other windows of volumes have a kernel of their
own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import onnx_graphsurgeon as gs
from onnx import AttributeProto

from onnxbolt.archs import ARCHS
from onnxbolt.dtypes import DType
from onnxbolt.families import KernelConfig, candidates
from onnxbolt.forms import FIRST_TO_LAST, LAST_TO_FIRST
from onnxbolt.graph.edit import MEANS, auto_pad, is_mean
from onnxbolt.ops.base import FusedOp, Replacement, Signature
from onnxbolt.ops.body import AttributeType, Body, epilogue
from onnxbolt.problems import PoolProblem, Problem


def _defaults(axes: int) -> dict[str, Any]:
    """ONNX's defaults for so many spatial axes; kernel_shape has none."""
    return {
        "kernel_shape": None,
        "strides": [1] * axes,
        "pads": [0] * 2 * axes,
        "ceil_mode": 0,
        "dilations": [1] * axes,
        "count_include_pad": 0,
    }


def _as_image(sizes: Sequence[int]) -> Sequence[int]:
    """Sizes as stored, with a height of 1 for lines."""
    return (sizes[0], 1, *sizes[1:]) if len(sizes) == 3 else sizes


class Pooling(FusedOp):
    """x [N, H, W, C] to y [N, P, Q, C]; of lines x [N, W, C] to y [N, Q, C], of volumes
    x [N, D, H, W, C] to y [N, O, P, Q, C]. A Cast may be the only step behind it."""

    operator: ClassVar[str]  # ONNX's operator
    taken: ClassVar[Mapping[str, AttributeType]] = {}  # the attributes that the operator has
    problem_type: ClassVar[type[Problem]] = PoolProblem
    channels_last = True
    ranks = (3, 4, 5)
    takes_cast = True

    def replacement(self, node: gs.Node) -> Replacement | None:
        """The same windows, of which ONNX's defaults are written out."""
        attributes = node.attrs
        if len(node.outputs) != 1 or auto_pad(node) != "NOTSET":
            return None
        if attributes.get("storage_order", 0) or self._skips(attributes):
            return None
        defaults = _defaults(len(node.inputs[0].shape) - 2)
        written = {name: attributes.get(name, default) for name, default in defaults.items()}
        return Replacement({name: written[name] for name in defaults if name in self.taken})

    def _skips(self, attributes: Mapping[str, Any]) -> bool:
        """True if windows have gaps that kernels cannot have."""
        gaps = any(step != 1 for step in attributes.get("dilations", ()))
        return gaps and "dilations" not in self.taken

    def configs(
        self, x: Sequence[int], y: Sequence[int], dtype: DType, archs: Sequence[int]
    ) -> list[KernelConfig]:
        """One for the width of accesses that the channels allow."""
        (n, *_, h, w, c), (*_, p, q, _) = _as_image(x), _as_image(y)
        problem = PoolProblem(n, h, w, c, p, q, dtype, dtype)
        return [candidates(problem, ARCHS[number])[0] for number in archs]

    def attributes(self, signature: Signature) -> Mapping[str, AttributeType]:
        """Those of ONNX."""
        return self.taken

    def body(self, body: Body, signature: Signature, opset: int) -> str:
        """The operator on NCL, NCHW or NCDHW."""
        rank = signature.rank or 4
        x = body("Transpose", [body.load("x")], perm=LAST_TO_FIRST[rank])
        if self.averages and signature.dtype.is_code:
            x = body("Cast", [x], to=DType.F32.onnx)
        result = body(self.operator, [x])
        body.refer(self.taken)
        result = body("Transpose", [result], perm=FIRST_TO_LAST[rank])
        return epilogue(body, signature.steps, opset, result)


class MaxPool(Pooling):
    """The largest value of each window."""

    name, op_type, operator = "max_pool", "MaxPool_nhwc", "MaxPool"
    operators = ("MaxPool",)
    taken: ClassVar[Mapping[str, AttributeType]] = {
        "kernel_shape": AttributeProto.INTS,
        "strides": AttributeProto.INTS,
        "pads": AttributeProto.INTS,
        "dilations": AttributeProto.INTS,
        "ceil_mode": AttributeProto.INT,
    }

    def selects(self, node: gs.Node) -> bool:
        """True."""
        return True


class AveragePool(Pooling):
    """The mean of each window."""

    name, op_type, operator = "average_pool", "AveragePool_nhwc", "AveragePool"
    operators = ("AveragePool",)
    taken: ClassVar[Mapping[str, AttributeType]] = {
        "kernel_shape": AttributeProto.INTS,
        "strides": AttributeProto.INTS,
        "pads": AttributeProto.INTS,
        "ceil_mode": AttributeProto.INT,
        "count_include_pad": AttributeProto.INT,
    }


class GlobalAveragePool(Pooling):
    """The mean of each line, image or volume; of codes as numbers in fp32."""

    name, op_type = "global_average_pool", "GlobalAveragePool_nhwc"
    operator, operators = "GlobalAveragePool", MEANS
    averages = True

    def replacement(self, node: gs.Node) -> Replacement | None:
        """GlobalAveragePool, or ReduceMean over all spatial axes."""
        return Replacement() if is_mean(node) else None
