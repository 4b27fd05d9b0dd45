"""Scaled dot-product attention of several nodes:

    MatMul(P(Softmax(mask(scale MatMul(q, k^T)))), v)

q, k and v are [batch, heads, positions, size] or [batch x heads, positions, size], as Reshape,
Transpose, Split and Slice make them of what the projections wrote (views.py). The exporters' forms,
as the zoo has them behind canonicalization:

| model | scale | k^T | mask | P |
|---|---|---|---|---|
| TorchScript: BERT, DETR | sqrt on both sides | perm 0 2 3 1 | Add(Where(bool, 0, -inf)) | IsNaN |
| TorchScript: ViT | sqrt on both sides | perm 0 1 3 2 | | |
| dynamo: BERT, DETR | sqrt on both sides | 3-D and back | Add(Where(bool, 0, -3.4e38)) | IsNaN |
| dynamo: ViT, SegFormer | sqrt on both sides | 3-D and back | | |
| dynamo: DETR, constant q | on k's side | 3-D and back | as above | IsNaN |

IsNaN stands for Where(IsNaN(p), 0, p). A mask of -3.4e38 keeps Add and Softmax in fp32, between
Casts. A scale may also be one Mul or Div, on one side or behind the product. The products may be
Einsum, and Reshapes between them may join and split batch and heads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import onnx_graphsurgeon as gs

from onnxbolt.candidates import Refusal
from onnxbolt.graph.edit import producer, scalar
from onnxbolt.ops.attention import masks, views
from onnxbolt.ops.attention.found import CAPPED, AttentionAnchor, Mask, Parts, assembled
from onnxbolt.ops.attention.lengths import sizes
from onnxbolt.ops.attention.masks import REFOLDS, Masks, Operand, leads_to_product
from onnxbolt.ops.attention.positions import Frame
from onnxbolt.ops.attention.products import Attempt, Product, heads_before, operands, product
from onnxbolt.ops.attention.scales import before, exact, factor, widened
from onnxbolt.ops.base import FusedOp
from onnxbolt.patterns.types import Match

# nodes that may change scores; a product behind one of them is looked for to say so
_CHANGES = frozenset({"Add", "Cast", "Clip", "Div", "Exp", "Mul", "Sub", "Tanh", "Where"})
_MASKS = frozenset({"Add", "Where"})  # those that ordinary masks are as well
_REARRANGES = frozenset({"Reshape", "Squeeze", "Transpose", "Unsqueeze"})
_REPEATS = frozenset({"Expand", "IsNaN"})
_PRODUCTS = frozenset({"Einsum", "FusedMatMul", "MatMul"})
_FAR = 64  # nodes between product and softmax, those that make masks among them
_AXES = "its scores have other axes than batch, heads, queries and keys"


@dataclass(frozen=True, eq=False)
class _Scores:
    """The way from the product of queries and keys to the softmax."""

    product: Product
    nodes: tuple[gs.Node, ...]
    scale: float
    frame: Frame
    masks: Masks
    heads: frozenset[int]  # as far as Reshapes on the way tell


@dataclass(frozen=True, eq=False)
class _Probabilities:
    """The way from the softmax to the product with the values."""

    product: Product
    nodes: tuple[gs.Node, ...]
    guarded: bool  # NaN becomes 0
    tensor: gs.Tensor  # the product's operand


def match(op: FusedOp, softmax: gs.Node) -> Match:
    """None where the softmax does not stand between two products."""
    after = _probabilities(softmax)
    scores = None if after is None else _scores(softmax)
    if scores is None or after is None:
        unlike = _unlike(softmax)
        return Refusal(softmax.name, softmax.op, unlike) if unlike else None
    if scores == masks.FOLDED and isinstance(after, _Probabilities):
        scores = _otherwise(op, softmax, after) or scores
    for reason in (scores, after):
        if isinstance(reason, str):
            return Refusal(softmax.name, softmax.op, reason)
    assert isinstance(scores, _Scores) and isinstance(after, _Probabilities)  # noqa: PT018
    rank = len(softmax.inputs[0].shape)
    if softmax.attrs.get("axis", -1) not in (-1, rank - 1):
        return Refusal(softmax.name, softmax.op, "its softmax is not over the keys")
    attempts = [
        _attempt(op, softmax, scores, after, heads)
        for heads in _heads(scores.product, scores.heads, after)
    ]
    found = next((each for each in attempts if not isinstance(each, Refusal)), attempts[0])
    return found if isinstance(found, Refusal) else (found, ())


def attempts(softmax: gs.Node) -> Iterator[Attempt]:
    """The ways to read a softmax between two products, whatever its masks are."""
    after, way = _probabilities(softmax), _way(softmax)
    if isinstance(after, _Probabilities) and way is not None:
        for heads in _heads(way.product, _known_heads(way.nodes), after):
            read = operands(way.product, after.product, after.tensor, heads)
            if read is not None:
                yield Attempt(read, after.product.node.outputs[0], heads)


def _attempt(
    op: FusedOp, softmax: gs.Node, scores: _Scores, after: _Probabilities, heads: int
) -> AttentionAnchor | Refusal:
    """The anchor, if one axis for batch and heads has this number of heads."""
    read = operands(scores.product, after.product, after.tensor, heads)
    if read is None:
        return Refusal(softmax.name, softmax.op, "its products are not over queries and keys")
    parts = Parts(
        (
            views.follow(read.q, read.arranged[0], exact),
            views.follow(read.k, read.arranged[1], exact),
            views.follow(read.v, read.arranged[2], widened),
        ),
        scores.scale * scores.product.scale,
        scores.masks.mask,
        scores.masks.masked(scores.frame, after.guarded),
        (*scores.nodes, softmax, *after.nodes),
        after.product.node.outputs[0],
        read.y,
    )
    return assembled(op, softmax, parts)


def _heads(first: Product, between: Iterable[int], after: _Probabilities) -> list[int]:
    """Numbers of heads to try, for products over batch x heads; Reshapes `between` the first
    product and the softmax tell some."""
    if not (first.is_folded or after.product.is_folded):
        return [1]
    y = after.product.node.outputs[0]
    behind = [node.outputs[0].shape for node in y.outputs if node.op == "Reshape"]
    split = [shape[1] for shape in behind if shape is not None and len(shape) == 4]
    if 1 in between:
        return [1]
    known = [*between, *(size for size in split if isinstance(size, int))]
    return list(dict.fromkeys([*known, *heads_before(first), 1]))


# --- other softmaxes whose results weigh values ---------------------------------------------------


def _unlike(softmax: gs.Node) -> str:
    """Why a softmax between products is none of attention; "" if no product of two variables reads
    its result, or what a product of that with a constant makes of it."""
    second, first = _product_behind(softmax.outputs[0]), _product_before(softmax.inputs[0])
    if second is None:
        return ""
    if _has_constant(second):
        weighing = _product_behind(second.outputs[0])
        if weighing is None or _has_constant(weighing):
            return ""
        return "its probabilities are mixed by a product before they weigh values"
    if first is None or not all(len(x.shape or ()) != 2 for x in first.inputs):
        return "its scores are no product of queries and keys"
    if product(first) is None or product(second) is None:
        return "its products have other axes than batch, heads, positions and size"
    return "nodes that attention has not stand between its products"


def _product_behind(tensor: gs.Tensor) -> gs.Node | None:
    return _nearest(tensor, lambda each: each.outputs, lambda node: node.outputs)


def _product_before(tensor: gs.Tensor) -> gs.Node | None:
    return _nearest(tensor, lambda each: each.inputs, lambda node: node.inputs)


def _has_constant(product: gs.Node) -> bool:
    return any(isinstance(tensor, gs.Constant) for tensor in product.inputs)


def _nearest(
    tensor: gs.Tensor,
    nodes: Callable[[gs.Tensor], Iterable[gs.Node]],
    tensors: Callable[[gs.Node], Iterable[gs.Tensor]],
) -> gs.Node | None:
    """The nearest product in one direction, over nodes that rearrange or change values."""
    pending, seen = [tensor], set[gs.Node]()
    while pending and len(seen) < _FAR:
        for node in nodes(pending.pop(0)):
            if node.op in _PRODUCTS:
                return node
            if node not in seen and node.op in _REARRANGES | _CHANGES | _REPEATS:
                seen.add(node)
                pending += tensors(node)
    return None


# --- from the first product to the softmax --------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Way:
    """The nodes from a product to the softmax, the scale that they apply, and the masks among them,
    each with the scale that follows it."""

    product: Product
    nodes: Sequence[gs.Node]
    scale: float
    masked: Sequence[tuple[Operand, float]]


def is_weighing(softmax: gs.Node) -> bool:
    """True if a product reads the probabilities of a softmax, as values are weighed by them."""
    return isinstance(_probabilities(softmax), _Probabilities)


def several_masks(softmax: gs.Node) -> Sequence[Operand]:
    """The masks, from the product on, of an attention that is refused since it has several, if
    nothing scales them."""
    way = _way(softmax)
    if way is None or not is_weighing(softmax):
        return ()
    several = _scores(softmax) == masks.SEVERAL and all(scale == 1 for _, scale in way.masked)
    return [each for each, _ in way.masked] if several else ()


def scaled_masks(softmax: gs.Node) -> Sequence[Operand]:
    """The masks, from the product on, that are added and scaled with the scores, of an attention
    that is refused since it has several or since one of them is scaled."""
    way = _way(softmax)
    if way is None or not is_weighing(softmax):
        return ()
    refused = _scores(softmax) in (masks.SEVERAL, masks.SCALED)
    return [each for each, scale in way.masked if refused and scale != 1 and each.puts is None]


def folded_masks(op: FusedOp, softmax: gs.Node) -> tuple[Sequence[Operand], int]:
    """The masks of an attention that is refused for no other reason than that one of them has one
    axis for batch and heads, and the number of its heads."""
    way, after = _way(softmax), _probabilities(softmax)
    if way is None or not isinstance(after, _Probabilities) or _scores(softmax) != masks.FOLDED:
        return (), 1
    for heads, found in _unmasked(op, softmax, way, after):
        if isinstance(found, AttentionAnchor):
            return [each for each, _ in way.masked], heads
    return (), 1


def _unmasked(
    op: FusedOp, softmax: gs.Node, way: _Way, after: _Probabilities
) -> Iterator[tuple[int, AttentionAnchor | Refusal]]:
    """The attention without its masks, for each number of heads to try."""
    queries, keys = sizes(way.nodes[0].outputs[0])[-2:]
    frame, heads = Frame(queries, keys), _known_heads(way.nodes)
    scores = _Scores(way.product, tuple(way.nodes), way.scale, frame, Masks(Mask(), 0.0), heads)
    for number in _heads(way.product, heads, after):
        yield number, _attempt(op, softmax, scores, after, number)


def _otherwise(op: FusedOp, softmax: gs.Node, after: _Probabilities) -> str:
    """The reason why an attention is refused beside its masks; "" if there is none."""
    way = _way(softmax)
    found = [] if way is None else [each for _, each in _unmasked(op, softmax, way, after)]
    refused = [each.reason for each in found if isinstance(each, Refusal)]
    return refused[0] if refused and len(refused) == len(found) else ""


def _scores(softmax: gs.Node) -> _Scores | str | None:
    """None where no product of two variables leads to the softmax; a str is a refusal's reason."""
    way = _way(softmax)
    if way is None:
        return _changed(softmax.inputs[0])
    return _read_elsewhere(way.nodes, "scores") or _found(way)


