"""Rotary position embeddings (Su et al. 2021) of queries and keys:

    y = x cos + turn(x) sin

turn(x) takes pairs of elements (a, b) of a head to (-b, a): the elements of its two halves, as in
GPT-NeoX and Llama, or neighbours (interleaved), as in GPT-J. Written out for halves that is

    y = [a cos - b sin, b cos + a sin]

A head may rotate its first elements alone, and the first positions (class tokens) may stay as they
are. match/rotations.py makes those behind projections a part of these; each that is left is a
refusal, which says what was recognized.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import onnx_graphsurgeon as gs

from onnxbolt.candidates import Refusal
from onnxbolt.domains import CONTRIB
from onnxbolt.graph.edit import constant_integers, producer, scalar
from onnxbolt.patterns.types import AnchorPattern

_OP = "RotaryEmbedding"


@dataclass(frozen=True, eq=False)
class Rotation:
    """The rotation of the first `rotated` of the elements along x's last axis, or of each head in
    it, but for the first `skipped` positions. `cos` and `sin` are the tables by which it is
    multiplied, or those that an operator gathers them from by `positions`."""

    x: gs.Tensor
    cos: gs.Tensor
    sin: gs.Tensor
    interleaved: bool
    rotated: int | None  # None: the operator's tables tell
    paired: bool = False  # tables have one number for a pair, else one for each element
    positions: gs.Tensor | None = None
    skipped: int = 0
    operator: bool = False  # one node, whose x is [batch, heads, positions, size] or in rows
    heads: int = 0  # those of an operator, 0 if the tables tell
    scaled: bool = False  # an operator changes angles or x in a further way

    @property
    def words(self) -> str:
        """The pairs and the rotated elements, for a report."""
        pairs = "neighbours" if self.interleaved else "halves"
        count = "" if self.rotated is None else f", {self.rotated} elements of a head"
        return f"{pairs}{count}"


@dataclass(frozen=True, eq=False)
class _Piece:
    """Elements of a tensor's last axis: every `step` from `begin` to before `end`."""

    tensor: gs.Tensor
    begin: int
    end: int
    step: int

    def spans(self, begin: int, end: int, step: int = 1) -> bool:
        return (self.begin, self.end, self.step) == (begin, end, step)


def anchors() -> tuple[AnchorPattern, ...]:
    """The last nodes of rotary embeddings, and the operators."""
    return (
        AnchorPattern(("Add", "Concat", _OP), _refused),
        AnchorPattern((_OP,), _refused, CONTRIB),
    )


def _refused(node: gs.Node) -> Refusal | None:
    found = rotation(node)
    if found is None:
        return None
    because = getattr(node, "refused", "")
    reason = f"a rotary embedding is in no kernel{', because ' * bool(because)}{because}"
    reason = f"{reason}: {found.words}"
    return Refusal(node.name, node.op, reason, node.outputs[0].name, apart=True)


def rotation(node: gs.Node) -> Rotation | None:
    """The rotary embedding that ends at this node, if there is one."""
    found = _written(node)
    whole = None if found is None or node.op == _OP else _piece(found.x)
    if found is None or whole is None or not whole.spans(0, found.rotated or 0):
        return found
    return replace(found, x=whole.tensor)


def _written(node: gs.Node) -> Rotation | None:
    """The rotary embedding of all of x, which may be a slice of another tensor."""
    if node.op == _OP:
        return _operator(node)
    return _sum(node) if node.op == "Add" else _halves(node) if node.op == "Concat" else None


def behind(tensor: gs.Tensor) -> tuple[Rotation, gs.Node] | None:
    """The rotary embedding whose whole result is `tensor`, and its last node that `rotation` knows;
    None where there is none, or where it is not certain what else the tensor holds."""
    node = producer(_uncast(tensor))
    if node is None:
        return None
    found = _written(node)
    if found is not None:
        return found, node
    if node.op != "Concat" or node.domain or len(node.inputs) != 2:
        return None
    for at, axis in ((0, -1), (1, -2)):
        last = producer(_uncast(node.inputs[at]))
        part = _written(last) if last is not None and last.op != _OP else None
        other = _piece(node.inputs[1 - at], axis)
        if part is None or last is None or other is None or not _is_at(node, axis):
            continue
        own = _piece(part.x, axis)
        first, second = (own, other) if axis == -1 else (other, own)
        if own is not None and _are_all(first, second, axis):
            skipped = 0 if axis == -1 else other.end
            return replace(part, x=own.tensor, skipped=skipped), last
    return None


