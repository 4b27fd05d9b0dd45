"""Codes of 8 bits made of values in one kernel, where no product or norm in front can end with
them: behind attention, at the graph's inputs, and of values that others read as well."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from onnx import AttributeProto

from onnxbolt.candidates import Candidate
from onnxbolt.ops.base import FusedOp, Operation, Signature, Sizes, Stored, Tensors
from onnxbolt.ops.body import AttributeType, Body, epilogue
from onnxbolt.ops.quantize import pattern
from onnxbolt.patterns.types import AnchorPattern
from onnxbolt.problems import QuantizeProblem


class Quantize(FusedOp):
    """x [.., C] of values to codes y [.., C]. The candidate's only link is the step Quantize.

    Behind a mean of codes (layout/rules/own.py) a step Scale is in front of it."""

    name, op_type = "quantize", "FusedQuantize"
    problem_type = QuantizeProblem

    # kernels that end with these codes go before it
    takes_epilogue = True
    adds_values = False

    def anchors(self) -> Sequence[AnchorPattern]:
        """QuantizeLinear, and the Cast in front of it."""
        return pattern.anchors(self)

    def channel_axis(self, rank: int) -> int:
        """The last one."""
        return rank - 1

    def problem(self, candidate: Candidate, sizes: Sizes, stored: Stored | None) -> QuantizeProblem:
        """Rows are all axes of x but the last one."""
        *rows, columns = sizes(candidate.anchor.x)
        dtype = candidate.anchor.dtype
        return QuantizeProblem(math.prod(rows), columns, dtype, candidate.out, candidate.chain)

    def operation(self, candidate: Candidate, stored: Stored, tensors: Tensors) -> Operation:
        """Attribute `epilogue_params`, which the body reads."""
        anchor = candidate.anchor
        return Operation(
            Signature(self, anchor.dtype, 0, tuple(s.of_type for s in candidate.epilogue)),
            [tensors.get(anchor.x, stored.reads)],
            candidate.parameters,
        )

    def attributes(self, signature: Signature) -> Mapping[str, AttributeType]:
        """The step's parameters."""
        return {"epilogue_params": AttributeProto.FLOATS}

    def body(self, body: Body, signature: Signature, opset: int) -> str:
        """In fp32, as the original has it."""
        x, names = body.widen(body.load("x")), self.inputs(signature)
        return epilogue(body, signature.steps, opset, x, names)