def _way(softmax: gs.Node) -> _Way | None:
    """None if nodes that attention has not are on it."""
    tensor = softmax.inputs[0]
    nodes, scale, masked = list[gs.Node](), 1.0, list[tuple[Operand, float]]()
    while (node := producer(tensor)) is not None and leads_to_product(tensor):
        if len(nodes) == _FAR:
            break
        nodes.insert(0, node)
        first = product(node)
        if first is not None:
            return _Way(first, nodes, scale, masked)
        if (found := masks.operand(node)) is not None:
            tensor = found.scores
            masked.insert(0, (found, scale))
        elif node.op in REFOLDS and not node.domain:
            tensor = node.inputs[0]
        elif (source := before(node)) is not None:
            tensor, scale = source, scale * factor(node)
        else:
            break
    return None


def _found(way: _Way) -> _Scores | str:
    """The scores, if Reshapes on the way only join and split batch and heads."""
    nodes, masked = way.nodes, way.masked
    shapes = [node.outputs[0].shape for node in nodes]
    if any(shape is None or len(shape) not in (3, 4, 5) for shape in shapes):
        return _AXES
    heads = _known_heads(nodes)
    if len(heads) > 1 or any(node.op in REFOLDS and not _refolds(node) for node in nodes):
        return _AXES
    if not all(masks.broadcasts(each.tensor, each.scores) for each, _ in masked):
        return "its mask makes more scores"
    queries, keys = sizes(nodes[0].outputs[0])[-2:]
    frame = Frame(queries, keys)
    if any(len(shape) == 5 for shape in shapes):
        found: Masks | str = masks.of_windows(masked)
    else:
        found = masks.joined(
            [
                (each, after, replace(frame, folded=len(each.scores.shape) == 3))
                for each, after in masked
            ]
        )
    if isinstance(found, str):
        return found
    return _Scores(way.product, tuple(nodes), way.scale, frame, found, heads)


