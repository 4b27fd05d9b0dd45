"""Masks of scores: added to them, or put in their place by Where.

| form | becomes |
|---|---|
| Add(scores, m), m any tensor | m is added |
| Add(scores, Where(c, 0, low)) and other tensors of 0 and a number that absorbs scores | c |
| Where(c, scores, low) | c |
| Add(scores, 0) | no mask |

c is a band, a boolean tensor, or both (conditions.py). Two masks are one if both exclude keys for
good, or if one is a band; others are joined before (sums.py). One axis for batch and heads is
divided before, too (folds.py).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.dtypes import DType
from onnxbolt.graph.edit import constant_values, producer, scalar
from onnxbolt.graph.tracing import traced
from onnxbolt.ops.attention.conditions import Condition, Leaf, kept, moved, two_valued
from onnxbolt.ops.attention.found import ALL, Band, Mask, Masked, Masking
from onnxbolt.ops.attention.lengths import Size, sizes
from onnxbolt.ops.attention.positions import Frame, leaves_a_key
from onnxbolt.ops.attention.products import product
from onnxbolt.ops.attention.scales import before

SEVERAL = "it has several masks"
FOLDED = "its mask has one axis for batch and heads"
SCALED = "its mask is scaled"
ABSORBS = -1e30  # a score plus such a value, or a lower one, is this value
_ABSORBS_F16 = -6.5e4  # in fp16, whose numbers lie 32 apart there
_EXCLUDES = -6.5e4  # a key with such a score, or a lower one, has no weight: fp16 ends at -65504
# operators that join and split batch and heads of scores
REFOLDS = frozenset({"Reshape", "Squeeze", "Unsqueeze"})
_BOUNDED = -1e4  # values that are added and not lower exclude no key


@dataclass(frozen=True, eq=False)
class Operand:
    """The mask at one node between the scores and the softmax."""

    node: gs.Node
    scores: gs.Tensor  # the scores before it
    tensor: gs.Tensor  # values that are added, or the condition of a Where
    puts: float | None = None  # the number that a Where puts; None: `tensor` is added
    keeps: bool = True  # a Where leaves the scores where its condition is so


@dataclass(frozen=True, eq=False)
class Masks:
    """All masks of an attention as one, and the least value that it adds or puts; NaN: unknown."""

    mask: Mask
    lowest: float

    def masked(self, frame: Frame, guarded: bool) -> Masked:
        """The answer for a query without keys, `guarded`: if NaN becomes 0. A finite mask leaves a
        row of equal scores, of which softmax makes no NaN. Where every query has a key, all answers
        are the same, and NaN is the one that costs a kernel nothing."""
        band = self.mask.band
        if band and self.mask.kind is Masking.NONE and leaves_a_key(band, frame):
            return Masked.NAN
        added = self.mask.kind is Masking.ADDED
        if guarded and (added or not math.isfinite(self.lowest)):
            return Masked.ZERO
        return Masked.PLAIN if math.isfinite(self.lowest) else Masked.NAN


def operand(node: gs.Node) -> Operand | None:
    """The mask of Add(scores, mask) or Where(mask, scores, number); None for other nodes."""
    if node.domain or node.op not in ("Add", "Where"):
        return None
    if node.op == "Add":
        scores = _added_to(node)
        if len(scores) != 1:
            return None
        (other,) = (tensor for tensor in node.inputs if tensor is not scores[0])
        return Operand(node, scores[0], other)
    condition, yes, no = node.inputs
    for keeps, scores, number in ((True, yes, scalar(no)), (False, no, scalar(yes))):
        if number is not None and leads_to_product(scores):
            return Operand(node, scores, condition, number, keeps)
    return None


def _added_to(node: gs.Node) -> list[gs.Tensor]:
    """The operands of an Add that may be scores: products, of several those whose last sizes are
    the sum's, and of these one that attention may have of queries and keys. A bias of SAM is a sum
    of products as well, of queries and tables of positions, and so is that of wav2vec2-BERT."""
    y, products = node.outputs[0], [x for x in node.inputs if leads_to_product(x)]
    if len(products) < 2 or y.shape is None:
        return products
    ends = sizes(y)[-2:]
    alike = [x for x in products if leads_to_product(x, ends)]
    computed = [x for x in alike if leads_to_product(x, ends, _of_queries_and_keys)]
    return computed if len(computed) == 1 else alike


def leads_to_product(
    tensor: gs.Tensor, ends: Sequence[Size] = (), fits: Callable[[gs.Node], bool] | None = None
) -> bool:
    """True if the tensor is a product of two variables, cast, scaled, reshaped or masked; with
    `ends`, one whose last sizes are these, with `fits`, one that fits."""
    pending, seen = [tensor], {tensor.name}
    while pending:
        node = producer(pending.pop())
        if node is None or node.domain not in (None, "", "com.microsoft"):
            continue
        if node.op in ("MatMul", "Einsum", "FusedMatMul"):
            fitting = fits is None or fits(node)
            if fitting and _of_variables(node) and _ends(node.outputs[0], ends):
                return True
            continue
        if node.op in ("Add", "Where"):
            sources = list(node.inputs)
        else:
            source = node.inputs[0] if node.op in REFOLDS else before(node)
            sources = [] if source is None else [source]
        pending += [source for source in sources if source.name not in seen]
        seen.update(source.name for source in sources)
    return False


def _ends(tensor: gs.Tensor, last: Sequence[Size]) -> bool:
    """True if the last sizes of a tensor are these; without any, for all tensors."""
    known = tensor.shape is not None
    return not last or (known and sizes(tensor)[-len(last) :] == [*last])


def _of_variables(product: gs.Node) -> bool:
    return all(
        len(x.shape or ()) > 2 and not (isinstance(x, gs.Constant) and len(x.shape) < 3)
        for x in product.inputs[:2]
    )


def _of_queries_and_keys(node: gs.Node) -> bool:
    """True for a product of batch, heads and positions, neither of whose operands is a constant."""
    constant = any(isinstance(x, gs.Constant) for x in node.inputs[:2])
    return product(node) is not None and not constant


def broadcasts(mask: gs.Tensor, scores: gs.Tensor) -> bool:
    """False if a mask has more axes than the scores, or an axis of another size than 1 and theirs.
    Of two sizes of which one is symbolic that is known only if the scores' size is 1: where they
    differ at run time, kernels refuse the mask."""
    if mask.shape is None or scores.shape is None or len(mask.shape) > len(scores.shape):
        return False
    pairs = zip(reversed(mask.shape), reversed(scores.shape), strict=False)
    return all(
        size in (1, known)
        or (known != 1 and not (isinstance(size, int) and isinstance(known, int)))
        for size, known in pairs
    )


# --- one mask -------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Excluded:
    """Keys that are not kept have the score `low`, whatever it was before."""

    kept: Condition
    low: float
    put: bool  # by Where; else it was added


@dataclass(frozen=True, eq=False)
class _Added:
    """Values that are added."""

    leaf: Leaf
    lowest: float


def _read(found: Operand, scale: float, frame: Frame) -> _Excluded | _Added | str:
    """A mask whose masked scores are multiplied by `scale` afterwards; a str is a refusal's
    reason."""
    if found.puts is not None:
        low = _rounded(found.puts * scale, found.node)
        if not low <= _EXCLUDES:
            return f"its mask puts a number that scores may have: {low:g}"
        condition = kept(found.tensor, found.keeps, frame)
        return _Excluded(_usable(condition, found.tensor, found.keeps, frame), low, True)
    choice = two_valued(found.tensor, frame)
    if choice is not None and choice.uniform and choice.numbers[0] == 0:
        return _Excluded(Condition(), 0.0, False)
    f16 = found.node.outputs[0].dtype == np.float16
    absorbs = _ABSORBS_F16 if f16 and scale == 1 else ABSORBS
    if choice is not None and 0 in choice.numbers and min(choice.numbers) * scale <= absorbs:
        zeros = choice.where([number == 0 for number in choice.numbers])
        if zeros is not None and len(zeros.leaves) < 2:
            low = _rounded(min(choice.numbers) * scale, found.node)
            return _Excluded(zeros, low, False)
    if scale != 1:
        return SCALED
    return _added(found.tensor, frame)


def _rounded(low: float, node: gs.Node) -> float:
    """-inf for a number that the type of a node's result does not hold."""
    f16 = node.outputs[0].dtype == np.float16
    least = float(np.finfo(np.float16 if f16 else np.float32).min)
    return -math.inf if low < least else low


