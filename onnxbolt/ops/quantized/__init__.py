"""Products of codes of 8 bits: convolutions and GEMMs that read codes, add them up exactly, and end
with values or codes (docs/decisions/quantized.md).

A node's inputs are x, the weight, offsets where the zero point of x is not 0, and the operands of
the steps. Its body is the QDQ graph that it replaces.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
import onnx_graphsurgeon as gs
from onnx import AttributeProto

from onnxbolt.candidates import Anchor, Candidate, Link
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import BIAS, CASTS, DEQUANTIZE, Step
from onnxbolt.forms import FIRST_TO_LAST, LAST_TO_FIRST, Form, kept, padded_channels, take
from onnxbolt.graph.edit import conv_attributes
from onnxbolt.ops.base import Operation, Signature, Sizes, Stored, Surroundings, Tensors
from onnxbolt.ops.body import Arranged, AttributeType, Body, epilogue
from onnxbolt.ops.conv import ATTRIBUTES as CONV_ATTRIBUTES
from onnxbolt.ops.conv import Conv
from onnxbolt.ops.conv.problem import problem_of
from onnxbolt.ops.elementwise import Elementwise
from onnxbolt.ops.gemm import Gemm
from onnxbolt.ops.products import ProductOp, operands
from onnxbolt.ops.quantized import pattern
from onnxbolt.ops.quantized.pattern import QuantizedAnchor
from onnxbolt.ops.resize import Resize
from onnxbolt.patterns.types import AnchorPattern, StepPattern
from onnxbolt.problems import Problem, QuantizedConvProblem, QuantizedGemmProblem
from onnxbolt.sampling import Sampling

Order = tuple[int, ...] | None
_AS_IT_IS = Sampling("nearest", "asymmetric", "floor", "scales")
_OFFSETS = "offsets"  # the variant for a zero point of x that is not 0


def _steps(candidate: Candidate) -> tuple[Step, ...]:
    """The steps with the conversion of a result that is no code, and without the numbers that the
    node gives."""
    steps = candidate.epilogue
    if not steps[-1].row.cast:
        steps += (Step(CASTS[candidate.out]),)
    return tuple(Step(s.name) if s.name == DEQUANTIZE else s.of_type for s in steps)


def _operation(op: ProductOp, candidate: Candidate, stored: Stored, tensors: Tensors) -> Operation:
    anchor = candidate.anchor
    assert isinstance(anchor, QuantizedAnchor)  # the op's pattern makes no other
    x = tensors.get(anchor.x, stored.reads)
    weight, *operands = op.node_inputs(candidate, stored.reads, stored.writes, tensors)
    table = [_table(anchor, stored.writes, tensors)] if anchor.zero else []
    rank = len(anchor.x.shape) if op.channels_last else 0
    variant = _OFFSETS if anchor.zero else None
    signature = Signature(op, anchor.dtype, rank, _steps(candidate), variant=variant)
    attributes = {**candidate.parameters, "x_zero": anchor.zero}
    return Operation(signature, [x, weight, *table, *operands], attributes)


def _table(anchor: QuantizedAnchor, writes: Form, tensors: Tensors) -> gs.Constant:
    def values(codes: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(take(pattern.offsets(anchor, codes), writes.channels, 1))

    return tensors.constant(f"{anchor.weight.name}_offsets", values(anchor.weight.values))


def _values(body: Body, dtype: DType, x_order: Order, order: Order) -> tuple[str, str]:
    """x and the weight as values, with their axes in another order each, None for the same.

    Codes of integers are turned, not their values: behind these ONNX Runtime writes a
    QuantizeLinear, in opset 21 and later with a zero point of another type.
    """
    zero = body("Cast", [body.given("x_zero", AttributeProto.INT)], to=dtype.onnx)

    def turned(name: str, perm: Order) -> str:
        return name if perm is None else body("Transpose", [name], perm=perm)

    if dtype is DType.E4M3:  # it has no Transpose
        x = turned(body("DequantizeLinear", ["x", body("Given", 0), zero]), x_order)
        return x, turned(body("DequantizeLinear", ["weight", "operand0"], axis=0), order)
    x = body("DequantizeLinear", [turned("x", x_order), body("Given", 0), zero])
    columns = order.index(0) if order is not None else 0
    weight = turned("weight", order)
    return x, body("DequantizeLinear", [weight, "operand0"], axis=columns)


_ATTRIBUTES = {"epilogue_params": AttributeProto.FLOATS, "x_zero": AttributeProto.INT}


class _OfCodes(ProductOp):
    """The behaviour that both ops have in common."""

    operator: ClassVar[str]  # the operator of its products
    adds_values = False
    whole_accesses = True

    def prepare(self, graph: gs.Graph) -> Sequence[str]:
        """Own DequantizeLinear for each product and sum."""
        if pattern.serves(self):
            pattern.own_pairs(graph, self.operator)
        return ()

    def kind_of(self, signature: Signature) -> str:
        """There is one kind."""
        return self.name

    def anchors(self) -> Sequence[AnchorPattern]:
        """Products of codes."""
        return pattern.anchor_pattern(self, self.operator)

    def continuations(self) -> Sequence[StepPattern]:
        """Steps between values and codes; no further product."""
        return pattern.continuations(self)

    def beside(self, anchor: Anchor, tensor: gs.Tensor) -> tuple[Link, ...]:
        """The result as values, and its codes."""
        return pattern.stored_and_quantized(anchor, tensor)

    def writes_slices(self, anchor: Anchor) -> bool:
        """False: codes are not added to what was written before."""
        return False

    def inputs(self, signature: Signature) -> list[str]:
        """With the offsets, which the body does not read."""
        weight, *operands = super().inputs(signature)
        return [weight, *self.words(signature), *operands]

    def letters(self, signature: Signature) -> str:
        """The table of offsets."""
        return "o" if signature.variant == _OFFSETS else ""

    def words(self, signature: Signature) -> Sequence[str]:
        """The word for nodes with offsets."""
        return (_OFFSETS,) if signature.variant == _OFFSETS else ()


class QuantizedGemm(_OfCodes, Gemm):
    """x [.., K], weight [N, K] of codes to y [.., N]."""

    name, op_type = "quantized_gemm", "FusedQuantizedGemm"
    kinds = ("quantized_gemm",)  # type: ignore[assignment]
    problem_type = QuantizedGemmProblem  # type: ignore[assignment]
    operator = "MatMul"
    any_order = False

    def forms(self, candidate: Candidate, around: Surroundings) -> tuple[Form, Form]:
        """Rows in whole accesses."""
        alignment = candidate.anchor.dtype.alignment
        depth, width = int(candidate.anchor.weight.shape[0]), candidate.widths[-1]
        writes = Form(False, padded_channels(width, alignment) if around.padded else None)
        return Form(False, padded_channels(depth, alignment)), writes

    def weight_columns(self, candidate: Candidate, reads: Form) -> Form:
        """As x."""
        return reads

    def problem(  # type: ignore[override]
        self, candidate: Candidate, sizes: Sizes, stored: Stored | None
    ) -> QuantizedGemmProblem:
        """The product of all leading dimensions' rows."""
        anchor, n = candidate.anchor, candidate.widths[-1]
        assert isinstance(anchor, QuantizedAnchor)  # the op's pattern makes no other
        k = int(anchor.weight.shape[0])
        if stored is not None:
            n, k = stored.writes.count(n), stored.reads.count(k)
        rows = math.prod(sizes(anchor.x)[:-1])
        offsets = bool(anchor.zero)
        return QuantizedGemmProblem(
            rows, n, k, anchor.dtype, candidate.out, candidate.chain, offsets
        )

    def operation(self, candidate: Candidate, stored: Stored, tensors: Tensors) -> Operation:
        """Attributes `epilogue_params` and `x_zero`."""
        return _operation(self, candidate, stored, tensors)

    def attributes(self, signature: Signature) -> Mapping[str, AttributeType]:
        """The steps' parameters and the zero point of x."""
        return _ATTRIBUTES

    def body(self, body: Body, signature: Signature, opset: int) -> str:
        """MatMul of values, and the steps."""
        result = body("MatMul", [*_values(body, signature.dtype, None, (1, 0))])
        return epilogue(body, signature.steps, opset, result, _operands(self.inputs(signature)))