def _known_heads(nodes: Iterable[gs.Node]) -> frozenset[int]:
    """The numbers of heads that scores have, and 1 where an axis for a single head is made or
    removed."""
    found = set[int]()
    for node in nodes:
        shapes = [tensor.shape for tensor in (*node.inputs[:1], node.outputs[0])]
        divides = node.op in REFOLDS and {len(shape) for shape in shapes} == {3, 4}
        known = [shape[1] for shape in (shapes if divides else shapes[1:]) if len(shape) == 4]
        found.update(n for n in known if isinstance(n, int) and (divides or n != 1))
    return frozenset(found)


def _refolds(node: gs.Node) -> bool:
    """True if a node joins batch and heads, or splits them, or batch into images and windows."""
    x, y = node.inputs[0], node.outputs[0]
    if node.op not in REFOLDS or node.domain or x.shape is None or y.shape is None:
        return False
    ranks = {len(x.shape), len(y.shape)}
    if node.op != "Reshape":  # the axis is that of a single head
        longer = max(x.shape, y.shape, key=len)
        return ranks == {3, 4} and longer[1] == 1
    same = 2 if ranks == {3, 4} else 3
    return ranks in ({3, 4}, {4, 5}) and sizes(x)[-same:] == sizes(y)[-same:]


def _changed(tensor: gs.Tensor) -> str | None:
    """A refusal's reason, if the scores of a product are changed on the way to `tensor`. The last
    change that no mask is has made the scores what they are, and is named before masks."""
    pending: list[tuple[gs.Tensor, str]] = [(tensor, "")]
    for _ in range(_FAR):
        if not pending:
            break
        tensor, change = pending.pop(0)
        node = producer(tensor)
        if node is None or node.domain:
            continue
        if product(node) is not None and leads_to_product(tensor):
            if change == "Tanh":
                return CAPPED
            return f"its scores are changed by {change}" if change else _AXES
        if node.op in _REARRANGES:
            pending.append((node.inputs[0], change))
        elif node.op in _CHANGES:
            if before(node) is None and not (change and node.op in _MASKS):
                change = str(node.op)
            pending += [(source, change) for source in node.inputs if producer(source) is not None]
    return None


