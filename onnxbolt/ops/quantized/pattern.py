"""Products of codes of 8 bits: which are fused, what continues their epilogues, and why others are
not.

An anchor is a Conv or MatMul with its two DequantizeLinear, each of which nobody else reads
(`own_pairs`). QuantizeLinear ends an epilogue; with the DequantizeLinear behind it, where nobody
else reads the codes, it is a step that rounds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt import families
from onnxbolt.candidates import Anchor, Link, Refusal
from onnxbolt.canonicalize.quantized.scaling import (
    DEQUANTIZE,
    EIGHT_BITS,
    INTEGERS,
    QUANTIZE,
    Scaling,
    is_dequantize,
    is_quantize,
    scaling_of,
)
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import (
    ADD_CODES,
    ADD_VALUES,
    BIAS,
    CASTS,
    DECODE,
    MUL_CODES,
    REQUANTIZE,
    STORE_VALUES,
    Step,
)
from onnxbolt.epilogues import DEQUANTIZE as SCALE_SUMS
from onnxbolt.epilogues import QUANTIZE as ENDS
from onnxbolt.graph.edit import auto_pad, insert, pinned, producer, sole_use, stand_in
from onnxbolt.graph.names import fresh
from onnxbolt.ops.base import FusedOp
from onnxbolt.patterns.types import AnchorPattern, StepPattern

_LARGEST_WEIGHT = 128  # magnitude of an int8
RUN_TIME = "its scale is computed at run time, or given for blocks"
_NO_INVERSE = "its scale is not positive, or fp32 does not have its reciprocal"
_CHANNELS_OF_X = "its quantized input has a scale for each channel"


@dataclass(frozen=True, eq=False)
class QuantizedAnchor(Anchor):
    """A product of codes: `node` is the product, `x` its codes, `weight` those of the weight, and
    `reads` and `weighs` the DequantizeLinear of both, with their numbers."""

    reads: gs.Node | None = None
    weighs: gs.Node | None = None
    scaling: Scaling | None = None
    weight_scaling: Scaling | None = None

    @property
    def nodes(self) -> tuple[gs.Node, ...]:
        """Both DequantizeLinear, and the product."""
        assert self.reads is not None  # the pattern has set both
        assert self.weighs is not None
        return (self.reads, self.weighs, self.node)

    @property
    def reader(self) -> gs.Node:
        """The DequantizeLinear of x."""
        assert self.reads is not None  # the pattern has set it
        return self.reads

    def out(self, output: gs.Tensor) -> DType:
        """Results are values of the type that the model has."""
        return DType.of(output.dtype) or DType.F32

    @property
    def zero(self) -> int:
        """The zero point of x."""
        assert self.scaling is not None  # the pattern has set it
        return int(self.scaling.zero)


def serves(op: FusedOp) -> bool:
    """True if some kernels that planning may choose solve the op's problem."""
    return op.problem_type is not None and op.problem_type.__name__ in families.problem_types()


def refusal(node: gs.Node, x: gs.Node | None, weight: gs.Node) -> str:
    """The reason for which a product's operands are no codes that a kernel could multiply; empty if
    they are. `x` makes its input, and `weight` is the DequantizeLinear of its weight."""
    if x is None or not is_dequantize(x):
        return "only its weight is quantized"
    read, scaling = scaling_of(x), scaling_of(weight)
    codes = weight.inputs[0]
    if read is None or scaling is None:
        return RUN_TIME
    if not isinstance(codes, gs.Constant):
        return "both operands are computed at run time"
    if read.axis is not None:
        return _CHANNELS_OF_X
    if not read.inverts:
        return _NO_INVERSE
    integers = [code in INTEGERS for code in (read.code, scaling.code)]
    if not {read.code, scaling.code} <= set(EIGHT_BITS) or integers[0] != integers[1]:
        return f"no kernel for its types: {read.code} by {scaling.code}"
    if np.any(scaling.zero.astype(np.float32)):
        return "its quantized weight has zero points, for which inputs have to be added up"
    columns = 0 if len(codes.shape) > 2 else len(codes.shape) - 1
    if scaling.axis not in (None, columns):
        return "its quantized weight has scales along another axis than the result's channels"
    return ""


