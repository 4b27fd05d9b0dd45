"""Poolings of images in NHWC (ONNX MaxPool, AveragePool, GlobalAveragePool, and ReduceMean over
height and width)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from onnx import AttributeProto

from onnxbolt.forms import FIRST_TO_LAST, LAST_TO_FIRST
from onnxbolt.ops.base import FusedOp, Signature
from onnxbolt.ops.body import AttributeType, Body, epilogue
from onnxbolt.problems import PoolProblem, Problem


class Pooling(FusedOp):
    """x [N, H, W, C] to y [N, P, Q, C]; a Cast may be the only step behind it."""

    operator: ClassVar[str]  # of ONNX
    taken: ClassVar[Mapping[str, AttributeType]] = {}  # the attributes that the operator has
    problem_type: ClassVar[type[Problem]] = PoolProblem
    channels_last = True

    def attributes(self, signature: Signature) -> Mapping[str, AttributeType]:
        """Those of ONNX."""
        return self.taken

    def body(self, body: Body, signature: Signature, opset: int) -> str:
        """The operator on NCHW."""
        x = body("Transpose", [body.load("x")], perm=LAST_TO_FIRST[4])
        result = body(self.operator, [x])
        body.refer(self.taken)
        result = body("Transpose", [result], perm=FIRST_TO_LAST[4])
        return epilogue(body, signature.steps, opset, result)


class MaxPool(Pooling):
    """The largest value of each window."""

    name, op_type, operator = "max_pool", "MaxPool_nhwc", "MaxPool"
    taken: ClassVar[Mapping[str, AttributeType]] = {
        "kernel_shape": AttributeProto.INTS,
        "strides": AttributeProto.INTS,
        "pads": AttributeProto.INTS,
        "dilations": AttributeProto.INTS,
        "ceil_mode": AttributeProto.INT,
    }


class AveragePool(Pooling):
    """The mean of each window."""

    name, op_type, operator = "average_pool", "AveragePool_nhwc", "AveragePool"
    taken: ClassVar[Mapping[str, AttributeType]] = {
        "kernel_shape": AttributeProto.INTS,
        "strides": AttributeProto.INTS,
        "pads": AttributeProto.INTS,
        "ceil_mode": AttributeProto.INT,
        "count_include_pad": AttributeProto.INT,
    }


class GlobalAveragePool(Pooling):
    """The mean of each image."""

    name, op_type = "global_average_pool", "GlobalAveragePool_nhwc"
    operator = "GlobalAveragePool"