def _read_elsewhere(nodes: Iterable[gs.Node], what: str) -> str:
    """A refusal's reason if one of the nodes has several readers."""
    several = any(len(node.outputs[0].outputs) != 1 for node in nodes)
    return f"its {what} are read elsewhere, too" if several else ""


# --- from the softmax to the second product -------------------------------------------------------


def _probabilities(softmax: gs.Node) -> _Probabilities | str | None:
    """None where no product reads the probabilities; a str is a refusal's reason."""
    nodes, guarded, tensor = list[gs.Node](), False, softmax.outputs[0]
    step: tuple[gs.Node, ...]
    while True:
        readers = list(dict.fromkeys(tensor.outputs))
        second = next((p for node in readers if (p := product(node)) is not None), None)
        if second is not None:
            if len(readers) > 1:
                return "its probabilities are read elsewhere, too"
            if second.operand(tensor) is None or second.scale != 1:
                return None
            return _Probabilities(second, (*nodes, second.node), guarded, tensor)
        if (guard := _guard(tensor, readers)) is not None:
            guarded, step = True, guard
        elif len(readers) == 1 and (_refolds(readers[0]) or _casts(readers[0])):
            step = (readers[0],)
        else:
            return _unread(readers)
        nodes += step
        tensor = step[-1].outputs[0]


def _casts(node: gs.Node) -> bool:
    return node.op == "Cast" and before(node) is not None


def _unread(readers: Sequence[gs.Node]) -> str | None:
    """A refusal's reason, if a product is behind one of the readers."""
    for node in readers:
        behind = [reader for output in node.outputs for reader in output.outputs]
        if any(product(reader) is not None for reader in behind):
            return f"its probabilities are read by {node.op}"
    return None


def _guard(tensor: gs.Tensor, readers: Sequence[gs.Node]) -> tuple[gs.Node, gs.Node] | None:
    """IsNaN and Where, which make 0 of NaN."""
    if sorted(node.op for node in readers) != ["IsNaN", "Where"]:
        return None
    isnan, where = sorted(readers, key=lambda node: str(node.op))
    condition, yes, no = where.inputs
    ours = condition is isnan.outputs[0] and scalar(yes) == 0 and no is tensor
    return (isnan, where) if ours and len(condition.outputs) == 1 else None