def anchor_pattern(op: FusedOp, operator: str) -> tuple[AnchorPattern, ...]:
    """The products that `op` begins at."""
    return (AnchorPattern((operator,), partial(_match, op)),)


def continuations(op: FusedOp) -> tuple[StepPattern, ...]:
    """The steps between values and codes."""
    return (
        StepPattern((QUANTIZE,), partial(_quantize, op)),
        StepPattern(("Add",), partial(_add, op)),
        StepPattern(("Cast",), partial(_cast, op)),
    )


def between_codes(op: FusedOp) -> tuple[StepPattern, ...]:
    """The steps between codes where no product is in front."""
    return (
        StepPattern((QUANTIZE,), partial(_quantize, op)),
        StepPattern(("Add",), partial(_combine, op, ADD_CODES)),
        StepPattern(("Mul",), partial(_combine, op, MUL_CODES)),
    )


def decoded(tensor: gs.Tensor) -> tuple[gs.Tensor, Scaling] | None:
    """The codes whose values `tensor` has, of one scale; None if there are none."""
    node = producer(tensor)
    scaling = scaling_of(node) if node is not None and is_dequantize(node) else None
    if node is None or scaling is None or scaling.axis is not None:
        return None
    return node.inputs[0], scaling


def decode(tensor: gs.Tensor, codes: gs.Tensor, scaling: Scaling) -> Link:
    """The link that makes the values `tensor` of codes. Others may read them as well: their node
    goes where nobody does any more."""
    return Link(Step(DECODE[_type(codes)], _params(scaling)), None, (), tensor)


def _type(codes: gs.Tensor) -> DType:
    dtype = DType.of_codes(codes.dtype)
    assert dtype is not None  # the caller has looked
    return dtype


def stored_and_quantized(anchor: Anchor, tensor: gs.Tensor) -> tuple[Link, ...]:
    """The links by which a product writes its result, which others read as values, and the codes
    that a QuantizeLinear makes of it; none where no kernel does, or where there is none."""
    dtype = DType.of(tensor.dtype)
    if dtype is None or not _moves_values(anchor):
        return ()
    for node in tensor.outputs:
        if is_quantize(node) and node.inputs[0] is tensor:
            found = _quantize(anchor.op, node, tensor, anchor)
            if isinstance(found, Link):
                return (Link(Step(STORE_VALUES[dtype]), None, (), tensor), found.last or found)
    return ()


def in_fp32(links: Sequence[Link]) -> int:
    """How many links stay in fp32: those in front of an addition of values that others write, where
    no codes are behind it, else all."""
    adds = [i for i, link in enumerate(links) if link.step.name in ADD_VALUES.values()]
    rounds = any(is_quantize(node) for link in links[min(adds, default=0) :] for node in link.nodes)
    return adds[0] if adds and not rounds else len(links)


def _moves_values(anchor: Anchor) -> bool:
    problem = anchor.op.problem_type
    return problem is not None and not anchor.depthwise and families.moves_values(problem)


def _combine(
    op: FusedOp, steps: Mapping[DType, str], node: gs.Node, tensor: gs.Tensor, anchor: Anchor
) -> Link | str | None:
    """Add or Mul of another tensor's codes, whose values others may read, too."""
    if anchor.op is not op or node.inputs[0] is node.inputs[1]:
        return None
    (other,) = (each for each in node.inputs if each is not tensor)
    if isinstance(other, gs.Constant):
        return None
    found = decoded(other)
    if found is None or DType.of_codes(found[0].dtype) is not anchor.dtype:
        return f"its other operand is no value of codes of the same type: {other.name}"
    codes, scaling = found
    if not anchor.op.accepts(codes, tensor):
        return f"its other operand's shape may differ from the result's: {other.name}"
    return Link(Step(steps[anchor.dtype], _params(scaling)), codes, (node,), node.outputs[0])


