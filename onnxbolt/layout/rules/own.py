"""Ordinary nodes that fused ops replace if their x is an NHWC image (FusedOp.operators): poolings
and resizing, which ONNX Runtime does not have for NHWC in fp16.

The kernel may include a Cast behind the node.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_graphsurgeon as gs

from onnxbolt.dtypes import DType
from onnxbolt.epilogues import CASTS, Step
from onnxbolt.forms import Form, stored_shape
from onnxbolt.graph.edit import sole_use
from onnxbolt.layout.assignment import Assignment, channels_last
from onnxbolt.layout.carry import Carry, Kernels, Origin, Result, Writer
from onnxbolt.ops import OPS, FusedOp
from onnxbolt.ops.base import Operation, Replacement, Signature
from onnxbolt.registry import cached


def takes(op: str) -> bool:
    """True if a fused op may replace nodes of this operator."""
    return op in _by_operator()


def rule(node: gs.Node, state: Assignment) -> Carry | None:
    x = node.inputs[0]
    if not channels_last(x, state) or len(x.shape) != 4 or DType.of(x.dtype) is None:
        return None
    if _found(node) is None:
        return None
    form = state.form(x)
    return Carry((form, *(None for _ in node.inputs[1:])), (form,), _emit, ours=True)


@cached(1)
def _by_operator() -> Mapping[str, FusedOp]:
    return {operator: op for op in OPS.values() for operator in op.operators}


def _found(node: gs.Node) -> tuple[FusedOp, Replacement] | None:
    """The fused op that replaces the node, and its attributes; None if there is none."""
    op = _by_operator()[node.op]
    replacement = op.replacement(node)
    return None if replacement is None else (op, replacement)


def _emit(writer: Writer, node: gs.Node, carry: Carry) -> None:
    form = carry.writes[0]
    x, y = node.inputs[0], node.outputs[0]
    dtype, found = DType.of(x.dtype), _found(node)
    assert dtype is not None  # the rule has looked,
    assert found is not None  # at both
    op, replacement = found
    configs = op.configs(_sizes(x, form), _sizes(y, form), dtype, writer.archs)
    covered: tuple[gs.Node, ...] = (node,)
    steps: tuple[Step, ...] = ()
    if op.takes_cast and (cast := _cast_behind(writer, y, form)) is not None:
        covered, y = (node, cast), cast.outputs[0]
        steps = (Step(CASTS[DType.of(y.dtype) or DType.F32]),)
    signature = Signature(op, dtype, 4, steps, variant=replacement.variant)
    writer.own(
        Operation(signature, [writer.get(x, form)], replacement.attributes),
        Result(y, form),
        Origin(f"{node.op} in NHWC", node, covered),
        Kernels(configs),
    )


def _cast_behind(writer: Writer, y: gs.Tensor, form: Form) -> gs.Node | None:
    """The Cast that alone reads the result and keeps its form; None if there is none."""
    node = sole_use(writer.graph, y)
    if (
        node is None
        or node.op != "Cast"
        or DType.of(node.outputs[0].dtype) is None
        or node.outputs[0].name in writer.graph.captured
    ):
        return None
    carry = writer.carries.get(node)
    return node if carry is not None and carry.reads == carry.writes == (form,) else None


def _sizes(tensor: gs.Tensor, form: Form) -> list[int]:
    """The stored shape, with 1 for unknown dimensions."""
    return [
        size if isinstance(size, int) else 1
        for size in stored_shape(tensor.shape, form) or (1, 1, 1, 1)
    ]