def _usable(condition: Condition, tensor: gs.Tensor, value: bool, frame: Frame) -> Condition:
    """The condition, or the tensor that is it if it takes several tensors."""
    if len(condition.leaves) < 2:
        return condition
    return Condition(leaves=(Leaf(tensor, value, frame.folded),))


def _leaf(tensor: gs.Tensor, frame: Frame) -> _Added:
    """Values of which nothing is known."""
    return _Added(Leaf(tensor, True, frame.folded), math.nan)


@traced(_leaf)
def _added(tensor: gs.Tensor, frame: Frame) -> _Added:
    """Values that are added, before nodes that only broadcast or widen them."""
    node, values = producer(tensor), constant_values(tensor)
    if values is not None:
        return _Added(Leaf(tensor, True, frame.folded), float(values.min()))
    if node is not None and (move := moved(node, frame)) is not None and move.whole:
        return _added(node.inputs[0], move.frame)
    if node is not None and node.op == "Cast" and not node.domain and _is_exact(node):
        return _added(node.inputs[0], frame)
    return _leaf(tensor, frame)


def _is_exact(cast: gs.Node) -> bool:
    """True if a Cast widens a number, or the precision stage has added it."""
    source, result = cast.inputs[0], cast.outputs[0]
    if DType.of(source.dtype) is None or DType.of(result.dtype) is None:
        return False
    return result.dtype == np.float32 or getattr(result, "original", None) == source.name