def _match(op: FusedOp, node: gs.Node) -> tuple[Anchor, tuple[Link, ...]] | Refusal | None:
    def because(reason: str, tensor: str = "", remedy: str = "") -> Refusal:
        return Refusal(node.name, node.op, reason, tensor, remedy)

    x, weight = map(_maker, node.inputs[:2])
    if weight is None or not is_dequantize(weight) or not serves(op):
        return None
    if reason := refusal(node, x, weight):
        return because(reason, node.inputs[0].name)
    assert x is not None  # `refusal` has looked
    codes, q = weight.inputs[0], x.inputs[0]
    dtype, scaling = DType.of_codes(q.dtype), scaling_of(x)
    assert scaling is not None  # likewise
    if dtype is None or codes.dtype != dtype.weight.numpy:
        return because(f"no kernel for its types: {q.dtype} by {codes.dtype}", q.name)
    if any(len(each.outputs[0].outputs) != 1 for each in (x, weight)):
        return because("values of its codes are read by other nodes", node.inputs[0].name)
    if q.shape is None or 0 in q.shape or 0 in codes.shape:
        return because("its input's rank is unknown, or it is empty", q.name)
    anchor = QuantizedAnchor(
        op, node, q, codes, dtype, (), (), x, weight, scaling, scaling_of(weight)
    )
    if node.op == "Conv":
        reason = _window(node, anchor)
    else:
        reason = "" if len(codes.shape) == 2 and len(q.shape) > 1 else "its weight is no matrix"
    if reason := reason or _overflow(anchor) or _converted(node):
        return because(reason, q.name)
    scales = scales_of(anchor)
    first = Link(Step(SCALE_SUMS, (float(scaling.scale),)), scales, (node,), node.outputs[0])
    bias = node.inputs[2] if len(node.inputs) > 2 and node.inputs[2].name else None
    if bias is None:
        return anchor, (first,)
    return anchor, (first, Link(Step(BIAS), bias, (node,), node.outputs[0]))


def _maker(tensor: gs.Tensor) -> gs.Node | None:
    """The node that makes a tensor; the one in front of it where this is a Cast, since no kernel
    takes the product."""
    node = producer(tensor)
    return producer(node.inputs[0]) if node is not None and node.op == "Cast" else node


def _converted(node: gs.Node) -> str:
    """The reason for which values of codes that a model converts are none that kernels read."""
    casts = (producer(tensor) for tensor in node.inputs[:2])
    if any(cast is not None and cast.op == "Cast" for cast in casts):
        return "values of its codes are converted to another type"
    return ""


def _window(node: gs.Node, anchor: QuantizedAnchor) -> str:
    """The reason for which no kernel computes a convolution; empty if one may."""
    x, weight = anchor.x, anchor.weight
    if len(weight.shape) != 4 or len(x.shape) != 4 or not isinstance(x.shape[1], int):
        return "a convolution of codes that is none of images"
    if anchor.groups != 1 and not (anchor.depthwise and families.convolves_by_channel()):
        return "no kernel convolves codes in groups"
    if auto_pad(node) != "NOTSET":
        return "auto_pad with an unknown input size"
    if len(node.inputs) > 2 and node.inputs[2].name and not isinstance(node.inputs[2], gs.Constant):
        return "its bias is computed at run time"
    sized = all(isinstance(size, int) for size in x.shape[2:])
    if anchor.zero and any(node.attrs.get("pads", ())) and not sized:
        return "its zero point is not 0, and the size of its padded image is unknown"
    return ""


def _overflow(anchor: QuantizedAnchor) -> str:
    """The reason for which int32 may not hold the sums of codes, with and without the zero point of
    x; empty if it does."""
    if anchor.dtype is DType.E4M3:
        return ""
    terms = math.prod(int(size) for size in anchor.weight.shape) // anchor.channels
    limits, zero = np.iinfo(anchor.dtype.numpy), anchor.zero
    ends = (int(limits.min), int(limits.max))
    largest = max(abs(number) for end in ends for number in (end, end - zero))
    most = (2**31 - 1) // (largest * _LARGEST_WEIGHT)
    if terms <= most:
        return ""
    return f"it adds up {terms:,} products of codes, and int32 surely holds {most:,} of them"


