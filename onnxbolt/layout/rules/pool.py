"""Pooling in channels last: our own nodes, since ONNX Runtime has no NHWC pooling in fp16.

MaxPool, AveragePool, GlobalAveragePool, and ReduceMean over height and width (reduce.py), which is
a global pooling. A Cast behind a pooling is part of its kernel.
"""

from __future__ import annotations

import onnx_graphsurgeon as gs

from onnxbolt.archs import ARCHS
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import CASTS, Step
from onnxbolt.families import candidates
from onnxbolt.forms import Form, stored_shape
from onnxbolt.graph.edit import auto_pad, constant_integers, sole_use
from onnxbolt.layout.assignment import Assignment, channels_last
from onnxbolt.layout.carry import Carry, Kernels, Origin, Result, Writer
from onnxbolt.ops import named
from onnxbolt.ops.base import Operation, Signature
from onnxbolt.problems import PoolProblem

OPS = ("MaxPool", "AveragePool", "GlobalAveragePool")
_KINDS = {
    "MaxPool": "max_pool",
    "AveragePool": "average_pool",
    "GlobalAveragePool": "global_average_pool",
    "ReduceMean": "global_average_pool",
}


def rule(node: gs.Node, state: Assignment) -> Carry | None:
    x = node.inputs[0]
    if not channels_last(x, state) or len(x.shape) != 4 or DType.of(x.dtype) is None:
        return None
    if len(node.outputs) != 1 or auto_pad(node) != "NOTSET" or node.attrs.get("storage_order", 0):
        return None
    if node.op == "AveragePool" and any(d != 1 for d in node.attrs.get("dilations", ())):
        return None
    form = state.form(x)
    if node.op == "ReduceMean":
        return Carry((form, *(None for _ in node.inputs[1:])), (form,), _emit, ours=True)
    return Carry((form,), (form,), _emit, ours=True)


def reduced_axes(node: gs.Node) -> list[int] | None:
    """The axes of a reduction, sorted and non-negative, None where unknown."""
    axes = node.attrs.get("axes") or constant_integers(node, 1)
    return sorted(a % len(node.inputs[0].shape) for a in axes) if axes else None


def _emit(writer: Writer, node: gs.Node, carry: Carry) -> None:
    form = carry.writes[0]
    x, y = node.inputs[0], node.outputs[0]
    dtype = DType.of(x.dtype)
    assert dtype is not None  # the rule has looked
    kind = _KINDS[node.op]
    attributes: dict[str, object] = {}
    if kind != "global_average_pool":
        attributes = {
            "kernel_shape": node.attrs["kernel_shape"],
            "strides": node.attrs.get("strides", [1, 1]),
            "pads": node.attrs.get("pads", [0, 0, 0, 0]),
            "ceil_mode": node.attrs.get("ceil_mode", 0),
        }
    if kind == "max_pool":
        attributes["dilations"] = node.attrs.get("dilations", [1, 1])
    if kind == "average_pool":
        attributes["count_include_pad"] = node.attrs.get("count_include_pad", 0)
    (n, h, w, c), (_, p, q, _) = _sizes(x, form), _sizes(y, form)
    problem = PoolProblem(n, h, w, c, p, q, dtype, dtype)
    configs = [candidates(problem, ARCHS[number])[0] for number in writer.archs]
    covered: tuple[gs.Node, ...] = (node,)
    steps: tuple[Step, ...] = ()
    if (cast := _cast_behind(writer, y, form)) is not None:
        covered, y = (node, cast), cast.outputs[0]
        steps = (Step(CASTS[DType.of(y.dtype) or DType.F32]),)
    signature = Signature(named(kind), dtype, 4, steps)
    writer.own(
        Operation(signature, [writer.get(x, form)], attributes),
        Result(y, form),
        Origin(f"{node.op} in NHWC", node, covered),
        Kernels(configs),
    )


def _cast_behind(writer: Writer, y: gs.Tensor, form: Form) -> gs.Node | None:
    """A Cast that alone reads the result and keeps its form."""
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
    """The stored shape, with 1 for what is not known."""
    return [
        size if isinstance(size, int) else 1
        for size in stored_shape(tensor.shape, form) or (1, 1, 1, 1)
    ]
