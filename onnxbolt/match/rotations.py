"""Moves rotary position embeddings of queries and keys in front of what divides them into heads:

    x -> product -> heads -> rotation -> attention
    x -> product -> rotation of the product's columns -> heads -> attention

There the rotation is a step of the product's epilogue (ops/rotary/), which rotates neighbouring
columns. Behind a normalization of heads it is a step of that one's epilogue (ops/norm/heads.py):

    x -> product -> heads -> normalization -> rotation of all heads' columns -> heads -> attention

Where a model's pairs are the halves of a head, (i, i + d/2), the columns of the weight, the bias
and a normalization's factors are exchanged within each head, so that pairs are neighbours: a score
q k^T does not change when q and k are exchanged alike. So this needs a constant weight, and nobody
else may read the rotated queries and keys. Values in the same product, heads that are rotated in
part and first positions that are not rotated are entries (1, 0) of the table.

A rotation that stays where it is has the reason in its last node's `refused`.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.candidates import Candidate, Strided
from onnxbolt.canonicalize import rotary_form
from onnxbolt.domains import INTERNAL
from onnxbolt.dtypes import DType
from onnxbolt.graph import promises
from onnxbolt.graph.edit import (
    add_constant,
    derived,
    insert,
    pinned,
    producer,
    prune,
    replace_uses,
    stand_alone,
)
from onnxbolt.graph.names import fresh
from onnxbolt.graph.order import in_order
from onnxbolt.graph.promises import stage
from onnxbolt.match.matcher import match
from onnxbolt.match.partition import partition
from onnxbolt.match.rotary_tables import Angles, Tables, angles
from onnxbolt.ops.attention import views
from onnxbolt.ops.attention.found import AttentionAnchor
from onnxbolt.ops.attention.rotary import Rotation, behind
from onnxbolt.ops.attention.scales import before, scaled
from onnxbolt.ops.attention.views import HEADS, ROWS, Followed, View
from onnxbolt.ops.norm.heads import followed
from onnxbolt.ops.norm.pattern import normalizes

_SHARED = "several attentions read the product"
_COLUMNS = "the columns of its heads are not known, or no multiples of 8"
_TURN = 8  # columns in which a table may repeat, so that kernels read it 16 bytes at a time


@dataclass(frozen=True, eq=False)
class Rotated:
    """Queries or keys behind a rotation, and x within the tensor that it is a view of."""

    result: gs.Tensor
    last: gs.Node  # the last one of the rotation
    x: gs.Tensor
    view: View
    angles: Angles

    @property
    def pairs(self) -> np.ndarray:
        """The elements of a head that are rotated, those of each pair side by side."""
        elements = np.arange(2 * self.angles.pairs)
        return elements if self.angles.interleaved else elements.reshape(2, -1).T.reshape(-1)


@dataclass(frozen=True, eq=False)
class Embedded:
    """An attention whose queries and keys are rotated alike."""

    candidate: Candidate
    parts: tuple[Rotated, Rotated]  # queries and keys

    @property
    def strided(self) -> tuple[Strided, ...]:
        """The operands that it reads by strides, once nothing is between heads and attention."""
        return (*(part.view for part in self.parts), *self.candidate.anchor.strided)

    @property
    def products(self) -> Mapping[str, list[Rotated]]:
        """The parts by the names of the tensors that they are views of."""
        found = defaultdict[str, list[Rotated]](list)
        for part in self.parts:
            found[part.view.tensor.name].append(part)
        return found

    @property
    def results(self) -> frozenset[str]:
        """Names of the rotated tensors, which nobody else reads."""
        return frozenset(part.result.name for part in self.parts)


@dataclass(frozen=True, eq=False)
class Moved:
    """The attentions whose rotations can be moved, and the nodes that nobody needs then if those
    that read operands by strides are fused: their own, and others that only move their operands or
    compute the sizes for that."""

    attentions: Mapping[Candidate, Embedded]
    left_over: set[gs.Node]

    def strided(self, candidate: Candidate) -> tuple[Strided, ...]:
        """The operands that the candidate reads by strides then."""
        found = self.attentions.get(candidate)
        return candidate.anchor.strided if found is None else found.strided


def embedded(graph: gs.Graph, candidates: Sequence[Candidate]) -> Moved:
    """The rotations that can be moved, as far as that does not depend on their projections."""
    ends = {each: _ends(each) for each in candidates}
    results = {end.result.name for found in ends.values() for end in found}
    readers = [each for each in candidates if each.anchor.strided or ends[each]]
    nodes = _left_over(graph, readers, results)
    found = {each: _embedded(each, rotated, nodes) for each, rotated in ends.items() if rotated}
    moved = {candidate: each for candidate, each in found.items() if each is not None}
    stays = results.difference(*(each.results for each in moved.values()))
    return Moved(moved, _left_over(graph, readers, results - stays) if stays else nodes)


def _left_over(
    graph: gs.Graph, candidates: Sequence[Candidate], moved: Collection[str]
) -> set[gs.Node]:
    """The nodes that nobody needs if these candidates are fused, and if they do not read the
    rotated tensors named `moved`."""
    found = {node for candidate in candidates for node in candidate.nodes}
    anchors = [candidate.anchor for candidate in candidates]
    read = {tensor.name for anchor in anchors for tensor in (anchor.x, *anchor.further)}
    read.difference_update(moved)
    for node in reversed(graph.nodes):
        if node not in found and all(
            tensor.outputs
            and tensor.name not in read
            and not pinned(graph, tensor)
            and found.issuperset(tensor.outputs)
            for tensor in node.outputs
        ):
            found.add(node)
    return found


@dataclass(frozen=True, eq=False)
class _End:
    """A rotation whose result an attention reads as `view`: its queries or its keys."""

    view: View
    rotation: Rotation
    last: gs.Node

    @property
    def result(self) -> gs.Tensor:
        return self.view.tensor


def _ends(candidate: Candidate) -> list[_End]:
    """Queries and keys that are rotated."""
    if not isinstance(candidate.anchor, AttentionAnchor):
        return []
    attention = candidate.anchor.attention
    found = [(view, behind(view.tensor)) for view in (attention.q, attention.k)]
    return [_End(view, *end) for view, end in found if end is not None]


def _embedded(
    candidate: Candidate, ends: Sequence[_End], left_over: set[gs.Node]
) -> Embedded | None:
    parts = [_rotated(end, left_over) for end in ends]
    reason = next((part for part in parts if isinstance(part, str)), "")
    known = [part for part in parts if isinstance(part, Rotated)]
    if len(known) == 2:
        q, k = known
        if q.angles.key == k.angles.key:
            return Embedded(candidate, (q, k))
        reason = "queries and keys are rotated by different tables"
    for end in ends:
        end.last.refused = reason or "queries or keys alone are rotated"
    return None


def _rotated(end: _End, left_over: set[gs.Node]) -> Rotated | str:
    """The queries or keys at the end of a rotation. A str is the reason why the rotation stays."""
    view, found = end.view, end.rotation
    if not left_over.issuperset(end.result.outputs):
        return "its result is read elsewhere, too"
    if not isinstance(view.heads, int):
        return "its number of heads is unknown"
    by_heads = view.order == HEADS
    table = angles(found, by_heads)
    if isinstance(table, str):
        return table
    if len(found.x.shape or ()) == 3:
        if found.heads not in (view.heads, 0) or (not found.heads and view.size != 2 * table.pairs):
            return "its operator has other heads than attention"
        arrange = views.by_rows(view.heads)
    else:
        arrange = views.by_heads((0, 1, 2, 3) if by_heads else (0, 2, 1, 3))
    # a factor of all elements may stay behind the rotation as well as before it
    rows = views.follow(found.x, arrange, scaled)
    if rows is None or rows.view.order != ROWS or rows.view.copies != 1:
        return _between(found.x)
    whole = rows.view
    if whole.tensor.dtype != end.result.dtype or whole.size != view.size:
        return "it is computed in another element type than the product"
    if not isinstance(whole.heads, int) or whole.size % _TURN or 2 * table.pairs > whole.size:
        return _COLUMNS
    return Rotated(end.result, end.last, found.x, whole, table)


def _between(x: gs.Tensor) -> str:
    """The reason why a rotation's input is no view of a product's result."""
    while (node := producer(x)) is not None:
        if not views.rearranges(node) and before(node) is None:
            break
        x = node.inputs[0] if views.rearranges(node) else before(node)
    if node is None:
        return "its input is not the result of a product"
    if "Norm" in node.op or node.op in ("Div", "Mul"):
        return "its input is normalized or scaled behind the product"
    return f"its input is the result of {node.op}, or has no heads with elements side by side"


# --- moving ---------------------------------------------------------------------------------------


@stage(requires=promises.SOUND, ensures=promises.KEPT)
def move(graph: gs.Graph) -> list[str]:
    """Move in place; returns a line for the report if anything was moved."""
    candidates = partition(match(graph).candidates)
    moved = embedded(graph, candidates)
    found = moved.attentions.values()
    users = Counter(name for each in found for name in each.products)
    tables, count = Tables(graph), 0
    for each in found:
        products = [
            _product(graph, parts, moved.left_over, candidates) if users[name] == 1 else _SHARED
            for name, parts in each.products.items()
        ]
        reason = next((product for product in products if isinstance(product, str)), "")
        for part in each.parts:
            part.last.refused = reason
        if reason:
            continue
        for parts in each.products.values():
            # anew, since queries and keys may be columns of one product
            product = _product(graph, parts, moved.left_over, candidates)
            assert isinstance(product, _Product)  # the others are reasons
            y = _rotate(graph, product, tables)
            for part in parts:
                _read_past(graph, part, y, moved.left_over)
                count += 1
    if not count:
        return []
    prune(graph)
    graph.nodes = in_order(graph)
    return [f"rotations: {count} (rotary embeddings moved to projections)"]


def _heads(view: View) -> Iterator[np.ndarray]:
    """The columns of each head."""
    assert isinstance(view.heads, int)  # `_rotated` has looked, and `_read_by` looks
    for head in range(view.heads):
        begin = (view.first + head) * view.pitch + view.lead
        yield np.arange(begin, begin + view.size)


def _read_by(candidates: Sequence[Candidate], tensor: gs.Tensor, width: int) -> set[int]:
    """The columns of a tensor that ops read by strides."""
    found = set[int]()
    for operand in (each for candidate in candidates for each in candidate.anchor.strided):
        if operand.tensor is not tensor:
            continue
        if not isinstance(operand, View) or not isinstance(operand.heads, int):
            return set(range(width))
        found.update(column for head in _heads(operand) for column in head.tolist())
    return found


@dataclass(frozen=True, eq=False)
class _Product:
    """A product with a constant weight [K, N], and a bias if there is one, some of whose columns
    are rotated: `columns` has the column of the angles' table for each pair of columns of a
    period, and `order` the model's column for each."""

    nodes: tuple[gs.Node, ...]
    x: gs.Tensor
    weight: gs.Constant
    bias: gs.Constant | None
    result: gs.Variable
    angles: Angles
    order: np.ndarray
    columns: Sequence[int]
    rotated: int
    norm: _Norm | None = None