def scales_of(anchor: QuantizedAnchor) -> gs.Constant:
    """The scales of the weight, one for each channel."""
    assert anchor.weighs is not None  # the pattern has set both
    assert anchor.weight_scaling is not None
    scales = anchor.weight_scaling.scale.astype(np.float32).reshape(-1)
    spread = np.array(np.broadcast_to(scales, (anchor.channels,)))
    return gs.Constant(anchor.weighs.inputs[1].name, spread)


def _params(scaling: Scaling) -> tuple[float, float]:
    return float(scaling.scale), float(scaling.zero)


def _quantize(op: FusedOp, node: gs.Node, tensor: gs.Tensor, anchor: Anchor) -> Link | str | None:
    """QuantizeLinear, which ends the epilogue unless a DequantizeLinear alone reads the codes."""
    if anchor.op is not op or node.inputs[0] is not tensor:
        return None
    scaling, codes = scaling_of(node), node.outputs[0]
    if scaling is None:
        return RUN_TIME
    dtype = DType.of_codes(scaling.code)
    if dtype is None or scaling.axis is not None or node.attrs.get("saturate", 1) != 1:
        return "no kernel rounds to such codes"
    if not scaling.inverts:
        return _NO_INVERSE
    end = Link(Step(ENDS[dtype], _params(scaling)), None, (node,), codes)
    readers = codes.outputs
    back = scaling_of(readers[0]) if len(readers) == 1 and is_dequantize(readers[0]) else None
    if back is None or not scaling.same(back):
        return end
    step = Step(REQUANTIZE[dtype], _params(scaling))
    return Link(step, None, (node, readers[0]), readers[0].outputs[0], end)


def _add(op: FusedOp, node: gs.Node, tensor: gs.Tensor, anchor: Anchor) -> Link | str | None:
    """Add of another tensor's codes, or of values."""
    if anchor.op is not op or node.inputs[0] is node.inputs[1]:
        return None
    (other,) = (each for each in node.inputs if each is not tensor)
    if isinstance(other, gs.Constant):
        return None  # a bias, or a near miss of one
    pair = producer(other)
    scaling = scaling_of(pair) if pair is not None and is_dequantize(pair) else None
    if pair is None or scaling is None or scaling.axis is not None:
        return _add_values(node, tensor, other, anchor)
    codes = pair.inputs[0]
    if DType.of_codes(codes.dtype) is not anchor.dtype:
        return f"its other operand has codes of another type: {codes.name}"
    if not _same_shape(codes, tensor):
        return _OTHER_SHAPE + other.name
    if len(other.outputs) != 1:
        return f"values of its other operand's codes are read by other nodes: {other.name}"
    step = Step(ADD_CODES[anchor.dtype], _params(scaling))
    return Link(step, codes, (pair, node), node.outputs[0])


_OTHER_SHAPE = "its other operand's shape may differ from the result's: "


def _same_shape(operand: gs.Tensor, tensor: gs.Tensor) -> bool:
    shape = operand.shape
    return shape is not None and None not in shape and list(shape) == list(tensor.shape or ())


def _add_values(node: gs.Node, tensor: gs.Tensor, other: gs.Tensor, anchor: Anchor) -> Link | str:
    """Add of values that another node writes."""
    dtype = DType.of(other.dtype)
    if dtype is None or other.dtype != tensor.dtype or not _moves_values(anchor):
        return f"its other operand is no value of codes: {other.name}"
    if not _same_shape(other, tensor):
        return _OTHER_SHAPE + other.name
    return Link(Step(ADD_VALUES[dtype]), other, (node,), node.outputs[0])


