"""How a change of one axis of a node's tensors changes others, operator by operator.

Most operators tie axes: those of a group change alike. The rest (grouped convolutions, Concat,
Split, Reshape) have a rule that computes one change from another.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.advice.alignment import aligned
from onnxbolt.advice.axes import (
    NEW,
    Axis,
    Changes,
    Positions,
    UntiedError,
    divided,
    joined,
    merged,
    split,
    unchanged,
)
from onnxbolt.graph.edit import add_constant, constant_integers, optional, reduced_axes

Group: TypeAlias = Sequence[Axis]
Implied: TypeAlias = Iterator[tuple[Axis, Positions]]


def implied(node: gs.Node, axis: Axis, changes: Changes) -> Implied:
    """The changes of other axes of the node that follow from that of `axis`. Raises UntiedError
    where none would keep the node's meaning."""
    if node.domain or node.op not in _RULES:
        raise UntiedError(f"channels are not followed through {node.op}")
    if any(t.shape is None for t in (*node.inputs, *node.outputs) if t.name):
        raise UntiedError(f"the shapes of {node.op} {node.name} are unknown")
    yield from _RULES[node.op](node, axis, changes)


def adjust(graph: gs.Graph, node: gs.Node, changes: Changes) -> None:
    """Change the attributes and constant sizes of a node for the changes of its tensors."""
    if node.op == "Conv" and _depthwise(node):
        _set(node, group=len(changes.of(Axis(node.inputs[0].name, 1))))
    elif node.op == "Split":
        number = _axis_of(node, 0)
        sizes = [len(changes.of(Axis(t.name, number))) for t in node.outputs]
        _set_sizes(graph, node, sizes)
    elif node.op == "Reshape":
        target = target_of(node)
        if target is not None:
            _set_sizes(graph, node, _resized(node, target, changes))
    elif node.op == "Attention" and "scale" not in node.attrs:  # it would follow the new size
        _set(node, scale=1 / math.sqrt(changes.size(Axis(node.inputs[0].name, 3))))


def target_of(node: gs.Node) -> list[int] | None:
    """A Reshape's target with a number for each size that is known, and -1 for at most one that is
    not; None if more are unknown."""
    constant = constant_integers(node, 1)
    if constant is not None:
        return constant
    shape = node.outputs[0].shape
    target = [size if isinstance(size, int) else -1 for size in shape or ()]
    return target if shape is not None and target.count(-1) <= 1 and 0 not in target else None


def _resized(node: gs.Node, target: Sequence[int], changes: Changes) -> list[int]:
    y = node.outputs[0]
    return [
        len(changes.of(Axis(y.name, i))) if size > 0 and isinstance(y.shape[i], int) else size
        for i, size in enumerate(target)
    ]


def _set(node: gs.Node, **attributes: int | float) -> None:
    node.attrs.update(attributes)
    node.origin = None


def _set_sizes(graph: gs.Graph, node: gs.Node, sizes: Sequence[int]) -> None:
    """Replace the constant sizes that the node reads as its second input. They are not changed in
    place, since other nodes may read them."""
    if constant_integers(node, 1) == list(sizes):
        return
    constant = add_constant(graph, f"{node.outputs[0].name}_sizes", np.array(sizes, np.int64))
    if len(node.inputs) > 1:
        node.inputs[1] = constant
    else:
        node.inputs.append(constant)
    if node.attrs.pop("num_outputs", None) is not None:
        node.origin = None


# --- groups of axes that change alike -------------------------------------------------------------


def _tied(groups: Callable[[gs.Node], Iterator[Group]]) -> Callable[..., Implied]:
    """The rule that the axes of each group change alike, and that no others change."""

    def rule(node: gs.Node, axis: Axis, changes: Changes) -> Implied:
        found = [group for group in groups(node) if axis in group]
        if not found:
            raise UntiedError(
                f"axis {axis.number} of {axis.tensor} cannot change at {node.op} {node.name}"
            )
        for group in found:
            for other in group:
                yield other, changes.of(axis)

    return rule


def _ends(tensor: gs.Tensor, number: int) -> Axis:
    """The axis, which may be counted from the end."""
    return Axis(tensor.name, number % len(tensor.shape))