class QuantizedConv(_OfCodes, Conv):
    """x [N, H, W, C], weight [K, R, S, C] of codes to y [N, P, Q, K]."""

    name, op_type = "quantized_conv", "FusedQuantizedConv"
    kinds = ("quantized_conv",)  # type: ignore[assignment]
    problem_type = QuantizedConvProblem  # type: ignore[assignment]
    operator = "Conv"
    takes_mean = False

    def writes_nchw(self, anchor: Anchor) -> bool:
        """False: there are no such kernels."""
        return False

    def forms(self, candidate: Candidate, around: Surroundings) -> tuple[Form, Form]:
        """Channels last, in whole accesses."""
        alignment = candidate.anchor.dtype.alignment
        depth, width = int(candidate.anchor.weight.shape[1]), candidate.widths[-1]
        if candidate.anchor.depthwise:  # the result is stored as x is
            form = kept(around.x, width, alignment if around.padded else 1)
            return form, form
        writes = Form(True, padded_channels(width, alignment) if around.padded else None)
        native = around.x
        suits = native.last and native.count(depth) % alignment == 0
        return native if suits else Form(True, padded_channels(depth, alignment)), writes

    def problem(self, candidate: Candidate, sizes: Sizes, stored: Stored | None) -> Problem:
        """That of values, with codes."""
        anchor = candidate.anchor
        assert isinstance(anchor, QuantizedAnchor)  # the op's pattern makes no other
        floats = problem_of(candidate, sizes(anchor.x), stored)
        fields = {
            name: getattr(floats, name)
            for name in QuantizedConvProblem.__dataclass_fields__
            if name not in ("offsets", "border")
        }
        offsets = bool(anchor.zero)
        return QuantizedConvProblem(**fields, offsets=offsets, border=offsets and any(floats.pads))

    def operation(self, candidate: Candidate, stored: Stored, tensors: Tensors) -> Operation:
        """Attributes `epilogue_params`, `x_zero`, and those of ONNX."""
        made = _operation(self, candidate, stored, tensors)
        attributes = {**made.attributes, **conv_attributes(candidate.anchor.node)}
        if candidate.anchor.depthwise and stored.writes.channels is not None:
            attributes["group"] = len(stored.writes.channels)
        return Operation(made.signature, made.inputs, attributes)

    def attributes(self, signature: Signature) -> Mapping[str, AttributeType]:
        """Those of ONNX, the steps' parameters and the zero point of x."""
        return {**CONV_ATTRIBUTES, **_ATTRIBUTES}

    def body(self, body: Body, signature: Signature, opset: int) -> str:
        """Conv of values in NCHW, and the steps."""
        first, last = LAST_TO_FIRST[signature.rank], FIRST_TO_LAST[signature.rank]
        x, weight = _values(body, signature.dtype, first, first)
        scale, *operands = _operands(self.inputs(signature))
        sums, *steps = signature.steps
        inputs = [x, weight]
        if steps and steps[0].name == BIAS:
            inputs.append(operands.pop(0))
        result = body("Conv", inputs)
        body.refer(CONV_ATTRIBUTES)
        if len(inputs) > 2:
            steps.pop(0)

        def operand(name: str, step: Step) -> str:
            if step.row.operand == "tensor":
                return _turned(body, name, first, step.row.values or signature.dtype)
            return body("Reshape", [name, body.ints(-1, *[1] * (signature.rank - 2))])

        steps = [sums, *steps]
        named = [scale, *operands]
        arranged = Arranged(operand, stored=lambda name: body("Transpose", [name], perm=last))
        result = epilogue(body, steps, opset, result, named, arranged)
        return _turned(body, result, last, steps[-1].row.cast)


