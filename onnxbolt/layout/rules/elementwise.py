"""Elementwise operators: all inputs and the output have the same form; constants are converted to
it."""

from __future__ import annotations

import math

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt import families, ops
from onnxbolt.canonicalize.quantized.scaling import (
    DEQUANTIZE,
    QUANTIZE,
    is_dequantize,
    is_quantize,
)
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import EPILOGUES, EpilogueStep, steps_of
from onnxbolt.epilogues.patterns import Unary, Vector
from onnxbolt.families import multiplies_codes
from onnxbolt.forms import FIRST_TO_LAST, PLAIN, Form, padded_channels, take
from onnxbolt.layout.assignment import Assignment
from onnxbolt.layout.carry import Carry, Writer

# Standard operators that are no epilogue step. For the bounded ones a padded zero has a finite
# result whatever the constants are, which zero weights behind them remove.
_BOUNDED = frozenset(
    {
        "Abs",
        "Ceil",
        "Celu",
        "Erf",
        "Floor",
        "Gelu",
        "Identity",
        "Max",
        "Min",
        "Neg",
        "Round",
        "Selu",
        "Sign",
        "Snake",
        "Softsign",
        "ThresholdedRelu",
    }
)
OPS = tuple(sorted(_BOUNDED | {QUANTIZE, DEQUANTIZE} | {"Pow", "Exp", "Log", "Reciprocal", "Sqrt"}))


def takes(op: str) -> bool:
    """True if the rule applies to this operator, which may be a recognized activation."""
    return op in OPS or bool(_entries(op))


def _entries(op: str) -> tuple[EpilogueStep, ...]:
    """The epilogue steps that a node of this operator may compute."""
    own = EPILOGUES.get(op)
    return (*steps_of(op), *((own,) if own is not None and own.forms else ()))


def _is_bounded(op: str) -> bool:
    """True if the operator's results for padded channels, which are zeros, are finite."""
    entries = _entries(op)
    return (
        op in _BOUNDED
        or op in (QUANTIZE, DEQUANTIZE)
        or (
            bool(entries)
            and all(entry.finite_at_zero for entry in entries)
            and not any(
                isinstance(pattern, Vector) and pattern.op == op and not pattern.finite_at_zero
                for entry in entries
                for pattern in entry.patterns
            )
        )
    )


def _tensors(node: gs.Node) -> int:
    """How many of the first inputs are tensors; the inputs behind them are scalar parameters."""
    scalars = any(
        isinstance(pattern, Unary) and pattern.op == node.op and pattern.scalars
        for entry in steps_of(node.op)
        for pattern in entry.patterns
    )
    return 1 if scalars or _scales(node) else len(node.inputs)


def _scales(node: gs.Node) -> bool:
    return is_quantize(node) or is_dequantize(node)


def _of_tensor(node: gs.Node) -> bool:
    """True if a QuantizeLinear or DequantizeLinear has one scale for the whole tensor."""
    shape = node.inputs[1].shape
    return shape is not None and math.prod(shape) == 1


def rule(node: gs.Node, state: Assignment) -> Carry | None:
    if _scales(node) and not (multiplies_codes() and _of_tensor(node)):
        return None
    data = [t for t in node.inputs[: _tensors(node)] if not isinstance(t, gs.Constant)]
    out = node.outputs[0].shape
    if not data or out is None or any(t.shape is None or len(t.shape) > len(out) for t in data):
        return None
    form = _common_form(node, state, data)
    if form == PLAIN and is_quantize(node):
        form = _as_read(node.outputs[0], state)
    if form == PLAIN or (form.padded and not _is_bounded(node.op)):
        return None
    if form.last and is_dequantize(node) and _converts_codes(node, state):
        return None
    channel = 1 if form.last else len(out) - 1
    whole = out[channel]
    reads: list[Form | None] = []
    for tensor in node.inputs:
        if tensor not in data:
            reads.append(None)
        elif len(tensor.shape) != len(out) or tensor.shape[channel] not in (1, whole):
            return None
        else:
            reads.append(form if tensor.shape[channel] == whole else Form(form.last))
    return Carry(tuple(reads), (form,), _emit)


def _converts_codes(node: gs.Node, state: Assignment) -> bool:
    """True if codes are better converted than their values, of which nobody keeps the layout: they
    are a quarter as large. ONNX Runtime refuses what moves values of int8 codes, too: it writes
    QuantizeLinear behind, from opset 21 on with a zero point of another type."""
    (values,), dtype = node.outputs, DType.of_codes(node.inputs[0].dtype)
    if dtype is None or not families.takes_codes(ops.conversion(to_last=False).name, dtype):
        return False
    readers = values.outputs
    return all(n not in state.fused.covered and state.rules(n) is None for n in readers)


def _as_read(codes: gs.Tensor, state: Assignment) -> Form:
    """The form in which a convolution reads codes, where kernels of ours convert values alone."""
    dtype = DType.of_codes(codes.dtype)
    if dtype is None or families.takes_codes(ops.conversion(to_last=True).name, dtype):
        return PLAIN
    if not state.reads_last(codes) or not isinstance(codes.shape[1], int):
        return PLAIN
    return Form(True, padded_channels(codes.shape[1], dtype.alignment))


def _common_form(node: gs.Node, state: Assignment, data: list[gs.Tensor]) -> Form:
    """The form of the node's tensors: that of the inputs of full size that are not PLAIN, if these
    are at least half of them, or if a fused convolution reads the result; PLAIN otherwise."""
    out = node.outputs[0].shape
    full = [t for t in data if list(t.shape) == list(out)] or data
    shaped = [state.form(t) for t in full if state.form(t) != PLAIN]
    if not shaped or (2 * len(shaped) < len(full) and not state.reads_last(node.outputs[0])):
        return PLAIN
    form = shaped[0]
    if form.grouped or (form.last and len(out) not in FIRST_TO_LAST):
        return PLAIN
    return form


def _emit(writer: Writer, node: gs.Node, carry: Carry) -> None:
    form = carry.writes[0]
    rank = len(node.outputs[0].shape)
    inputs = [
        (
            tensor
            if not tensor.name or i >= _tensors(node)
            else (
                stored_constant(writer, tensor, rank, form, 1.0 if node.op == "Div" else 0.0)
                if read is None
                else writer.get(tensor, read)
            )
        )
        for i, (tensor, read) in enumerate(zip(node.inputs, carry.reads, strict=True))
    ]
    writer.replace(node, inputs, form)


def stored_constant(
    writer: Writer, constant: gs.Constant, rank: int, form: Form, fill: float
) -> gs.Constant:
    """A constant that broadcasts against tensors of this rank in this form."""
    if constant.values.size == 1 or (not form.last and form.channels is None):
        return constant
    values = constant.values.reshape((1,) * (rank - constant.values.ndim) + constant.values.shape)
    if form.last:
        values = values.transpose(FIRST_TO_LAST[rank])
    if values.shape[-1] != 1:
        values = take(values, form.channels, -1, fill)
    return writer.constant(constant.name, np.ascontiguousarray(values))