def _broadcast(node: gs.Node) -> Iterator[Group]:
    """Elementwise: axes are aligned from the end; those of size 1 are repeated."""
    y = node.outputs[0]
    for back in range(1, len(y.shape) + 1):
        size = y.shape[-back]
        yield [
            _ends(t, -back)
            for t in (*node.inputs, y)
            if t.name and len(t.shape) >= back and t.shape[-back] == size
        ]


def _like_first(node: gs.Node) -> Iterator[Group]:
    """Each axis of the first input is one of the outputs."""
    for number in range(len(node.inputs[0].shape)):
        yield [Axis(t.name, number) for t in (node.inputs[0], *node.outputs) if t.name]


def _channels_and_batch(node: gs.Node) -> Iterator[Group]:
    """Pooling: batch and channels stay, pixels are combined."""
    for number in (0, 1):
        yield [Axis(t.name, number) for t in (node.inputs[0], *node.outputs) if t.name]


def _per_channel(node: gs.Node) -> Iterator[Group]:
    """Normalizations with constants for each channel, axis 1."""
    x, *constants = node.inputs
    for number in range(len(x.shape)):
        own = [Axis(t.name, 0) for t in constants if t.name] if number == 1 else []
        yield [Axis(x.name, number), Axis(node.outputs[0].name, number), *own]


def _product(node: gs.Node) -> Iterator[Group]:
    """MatMul: the inner axes, those of the result, and batches."""
    (a, b), y = node.inputs[:2], node.outputs[0]
    rows, columns = len(a.shape) > 1, len(b.shape) > 1
    yield [_ends(a, -1), _ends(b, -2 if columns else -1)]
    if rows:
        yield [_ends(a, -2), _ends(y, -2 if columns else -1)]
    if columns:
        yield [_ends(b, -1), _ends(y, -1)]
    for back in range(3, len(y.shape) + 1):
        size = y.shape[-back]
        yield [
            _ends(t, -back) for t in (a, b, y) if len(t.shape) >= back and t.shape[-back] == size
        ]


def _gemm(node: gs.Node) -> Iterator[Group]:
    (a, b), y, c = node.inputs[:2], node.outputs[0], optional(node.inputs, 2)
    across, down = node.attrs.get("transA", 0), node.attrs.get("transB", 0)
    yield [Axis(a.name, 0 if across else 1), Axis(b.name, 1 if down else 0)]
    summands = [
        [_ends(c, -back)]
        if c is not None and len(c.shape) >= back and c.shape[-back] == y.shape[-back]
        else []
        for back in (2, 1)
    ]
    yield [Axis(a.name, 1 if across else 0), Axis(y.name, 0), *summands[0]]
    yield [Axis(b.name, 0 if down else 1), Axis(y.name, 1), *summands[1]]


def _transpose(node: gs.Node) -> Iterator[Group]:
    x, y = node.inputs[0], node.outputs[0]
    rank = len(x.shape)
    for number, source in enumerate(node.attrs.get("perm", range(rank - 1, -1, -1))):
        yield [Axis(x.name, source), Axis(y.name, number)]


def _gather(node: gs.Node) -> Iterator[Group]:
    (data, indices), y = node.inputs, node.outputs[0]
    axis, wide = _axis_of(node, 0), len(indices.shape)
    for number in range(len(data.shape)):
        if number != axis:
            yield [Axis(data.name, number), Axis(y.name, number + (wide - 1) * (number > axis))]
    for number in range(wide):
        yield [Axis(indices.name, number), Axis(y.name, axis + number)]


def _but(chosen: Callable[[gs.Node], Sequence[int] | None]) -> Callable[[gs.Node], Iterator[Group]]:
    """As `_like_first`, but for the axes that the operator works on; it works on all if these are
    not known."""

    def groups(node: gs.Node) -> Iterator[Group]:
        axes, rank = chosen(node), len(node.inputs[0].shape)
        worked = None if axes is None else {axis % rank for axis in axes}
        for number in range(rank):
            if worked is not None and number not in worked:
                yield [Axis(t.name, number) for t in (node.inputs[0], *node.outputs) if t.name]

    return groups