class QuantizedElementwise(Elementwise):
    """x [.., C] of codes to y [.., C] of the same type, by elementwise steps between them."""

    name, op_type = "quantized_elementwise", "FusedQuantizedElementwise"
    adds_values = False

    def continuations(self) -> Sequence[StepPattern]:
        """Steps between values and codes."""
        return pattern.between_codes(self)

    def operation(self, candidate: Candidate, stored: Stored, tensors: Tensors) -> Operation:
        """Attribute `epilogue_params`, which the body reads."""
        made = super().operation(candidate, stored, tensors)
        signature = dataclasses.replace(made.signature, steps=_steps(candidate))
        return Operation(signature, made.inputs, made.attributes)

    def attributes(self, signature: Signature) -> Mapping[str, AttributeType]:
        """The steps' parameters."""
        return {"epilogue_params": AttributeProto.FLOATS}


class QuantizedGate(Resize):
    """x [N, 1, 1, C] and a tensor [N, H, W, C] of codes to y [N, H, W, C] of the same type: the
    gate of squeeze-and-excitation. It is a Resize by 1, whose epilogue broadcasts."""

    name, op_type = "quantized_gate", "FusedQuantizedGate"
    operators = ()  # type: ignore[assignment]
    adds_values = False

    def continuations(self) -> Sequence[StepPattern]:
        """Steps between values and codes."""
        return pattern.between_codes(self)

    def operation(self, candidate: Candidate, stored: Stored, tensors: Tensors) -> Operation:
        """Attributes `sampling`, `scales` and `epilogue_params`, which the body reads."""
        anchor = candidate.anchor
        signature = Signature(self, anchor.dtype, 4, _steps(candidate), variant=_AS_IT_IS)
        codes = operands(candidate, (stored.writes,), tensors)
        own = {"sampling": _AS_IT_IS.numbers, "scales": [1.0, 1.0]}
        x = tensors.get(anchor.x, stored.writes)
        return Operation(signature, [x, *codes], {**own, **candidate.parameters})

    def words(self, signature: Signature) -> Sequence[str]:
        """None: there is one way."""
        return ()

    def attributes(self, signature: Signature) -> Mapping[str, AttributeType]:
        """The scales, and the steps' parameters."""
        own = super().attributes(signature)
        return {**own, "epilogue_params": AttributeProto.FLOATS}


def _turned(body: Body, name: str, perm: Sequence[int], dtype: DType | None) -> str:
    """A Transpose, which ONNX does not have for fp8: those codes are converted and back."""
    if dtype is not DType.E4M3:
        return body("Transpose", [name], perm=perm)
    values = body("Transpose", [body("Cast", [name], to=DType.F32.onnx)], perm=perm)
    return body("Cast", [values], to=dtype.onnx)


def _operands(names: Sequence[str]) -> list[str]:
    """Those of the steps."""
    return [name for name in names if name.startswith("operand")]