@dataclass(frozen=True, eq=False)
class _Norm:
    """A normalization of heads behind a product, and the model's element for each of a head's."""

    node: gs.Node
    heads: Followed
    order: np.ndarray

    @property
    def columns(self) -> np.ndarray:
        """The product's columns that all heads are."""
        return np.concatenate(list(_heads(self.heads.view)))


def _product(
    graph: gs.Graph,
    parts: Sequence[Rotated],
    inside: set[gs.Node],
    candidates: Sequence[Candidate],
) -> _Product | str:
    """The product whose columns are rotated; a str is the reason why there is none."""
    rotated = parts[0].view.tensor
    if not all(isinstance(size, int) for size in rotated.shape[2:]):
        return _COLUMNS
    width = math.prod(rotated.shape[2:])
    order, pair = np.arange(width), np.full(width, -1)
    for part in parts:
        for head in _heads(part.view):
            order[head[: len(part.pairs)]] = head[part.pairs]
            pair[head[: len(part.pairs)]] = np.arange(len(part.pairs)) // 2
    norm = _norm(rotated, order)
    if isinstance(norm, str):
        return norm
    result = rotated if norm is None else norm.heads.view.tensor
    nodes = list[gs.Node]()
    node, bias = producer(result), None
    if node is not None and node.op == "Add" and not node.domain:
        vectors = [each for each in node.inputs if isinstance(each, gs.Constant)]
        if len(vectors) == 1 and _is_row(vectors[0], result):
            (bias,), nodes = vectors, [node]
            (before_bias,) = (each for each in node.inputs if each is not bias)
            alone = len(before_bias.outputs) == 1 and not pinned(graph, before_bias)
            node = producer(before_bias) if alone else None
    if node is None or node.op != "MatMul" or node.domain:
        return "its input is not the result of a product"
    x, weight = node.inputs
    if not isinstance(weight, gs.Constant) or len(weight.shape) != 2:
        return "the product's weight is computed at run time"
    if DType.of(weight.dtype) is None or len(result.shape) != 3:
        return "no kernel computes such a product"
    own = set[gs.Node]() if norm is None else {norm.node}
    ways = (rotated,) if norm is None else (rotated, result, *_between_heads(norm))
    if any(pinned(graph, each) or not inside.union(own).issuperset(each.outputs) for each in ways):
        return "the product's result is read elsewhere, too"
    others = [each for each in candidates if own.isdisjoint(each.nodes)]
    turned = np.flatnonzero(pair >= 0)
    if _read_by(others, rotated, width).intersection(turned.tolist()):
        return "its columns are read elsewhere, too"
    if norm is not None:
        whole, moved = np.arange(int(weight.shape[1])), norm.columns
        if _read_by(others, result, len(whole)).intersection(moved.tolist()):
            return "its columns are read elsewhere, too"
        whole[moved] = moved[order]
        order = whole
    period = _period(pair)
    if period is None:
        return _COLUMNS
    count, columns = period
    return _Product(
        (node, *nodes), x, weight, bias, result, parts[0].angles, order, columns, count, norm
    )