def _are_all(first: _Piece | None, second: _Piece | None, axis: int) -> bool:
    """True if both pieces, one behind the other, are a tensor."""
    if first is None or second is None or first.tensor is not second.tensor:
        return False
    width = _width(first.tensor, axis) or 0
    return first.spans(0, first.end) and second.spans(first.end, width)


def _operator(node: gs.Node) -> Rotation:
    """That of ONNX has the positions behind the tables, that of ONNX Runtime in front of them."""
    x, first, second, third = (*node.inputs, None, None)[:4]
    contrib = node.domain == CONTRIB
    cos, sin, positions = (second, third, first) if contrib else (first, second, third)
    if positions is not None and not positions.name:
        positions = None
    rotated = node.attrs.get("rotary_embedding_dim", 0) or None
    scaled = bool(node.attrs.get("is_packed_batching", 0)) or node.attrs.get("scale", 1.0) != 1.0
    interleaved = bool(node.attrs.get("interleaved", 0))
    found = Rotation(_uncast(x), cos, sin, interleaved, rotated, True, positions, scaled=scaled)
    return replace(found, operator=True, heads=int(node.attrs.get("num_heads", 0)))


def _sum(node: gs.Node) -> Rotation | None:
    """x cos + turn(x) sin"""
    for straight, crossed in itertools.permutations(node.inputs):
        for x, cos in _factors(straight):
            for turned, sin in _factors(crossed):
                found = _turned(turned)
                if found is not None and found[0] is _uncast(x):
                    return Rotation(found[0], cos, sin, found[1], _width(found[0]))
    return None