def _sliced(node: gs.Node) -> Sequence[int] | None:
    if len(node.inputs) > 3 and node.inputs[3].name:
        return constant_integers(node, 3)
    starts = constant_integers(node, 1)
    return None if starts is None else range(len(starts))


def _padded(node: gs.Node) -> Sequence[int] | None:
    pads, axes = constant_integers(node, 1), constant_integers(node, 3)
    if pads is None:
        return None
    half = len(pads) // 2
    chosen = axes if axes is not None else range(half)
    return [axis for i, axis in enumerate(chosen) if pads[i] or pads[half + i]]


def _enlarged(node: gs.Node) -> Sequence[int]:
    """Resize by scales: batch and channels stay. By sizes, these would have to change as well."""
    by_scales = len(node.inputs) < 4 or not node.inputs[3].name
    return range(2 if by_scales else 0, len(node.inputs[0].shape))


def _axis_of(node: gs.Node, default: int) -> int:
    rank = len(node.inputs[0].shape)
    return int(node.attrs.get("axis", default)) % rank


def _nothing(node: gs.Node, axis: Axis, changes: Changes) -> Implied:
    """The result is the tensor's shape, which follows by itself."""
    yield from ()


# --- rules of their own ---------------------------------------------------------------------------


def _depthwise(node: gs.Node) -> bool:
    groups = int(node.attrs.get("group", 1))
    shape = node.inputs[1].shape
    return groups > 1 and tuple(shape[:2]) == (groups, 1)


def _conv(node: gs.Node, axis: Axis, changes: Changes) -> Implied:
    x, weight, y = node.inputs[0], node.inputs[1], node.outputs[0]
    bias = optional(node.inputs, 2)
    read = Axis(x.name, 1)
    results = [Axis(weight.name, 0), Axis(y.name, 1), *([Axis(bias.name, 0)] if bias else [])]
    groups: list[Group] = [[Axis(x.name, 0), Axis(y.name, 0)]]
    if _depthwise(node):
        groups.append([read, *results])
    else:
        groups.append(results)
        count = int(node.attrs.get("group", 1))
        own = Axis(weight.name, 1)  # the channels that each group reads
        if count > 1 and axis in (read, *results):
            part = _equal_part(axis, count, changes)
            if axis == read:
                yield own, part
                return
        elif count > 1 and axis == own:
            yield read, joined([changes.of(own)] * count, [changes.size(own)] * count)
            return
        else:
            groups.append([read, own])
    yield from _tied(lambda _: iter(groups))(node, axis, changes)


def _equal_part(axis: Axis, count: int, changes: Changes) -> Positions:
    """The change of each of `count` equal parts of an axis. Raises UntiedError if they differ."""
    positions, size = changes.of(axis), changes.size(axis)
    each, now = size // count, len(positions) // count
    part = tuple(p if p == NEW else p % each for p in positions[:now])
    if positions != joined([part] * count, [each] * count):
        raise UntiedError(f"a convolution has {count} groups of these channels", count)
    return part


def _conv_transpose(node: gs.Node, axis: Axis, changes: Changes) -> Implied:
    x, weight, y = node.inputs[0], node.inputs[1], node.outputs[0]
    bias = optional(node.inputs, 2)
    if int(node.attrs.get("group", 1)) > 1:
        raise UntiedError("channels are not followed through a grouped ConvTranspose")
    groups: list[Group] = [
        [Axis(x.name, 0), Axis(y.name, 0)],
        [Axis(x.name, 1), Axis(weight.name, 0)],
        [Axis(weight.name, 1), Axis(y.name, 1), *([Axis(bias.name, 0)] if bias else [])],
    ]
    yield from _tied(lambda _: iter(groups))(node, axis, changes)


def _batch_norm(node: gs.Node, axis: Axis, changes: Changes) -> Implied:
    changes.fills[Axis(node.inputs[4].name, 0)] = 1.0  # a variance
    yield from _tied(_per_channel)(node, axis, changes)