def _cast(op: FusedOp, node: gs.Node, tensor: gs.Tensor, anchor: Anchor) -> Link | None:
    """Cast of values to 16 bits, and the addition of such values, which the kernel does in fp32."""
    result = node.outputs[0]
    made = DType.of(result.dtype)
    if anchor.op is not op or made in (None, DType.F32) or tensor.dtype != np.float32:
        return None
    end = Link(Step(CASTS[made]), None, (node,), result)
    add = result.outputs[0] if len(result.outputs) == 1 else None
    if add is None or add.op != "Add" or add.domain or add.inputs[0] is add.inputs[1]:
        return end
    (other,) = (each for each in add.inputs if each is not result)
    if isinstance(other, gs.Constant) or decoded(other) is not None:
        return end
    found = _add_values(add, result, other, anchor)
    return end if isinstance(found, str) else replace(found, nodes=(node, add), without=end)


def own_pairs(graph: gs.Graph, operator: str) -> None:
    """Give products of codes, and sums, their own DequantizeLinear, where others read the values,
    too: then nodes that one kernel replaces have no other readers."""
    for node in list(graph.nodes):
        if node.domain or node.op not in (operator, "Add"):
            continue
        for index, tensor in enumerate(node.inputs[:2]):
            pair = producer(tensor)
            if pair is None or not is_dequantize(pair) or scaling_of(pair) is None:
                continue
            if sole_use(graph, tensor) is None or pinned(graph, tensor):
                node.inputs[index] = _copied(graph, pair, tensor, node)


def _copied(graph: gs.Graph, pair: gs.Node, tensor: gs.Tensor, at: gs.Node) -> gs.Variable:
    copy = gs.Variable(fresh(graph, f"{tensor.name}_again"), tensor.dtype, tensor.shape)
    stand_in(copy, tensor)
    insert(graph, DEQUANTIZE, list(pair.inputs), [copy], [pair], dict(pair.attrs), at=at)
    return copy


def classes(size: int, filter: int, stride: int, dilation: int, pads: tuple[int, int]) -> list[int]:
    """The first output of each class along an axis: outputs that meet the same taps inside of the
    image. Those between both borders are one class."""
    outputs = (size + sum(pads) - dilation * (filter - 1) - 1) // stride + 1
    begins = [output * stride - pads[0] for output in range(outputs)]
    cut = sum(begin < 0 for begin in begins)
    end = sum(begin + dilation * (filter - 1) > size - 1 for begin in begins)
    if cut + end >= outputs:
        return list(range(outputs))
    return [*range(cut), cut, *range(outputs - end, outputs)]


def offsets(anchor: QuantizedAnchor, codes: np.ndarray) -> np.ndarray:
    """The table [classes, N] of what sums begin with, for a weight as ONNX has it: the zero point
    of x times the weights that meet the image."""
    weights, node = codes.astype(np.int64), anchor.node
    if node.op != "Conv":
        table = weights.sum(axis=0)[None]
    elif not any(node.attrs.get("pads", ())):
        table = weights.sum(axis=(1, 2, 3))[None]
    else:
        rows, columns = (_inside(node, anchor, axis) for axis in (0, 1))
        per_tap = weights.sum(axis=1)
        table = np.einsum("hr,ws,krs->hwk", rows, columns, per_tap).reshape(-1, per_tap.shape[0])
    return (-anchor.zero * table).astype(np.int32)


def _inside(node: gs.Node, anchor: QuantizedAnchor, axis: int) -> np.ndarray:
    """For each class along an axis of the image, 1 for each tap inside of it."""
    size, taps = int(anchor.x.shape[2 + axis]), int(anchor.weight.shape[2 + axis])
    stride, dilation = (
        int(node.attrs.get(name, [1, 1])[axis]) for name in ("strides", "dilations")
    )
    pads = node.attrs.get("pads", [0] * 4)
    firsts = classes(size, taps, stride, dilation, (pads[axis], pads[2 + axis]))
    places = np.array(firsts)[:, None] * stride - pads[axis] + dilation * np.arange(taps)
    return ((places >= 0) & (places < size)).astype(np.int64)