def _turned(tensor: gs.Tensor) -> tuple[gs.Tensor, bool] | None:
    """x of turn(x), and True if neighbours are pairs."""
    node = producer(_uncast(tensor))
    stacked = node is not None and node.op == "Reshape"
    if node is not None and stacked:
        node = producer(node.inputs[0])
    if node is None or node.op != "Concat" or len(node.inputs) != 2 or not _is_last(node):
        return None
    (negative, b), (positive, a) = (_unsqueezed(each) for each in node.inputs)
    second, first = (_neighbours(each) or _piece(each) for each in (b, a))
    if (negative, positive) != (True, False) or first is None or second is None:
        return None
    x, width = first.tensor, _width(first.tensor)
    if second.tensor is not x or width is None:
        return None
    if stacked:
        paired = first.spans(0, width, 2) and second.spans(1, width, 2)
    else:
        paired = first.spans(0, width // 2) and second.spans(width // 2, width)
    return (x, stacked) if paired and width % 2 == 0 else None


def _halves(node: gs.Node) -> Rotation | None:
    """[a cos - b sin, b cos + a sin]"""
    if len(node.inputs) != 2 or not _is_last(node):
        return None
    difference, total = (producer(_uncast(each)) for each in node.inputs)
    if difference is None or total is None or (difference.op, total.op) != ("Sub", "Add"):
        return None
    for a, cos in _factors(difference.inputs[0]):
        for b, sin in _factors(difference.inputs[1]):
            first, second = _piece(a), _piece(b)
            if first is None or second is None or first.tensor is not second.tensor:
                continue
            width = _width(first.tensor) or 0
            paired = first.spans(0, width // 2) and second.spans(width // 2, width)
            if width % 2 == 0 and paired and _crosses(total, (b, cos), (a, sin)):
                return Rotation(first.tensor, cos, sin, False, width, paired=True)
    return None


def _crosses(
    total: gs.Node, first: tuple[gs.Tensor, gs.Tensor], second: tuple[gs.Tensor, gs.Tensor]
) -> bool:
    """True if `total` adds the products of these factors, which may be other slices of the same
    elements."""
    return any(
        any(_same(pair, first) for pair in _factors(one))
        and any(_same(pair, second) for pair in _factors(other))
        for one, other in itertools.permutations(total.inputs)
    )


def _same(pair: Sequence[gs.Tensor], other: Sequence[gs.Tensor]) -> bool:
    (x, table), (y, other_table) = pair, other
    one, two = _piece(x), _piece(y)
    if one is None or two is None or table is not other_table:
        return False
    return one.tensor is two.tensor and one.spans(two.begin, two.end, two.step)


def _factors(tensor: gs.Tensor) -> Iterator[tuple[gs.Tensor, gs.Tensor]]:
    """The factors of a Mul's result, in both orders."""
    node = producer(_uncast(tensor))
    if node is not None and node.op == "Mul" and not node.domain:
        yield from itertools.permutations(node.inputs)


def _unsqueezed(tensor: gs.Tensor) -> tuple[bool, gs.Tensor]:
    """True if `tensor` is negated, and what it is without that and without further axes."""
    negative = False
    while (node := producer(_uncast(tensor))) is not None and node.op in ("Neg", "Unsqueeze"):
        negative ^= node.op == "Neg"
        tensor = node.inputs[0]
    return negative, tensor


def _uncast(tensor: gs.Tensor) -> gs.Tensor:
    """`tensor` before its conversions of type."""
    while (node := producer(tensor)) is not None and node.op == "Cast":
        tensor = node.inputs[0]
    return tensor


def _piece(tensor: gs.Tensor, axis: int = -1) -> _Piece | None:
    """The elements that a Slice or a Split takes of an axis of its input, by default the last."""
    tensor = _uncast(tensor)
    node = producer(tensor)
    if node is None or node.op not in ("Slice", "Split") or node.domain:
        return None
    whole = _uncast(node.inputs[0])
    width = _width(whole, axis)
    if width is None:
        return None
    if node.op == "Slice":
        return _sliced(node, whole, width, axis)
    widths = [_width(each, axis) for each in node.outputs]
    if not _is_at(node, axis) or None in widths:
        return None
    at = next(i for i, each in enumerate(node.outputs) if each is tensor)
    begin = sum(each or 0 for each in widths[:at])
    return _Piece(whole, begin, begin + (widths[at] or 0), 1)


def _neighbours(tensor: gs.Tensor) -> _Piece | None:
    """Every second element of x, as an entry of the last axis of Reshape(x, [.., N / 2, 2])."""
    node = producer(_uncast(tensor))
    if node is None or node.domain:
        return None
    if node.op == "Squeeze":
        entry = _piece(node.inputs[0])
        if entry is None or not entry.spans(entry.begin, entry.begin + 1):
            return None
        pairs, place = entry.tensor, entry.begin
        if [*(tensor.shape or ())] != [*pairs.shape[:-1]]:  # another axis is squeezed
            return None
    elif node.op == "Gather" and _is_last_input(node):
        pairs, index = node.inputs[0], scalar(node.inputs[1])
        if index not in (0, 1) or len(node.inputs[1].shape):
            return None
        place = int(index)
    else:
        return None
    reshape = producer(pairs)
    if reshape is None or reshape.op != "Reshape" or reshape.domain:
        return None
    x = _uncast(reshape.inputs[0])
    width = _width(x)
    if width is None or [*(pairs.shape or ())] != [*x.shape[:-1], width // 2, 2]:
        return None
    return _Piece(x, place, width, 2)


def _is_last_input(node: gs.Node) -> bool:
    """True if the node's axis is the last one of its input."""
    rank = len(node.inputs[0].shape or ())
    return node.attrs.get("axis", 0) in (-1, rank - 1)


def _sliced(node: gs.Node, whole: gs.Tensor, width: int, axis: int) -> _Piece | None:
    starts, ends, axes = (constant_integers(node, index) for index in (1, 2, 3))
    steps = constant_integers(node, 4) if len(node.inputs) > 4 and node.inputs[4].name else [1]
    if starts is None or ends is None or steps is None or steps[0] < 1:
        return None
    if axes not in ([axis], [len(whole.shape) + axis]):
        return None
    return _Piece(whole, *slice(starts[0], ends[0], steps[0]).indices(width))


def _is_last(node: gs.Node) -> bool:
    """True if the node's axis is the last one of its output."""
    return _is_at(node, -1)


def _is_at(node: gs.Node, axis: int) -> bool:
    """True if the node's axis is this one of its output, counted from the end."""
    shape = node.outputs[0].shape
    return shape is not None and node.attrs.get("axis", 0) in (axis, len(shape) + axis)


def _width(tensor: gs.Tensor, axis: int = -1) -> int | None:
    """The size of the last axis, or of another one counted from the end, if it is known."""
    known = tensor.shape is not None and len(tensor.shape) >= -axis
    width = tensor.shape[axis] if known else None
    return width if isinstance(width, int) else None