def _divided_by(node: gs.Node, axis: Axis, changes: Changes) -> Implied:
    """Div and Pow: an added divisor is 1, so that no infinity is multiplied by zero later."""
    divisor = node.inputs[1]
    if isinstance(divisor, gs.Constant):
        for number in range(len(divisor.shape)):
            changes.fills[Axis(divisor.name, number)] = 1.0
    yield from _tied(_broadcast)(node, axis, changes)


def _normalized(node: gs.Node, axis: Axis, changes: Changes) -> Implied:
    """LayerNormalization and RMSNormalization: statistics of all positions of the last axes."""
    x = node.inputs[0]
    first = _axis_of(node, -1)
    if axis.tensor not in (x.name, node.outputs[0].name) or axis.number >= first:
        changes.alters.append(f"{node.op} {node.name} takes statistics over them")

    def groups(node: gs.Node) -> Iterator[Group]:
        for back in range(1, len(x.shape) + 1):
            yield [
                _ends(t, -back)
                for t in (*node.inputs, node.outputs[0])
                if t.name and len(t.shape) >= back and t.shape[-back] == x.shape[-back]
            ]

    yield from _tied(groups)(node, axis, changes)


def _softmax(node: gs.Node, axis: Axis, changes: Changes) -> Implied:
    if axis.number == _axis_of(node, -1):
        changes.alters.append(f"{node.op} {node.name} takes its sum over them")
    yield from _tied(_like_first)(node, axis, changes)


def _reduced(node: gs.Node, axis: Axis, changes: Changes) -> Implied:
    x, y = node.inputs[0], node.outputs[0]
    axes, rank = reduced_axes(node), len(x.shape)
    worked = set(range(rank)) if not axes else {each % rank for each in axes}
    kept = bool(node.attrs.get("keepdims", 1))
    if axis.tensor == x.name and axis.number in worked:
        if node.op != "ReduceSum":
            changes.alters.append(f"{node.op} {node.name} is taken over them")
        return
    left = [number for number in range(rank) if number not in worked]
    pairs = [(n, n if kept else i) for i, n in enumerate(left)]
    groups = [[Axis(x.name, a), Axis(y.name, b)] for a, b in pairs]
    yield from _tied(lambda _: iter(groups))(node, axis, changes)


def _concat(node: gs.Node, axis: Axis, changes: Changes) -> Implied:
    y, number = node.outputs[0], _axis_of(node, 0)
    if axis.number != number:
        yield from _tied(_like_all)(node, axis, changes)
        return
    parts = [Axis(t.name, number) for t in node.inputs]
    sizes = [changes.size(part) for part in parts]
    own = joined([changes.of(part) for part in parts], sizes)
    if axis.tensor == y.name and own == unchanged(sum(sizes)):
        raise UntiedError(f"channels are not followed back through Concat {node.name}")
    yield Axis(y.name, number), own  # another part may have changed since


def _like_all(node: gs.Node) -> Iterator[Group]:
    for number in range(len(node.inputs[0].shape)):
        yield [Axis(t.name, number) for t in (*node.inputs, *node.outputs)]


def _split(node: gs.Node, axis: Axis, changes: Changes) -> Implied:
    x, number = node.inputs[0], _axis_of(node, 0)
    if axis.number != number:
        yield from _tied(_like_first)(node, axis, changes)
        return
    parts = [Axis(t.name, number) for t in node.outputs]
    sizes = [changes.size(part) for part in parts]
    if axis.tensor != x.name:
        yield Axis(x.name, number), joined([changes.of(part) for part in parts], sizes)
        return
    found = divided(changes.of(axis), sizes)
    if found is None:
        raise UntiedError(f"a part of Split {node.name} would get channels of another")
    yield from zip(parts, found, strict=True)


def _reshape(node: gs.Node, axis: Axis, changes: Changes) -> Implied:
    """Axes of input and output whose products are equal change together."""
    x, y = node.inputs[0], node.outputs[0]
    if node.op == "Reshape" and target_of(node) is None:
        raise UntiedError(f"the target of Reshape {node.name} is computed at run time")
    for ours, theirs in aligned(x.shape, y.shape):
        before = [Axis(x.name, number) for number in ours]
        behind = [Axis(y.name, number) for number in theirs]
        if axis not in (*before, *behind):
            continue
        if axis in behind:
            before, behind = behind, before
        yield from _regrouped(node, before, behind, changes)
        return
    raise UntiedError(f"{node.op} {node.name} mixes the channels with sizes that are unknown")