def _norm(rotated: gs.Tensor, order: np.ndarray) -> _Norm | str | None:
    """The normalization whose result is rotated, with its columns in `order`, if there is one; a
    str is the reason why no kernel rotates it."""
    node = producer(rotated)
    if node is None or not normalizes(node):
        return None
    found = followed(node.inputs[0])
    if found is None:
        return "its input is normalized, and is no heads of a product"
    size = found.view.size
    each = order.reshape(-1, size) - np.arange(0, len(order), size)[:, None]
    if not np.array_equal(each, np.broadcast_to(each[0], each.shape)):
        return "its heads are normalized alike, and rotated otherwise"
    constant = all(isinstance(factor, gs.Constant) for factor in node.inputs[1:])
    sizes = (size, len(order))
    if not constant or any(math.prod(f.shape) not in sizes for f in node.inputs[1:]):
        return "its input is normalized by no constants of a head"
    return _Norm(node, found, each[0])


def _between_heads(norm: _Norm) -> Iterator[gs.Tensor]:
    """The tensors between a product's result and the heads that are normalized."""
    tensor = norm.node.inputs[0]
    while tensor is not norm.heads.view.tensor and (node := producer(tensor)) is not None:
        yield tensor
        tensor = node.inputs[0]


def _is_row(bias: gs.Constant, result: gs.Tensor) -> bool:
    return len(bias.shape) == 1 and bias.shape[0] == result.shape[-1]


