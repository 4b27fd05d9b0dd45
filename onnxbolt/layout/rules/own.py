"""Ordinary nodes that fused ops replace if their x is an NHWC image or an NDHWC volume
(FusedOp.operators): poolings and resizing, which ONNX Runtime does not have for NHWC in fp16.

The kernel may include a Cast behind the node.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt import families
from onnxbolt.candidates import Anchor, Candidate, Link
from onnxbolt.canonicalize.quantized.scaling import Scaling, is_quantize, new_tensor
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import CASTS, SCALE, Step
from onnxbolt.forms import Form, stored_shape
from onnxbolt.graph.edit import sole_use
from onnxbolt.layout.assignment import Assignment, channels_last
from onnxbolt.layout.carry import Carry, Kernels, Origin, Result, Writer
from onnxbolt.layout.places import without_padding
from onnxbolt.ops import CODES_OF_VALUES, OPS, FusedOp
from onnxbolt.ops.base import Operation, Signature, Stored
from onnxbolt.ops.quantize.pattern import of_image
from onnxbolt.ops.quantized.pattern import decoded
from onnxbolt.registry import cached


def takes(op: str) -> bool:
    """True if a fused op may replace nodes of this operator."""
    return op in _by_operator()


def rule(node: gs.Node, state: Assignment) -> Carry | None:
    x = node.inputs[0]
    dtype, op = DType.stored(x.dtype), replacing(node)
    if not channels_last(x, state) or dtype is None or op is None:
        return None
    if dtype.is_code and not (op.selects(node) and families.takes_codes(op.name, dtype)):
        return None
    reads, writes = op.forms_of(node, state.form(x))
    codes = _averaged(op, x, state, reads)
    emit = _emit if codes is None else partial(_emit_mean, *codes)
    return Carry((reads, *(None for _ in node.inputs[1:])), (writes,), emit, ours=True)


def _averaged(
    op: FusedOp, x: gs.Tensor, state: Assignment, form: Form
) -> tuple[gs.Tensor, Scaling] | None:
    """The codes whose values x are, where a kernel takes the mean of codes; None otherwise."""
    found = decoded(x) if op.averages and x.dtype == np.float32 else None
    dtype = None if found is None else DType.of_codes(found[0].dtype)
    if found is None or dtype is None or state.form(found[0]) != form:
        return None
    return found if families.takes_codes(op.name, dtype) else None


def _emit_mean(
    codes: gs.Tensor, scaling: Scaling, writer: Writer, node: gs.Node, carry: Carry
) -> None:
    """The mean of codes as numbers, whose value follows: (mean - zero point) * scale. Where codes
    alone are made of that, one kernel multiplies and makes them."""
    (reads, *_), (form,) = carry.reads, carry.writes
    y, op, dtype = node.outputs[0], replacing(node), DType.of_codes(codes.dtype)
    assert reads is not None  # the rule has set it,
    assert op is not None  # and has looked
    assert dtype is not None  # at both
    mean = new_tensor(writer.graph, f"{y.name}_of_codes", np.dtype(np.float32), y.shape)
    made = writer.own(
        Operation(
            Signature(op, dtype, len(y.shape), (Step(CASTS[DType.F32]),)),
            [writer.get(codes, reads)],
        ),
        Result(mean, form),
        Origin(f"{node.op} of codes in NHWC", node, (node,)),
        Kernels(op.configs(_sizes(codes, reads), _sizes(y, form), dtype, writer.archs)),
    )
    value = made.outputs[0]
    quantize = _codes_behind(writer, y, form)
    if scaling.zero:
        zero = writer.constant(y.name, scaling.zero.astype(np.float32))
        less = writer.scratch(y, np.float32)
        writer.add("Sub", [value, zero], [less], {}, y, node)
        value = less
    if quantize is not None:
        _emit_codes(value, scaling, writer, quantize, form)
        return
    scale = writer.constant(y.name, scaling.scale.astype(np.float32))
    writer.add("Mul", [value, scale], [writer.produce(y, form)], {}, y, node)


def _codes_behind(writer: Writer, y: gs.Tensor, form: Form) -> gs.Node | None:
    """The QuantizeLinear that alone reads the mean y, where a run has it; None if there is none."""
    node = sole_use(writer.graph, y)
    if node is None or not is_quantize(node) or not writer.is_replaced(node):
        return None
    return node if writer.carries[node].writes == (form,) else None


def _emit_codes(
    mean: gs.Tensor, scaling: Scaling, writer: Writer, quantize: gs.Node, form: Form
) -> None:
    """The codes of a mean of codes as numbers: its values and their codes, in one kernel."""
    found = of_image(CODES_OF_VALUES, quantize)
    assert found is not None  # a run has the node
    _, link = found
    codes = quantize.outputs[0]
    spread = np.full(form.count(int(codes.shape[1])), scaling.scale, np.float32)
    scales = writer.constant(f"{codes.name}_scales", spread)
    steps = (Step(SCALE), link.step.of_type)
    writer.own(
        Operation(
            Signature(CODES_OF_VALUES, DType.F32, 0, steps),
            [mean, scales],
            {"epilogue_params": list(link.step.params)},
        ),
        Result(codes, form),
        Origin("codes of a mean of codes", quantize, (quantize,)),
        Kernels([families.only(CODES_OF_VALUES.name, arch) for arch in writer.archs]),
    )


@cached(1)
def _by_operator() -> Mapping[str, FusedOp]:
    return {operator: op for op in OPS.values() for operator in op.operators}


def replacing(node: gs.Node) -> FusedOp | None:
    """The fused op that replaces the node where it works in NHWC; None if there is none."""
    op = None if node.domain else _by_operator().get(node.op)
    if op is None or not families.serves(op.name):
        return None
    serves = len(node.inputs[0].shape or ()) in op.ranks and op.replacement(node) is not None
    return op if serves else None


def _emit(writer: Writer, node: gs.Node, carry: Carry) -> None:
    (reads, *_), (form,) = carry.reads, carry.writes
    x, y = node.inputs[0], node.outputs[0]
    assert reads is not None  # the rule has set it
    dtype, op = DType.stored(x.dtype), replacing(node)
    assert dtype is not None  # the rule has looked,
    assert op is not None  # at both
    configs = op.configs(_sizes(x, reads), _sizes(y, form), dtype, writer.archs)
    links: tuple[Link, ...] = ()
    if op.takes_cast and (cast := _cast_behind(writer, y, form)) is not None:
        y = cast.outputs[0]
        links = (Link(Step(CASTS[DType.of(y.dtype) or DType.F32]), None, (cast,), y),)
    candidate = Candidate(Anchor(op, node, x, None, dtype), links, frozenset())
    operation = op.operation(candidate, Stored(reads, form), writer)
    writer.own(
        without_padding(operation, reads),
        Result(y, form),
        Origin(f"{node.op} in NHWC", node, candidate.nodes),
        Kernels(configs),
    )


def _cast_behind(writer: Writer, y: gs.Tensor, form: Form) -> gs.Node | None:
    """The Cast that alone reads the result and keeps its form; None if there is none, or if it
    belongs to the codes that another kernel makes."""
    node = sole_use(writer.graph, y)
    if (
        node is None
        or node.op != "Cast"
        or DType.of(node.outputs[0].dtype) is None
        or node.outputs[0].name in writer.graph.captured
        or writer.is_replaced(node)
    ):
        return None
    carry = writer.carries.get(node)
    return node if carry is not None and carry.reads == carry.writes == (form,) else None


def _sizes(tensor: gs.Tensor, form: Form) -> list[int]:
    """The stored shape, with 1 for unknown dimensions; that of an image if even the rank is."""
    return [
        size if isinstance(size, int) else 1
        for size in stored_shape(tensor.shape, form) or (1, 1, 1, 1)
    ]