def _regrouped(
    node: gs.Node, before: Sequence[Axis], behind: Sequence[Axis], changes: Changes
) -> Implied:
    """The change of the axes `behind`, whose product is that of the axes `before`."""
    sizes = [[changes.size(axis) for axis in axes] for axes in (before, behind)]
    if not behind or (len(before) > 1 and len(behind) > 1):
        raise UntiedError(f"{node.op} {node.name} mixes the channels with other axes")
    whole = merged([changes.of(axis) for axis in before], sizes[0])
    if len(behind) == 1:
        yield behind[0], whole
    elif whole != merged([changes.of(axis) for axis in behind], sizes[1]):
        found = split(whole, sizes[1])
        if found is None:
            parts = sizes[1][0]
            raise UntiedError(f"{node.op} {node.name} divides these channels", parts)
        yield from zip(behind, found, strict=True)


def _attention(node: gs.Node, axis: Axis, changes: Changes) -> Implied:
    """Attention of ONNX on [batch, heads, positions, size]: queries and keys have one size, values
    and results another."""
    q, k, v = node.inputs[:3]
    y = node.outputs[0]
    if len(q.shape) != 4 or len([t for t in node.outputs if t.name]) > 1 or axis.number != 3:
        raise UntiedError(f"channels are not followed through this form of {node.op}")
    groups: list[Group] = [
        [Axis(q.name, 3), Axis(k.name, 3)],
        [Axis(v.name, 3), Axis(y.name, 3)],
    ]
    yield from _tied(lambda _: iter(groups))(node, axis, changes)


_UNARY = (
    *("Abs", "BitShift", "Cast", "Ceil", "Celu", "Clip", "Cos", "Dropout", "Elu", "Erf", "Exp"),
    *("Floor", "Gelu", "HardSigmoid", "HardSwish", "Identity", "LeakyRelu", "Log", "Mish", "Neg"),
    *("Not", "Reciprocal", "Relu", "Round", "Selu", "Sigmoid", "Sign", "Sin", "Softplus"),
    *("Softsign", "Sqrt", "Swish", "Tanh", "ThresholdedRelu"),
)
_BINARY = (
    *("Add", "And", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Mean"),
    *("Min", "Mul", "Or", "PRelu", "Sub", "Sum", "Where", "Xor"),
)
_POOLS = (
    *("AveragePool", "GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool", "LpPool", "MaxPool"),
)
_REDUCTIONS = ("ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum", "ReduceSumSquare")
_RULES: dict[str, Callable[[gs.Node, Axis, Changes], Implied]] = {
    **dict.fromkeys(_UNARY, _tied(_like_first)),
    **dict.fromkeys(_BINARY, _tied(_broadcast)),
    **dict.fromkeys(_POOLS, _tied(_channels_and_batch)),
    **dict.fromkeys(_REDUCTIONS, _reduced),
    **dict.fromkeys(("Div", "Pow"), _divided_by),
    **dict.fromkeys(("LayerNormalization", "RMSNormalization"), _normalized),
    **dict.fromkeys(("LogSoftmax", "Softmax"), _softmax),
    **dict.fromkeys(("Flatten", "Reshape", "Squeeze", "Unsqueeze"), _reshape),
    **dict.fromkeys(("Shape", "Size"), _nothing),
    "Attention": _attention,
    "BatchNormalization": _batch_norm,
    "Concat": _concat,
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "Gather": _tied(_gather),
    "Gemm": _tied(_gemm),
    "InstanceNormalization": _tied(_per_channel),
    "MatMul": _tied(_product),
    "Pad": _tied(_but(_padded)),
    "Resize": _tied(_but(_enlarged)),
    "Slice": _tied(_but(_sliced)),
    "Split": _split,
    "Transpose": _tied(_transpose),
}