def _period(pair: np.ndarray) -> tuple[int, Sequence[int]] | None:
    """The columns from the first to behind the last pair, rounded up to periods, and a period's
    pairs; None if there is no period."""
    last = int(np.flatnonzero(pair >= 0)[-1]) + 1
    for width in range(_TURN, len(pair) + 1, _TURN):
        end = -(-last // width) * width
        rows = pair[:end].reshape(-1, width) if end <= len(pair) else None
        if rows is not None and np.array_equal(rows, np.broadcast_to(rows[0], rows.shape)):
            return end, rows[0, ::2].tolist()
    return None


def _rotate(graph: gs.Graph, product: _Product, tables: Tables) -> gs.Variable:
    """Let all readers of a product's result, or of its normalization, read it with its columns
    rotated, as is returned."""
    weight = _in_order(graph, product.weight, product.order)
    dtype, result = product.result.dtype, product.result
    at = product.nodes[0]

    def add(op: str, inputs: list[gs.Tensor], sources: Sequence[gs.Node]) -> gs.Variable:
        made = gs.Variable(fresh(graph, f"{result.name}_pairs"), dtype, result.shape)
        stand_alone(made)
        insert(graph, op, inputs, [made], sources, at=at)
        return made

    turned = add("MatMul", [product.x, weight], product.nodes[:1])
    if product.bias is not None:
        bias = _in_order(graph, product.bias, product.order)
        turned = add("Add", [turned, bias], product.nodes[1:])
    table = tables.get(product.angles, product.columns, dtype)
    if product.norm is not None:
        for tensor in _between_heads(product.norm):
            _rename(graph, tensor)
        replace_uses(result, turned)
        return _rotate_norm(graph, product, product.norm, table)
    y = _turned(graph, turned, table, product, at)
    replace_uses(result, y)
    return y


def _turned(
    graph: gs.Graph, x: gs.Tensor, table: gs.Tensor, product: _Product, at: gs.Node
) -> gs.Variable:
    """The rotation of x [B, S, N]."""
    y = gs.Variable(fresh(graph, f"{product.result.name}_rotated"), x.dtype, x.shape)
    stand_alone(y)
    attributes = {"rotated_columns": product.rotated}
    insert(graph, rotary_form.OP, [x, table], [y], (), attributes, INTERNAL, at=at)
    return y


def _rotate_norm(graph: gs.Graph, product: _Product, norm: _Norm, table: gs.Tensor) -> gs.Variable:
    """Let all readers of a normalization of heads, whose elements are in its order, read it
    rotated."""
    node, heads = norm.node, norm.node.outputs[0]
    factors = [_in_order(graph, factor, norm.order) for factor in node.inputs[1:]]
    y = _like(graph, heads, heads.shape)
    insert(
        graph, node.op, [node.inputs[0], *factors], [y], [node], node.attrs, node.domain, at=node
    )
    apart = len(heads.shape) == 4
    if apart:
        y = _reshaped(graph, y, heads.shape[2] * heads.shape[3], at=node)
    y = _turned(graph, y, table, product, node)
    if apart:
        y = _reshaped(graph, y, *heads.shape[2:], at=node)
    replace_uses(heads, y)
    return y


def _reshaped(graph: gs.Graph, x: gs.Tensor, *sizes: int, at: gs.Node) -> gs.Variable:
    """x with other axes behind the first two."""
    shape = add_constant(graph, f"{x.name}_shape", np.array([0, 0, *sizes], np.int64))
    y = _like(graph, x, [*x.shape[:2], *sizes])
    insert(graph, "Reshape", [x, shape], [y], (), at=at)
    return y


def _like(graph: gs.Graph, tensor: gs.Tensor, shape: Sequence[int | str]) -> gs.Variable:
    made = gs.Variable(fresh(graph, f"{tensor.name}_pairs"), tensor.dtype, list(shape))
    stand_alone(made)
    return made


def _in_order(graph: gs.Graph, constant: gs.Constant, order: np.ndarray) -> gs.Constant:
    """The constant with its columns in another order."""
    if np.array_equal(order, np.arange(len(order))):
        return constant
    values = derived(
        constant,
        lambda values: np.ascontiguousarray(values[..., order]),
        constant.dtype,
        constant.shape,
    )
    return add_constant(graph, f"{constant.name}_pairs", values)


def _read_past(graph: gs.Graph, part: Rotated, y: gs.Variable, left_over: set[gs.Node]) -> None:
    """Let attention read a part of `y` in the place of the rotation's result. What is between the
    product and attention's scores has other values than in the source."""
    tensor = x = y if part.x is part.view.tensor else part.x
    while tensor is not y and (node := producer(tensor)) is not None:
        _rename(graph, tensor)
        source = scaled(node)
        tensor = node.inputs[0] if source is None else source
    pending = [part.result]
    while pending:
        tensor = pending.pop()
        for node in tensor.outputs:
            if node in left_over and (views.rearranges(node) or before(node) is not None):
                pending += node.outputs
        if tensor is not part.result:
            _rename(graph, tensor)
    replace_uses(part.result, x)


def _rename(graph: gs.Graph, tensor: gs.Tensor) -> None:
    tensor.name = fresh(graph, f"{tensor.name}_rotated")
    stand_alone(tensor)