# --- all masks ------------------------------------------------------------------------------------


def joined(operands: Sequence[tuple[Operand, float, Frame]], band: Band = ALL) -> Masks | str:
    """Masks, each with the scale that follows it and the scores that it is for, from the product
    on, as one; a str is a refusal's reason. Keys beyond `band` are excluded for good."""
    excluded, added = list[_Excluded](), list[_Added]()
    if band:
        excluded.append(_Excluded(Condition(band), -math.inf, True))
    for each, scale, frame in operands:
        found = _read(each, scale, frame)
        if isinstance(found, str):
            return found
        if isinstance(found, _Added):
            if any(each.low > ABSORBS and each.put for each in excluded):
                return "its mask puts a number that another one changes"
            added.append(found)
        elif found.low:
            excluded.append(found)
    return _one(excluded, added)


def _one(excluded: Sequence[_Excluded], added: Sequence[_Added]) -> Masks | str:
    lows = {each.low for each in excluded}
    same = len(lows) < 2 and (lows <= {-math.inf} or all(each.put for each in excluded[1:]))
    condition = Condition()
    for each in excluded:
        condition = condition.joined(each.kept)
    if not same or len(condition.leaves) + len(added) > 1:
        return SEVERAL
    leaves = (*condition.leaves, *(each.leaf for each in added))
    if any(not _is_placed(leaf) for leaf in leaves):
        return FOLDED
    low = min(lows, default=0.0)
    if not leaves:
        return Masks(Mask(band=condition.band), low if condition.band else 0.0)
    tensor, kind = leaves[0].tensor, Masking.KEPT if leaves[0].value else Masking.DROPPED
    if not added:
        return Masks(Mask(kind, tensor, condition.band), low)
    if low and math.isfinite(low) and not added[0].lowest >= _BOUNDED:
        return SEVERAL
    return Masks(Mask(Masking.ADDED, tensor, condition.band), low or added[0].lowest)


def _is_placed(leaf: Leaf) -> bool:
    """True if the tensor broadcasts to scores with axes for batch and heads."""
    shape = leaf.tensor.shape
    return shape is not None and (not leaf.folded or len(shape) < 3 or shape[0] == 1)


def of_windows(operands: Sequence[tuple[Operand, float]]) -> Masks | str:
    """Constants that are added, [1, heads, queries, keys] and [1, windows, heads, queries, keys],
    as one with the period of the windows; a str is a refusal's reason."""
    parts = list[np.ndarray]()
    for each, scale in operands:
        values, rank = constant_values(each.tensor), len(each.scores.shape)
        if values is None or each.puts is not None or scale != 1 or rank not in (4, 5):
            return "its masks of windows are no constants that are added"
        values = values.reshape(*[1] * (rank - values.ndim), *values.shape)
        if values.shape[0] != 1:
            return "its masks of windows differ between images"
        parts.append(values[0] if rank == 5 else values)
    last = operands[-1][0]
    result = last.node.outputs[0]
    if not hasattr(result, "folded"):  # the pattern is asked several times
        total = np.asarray(functools.reduce(np.add, [part.astype(np.float32) for part in parts]))
        values = np.ascontiguousarray(total.astype(last.tensor.dtype))
        result.folded = gs.Constant(f"{result.name}_masks", values)
    period = int(result.folded.shape[0])
    mask = Mask(Masking.ADDED, result.folded, period=period if period > 1 else 0)
    return Masks(mask, float(result.folded.values.min()))
