"""ONNX Runtime's operators of attention, written as the parts that they hold:

    Attention            q, k, v = split(x W + b), masks, attention
    MultiHeadAttention   q + b, k + c, v + d, masks, attention
    GroupQueryAttention  masks, attention

Projections are then products like any others, and masks are nodes that attention's recognition
knows. The attention itself is a node of the domain `onnxbolt.internal`: y [B, S, heads x E] of q
[B, S, heads x D], k and v in rows [B, T, ..] or by heads [B, heads, T, ..], and a mask that
broadcasts to [B, heads, S, T]. Its further inputs serve `restored`, which makes an operator of ONNX
Runtime again if no kernel takes the attention.

Semantics: ONNX Runtime, docs/ContribOperators.md, and its CPU kernels, with which tests compare. A
node that is not divided has the reason in `refused`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.domains import CONTRIB, INTERNAL
from onnxbolt.graph.edit import (
    Node,
    add_constant,
    constant_values,
    insert,
    is_float,
    optional,
    pinned,
    remove,
    stand_alone,
)
from onnxbolt.graph.element_types import onnx_dtype
from onnxbolt.graph.names import fresh

OP = "Attention"  # its domain is onnxbolt.internal
_FILTER = -10000.0  # added to the scores of excluded keys
_LOW = -1e30  # a causal mask adds fp32's lowest number, beside which this one is small
_PAST = "it has past keys"
_READ = "its keys, values or scores are read elsewhere, too"
_ROTARY = "it rotates its queries and keys"
_UNKNOWN = "the sizes of its queries, keys and values are not known"


@dataclass(frozen=True)
class Source:
    """The operator that `restored` makes: its inputs are those of the node with these positions,
    None where it has none; its element type is `dtype`."""

    op: str
    attrs: Mapping[str, Any]
    inputs: tuple[int | None, ...]
    dtype: np.dtype


@dataclass(frozen=True, eq=False)
class _Call:
    """A node with one of the operators."""

    graph: gs.Graph
    node: gs.Node

    def input(self, index: int) -> gs.Tensor | None:
        """An input, if the node has it."""
        return optional(self.node.inputs, index)

    def integer(self, name: str) -> int:
        """An attribute that is 0 where it is absent."""
        return int(self.node.attrs.get(name, 0))

    @property
    def filter(self) -> float:
        """The number that a mask adds to the scores of excluded keys."""
        return float(self.node.attrs.get("mask_filter_value", _FILTER))

    @property
    def dtype(self) -> np.dtype:
        found: np.dtype = self.node.inputs[0].dtype
        return found

    def gives_more(self) -> bool:
        """True if an output behind the first is read."""
        more = [tensor for tensor in self.node.outputs[1:] if tensor.name]
        return any(tensor.outputs or pinned(self.graph, tensor) for tensor in more)

    def add(self, op: str, *inputs: gs.Tensor, **attrs: Any) -> gs.Variable:
        """The result of a new node before this one."""
        return self.several(op, inputs, 1, **attrs)[0]

    def several(
        self, op: str, inputs: Sequence[gs.Tensor], count: int, **attrs: Any
    ) -> list[gs.Variable]:
        """The results of a new node, for which the source has no tensors."""
        base = f"{self.node.outputs[0].name}/{op}"
        results = [gs.Variable(fresh(self.graph, base)) for _ in range(count)]
        for result in results:
            stand_alone(result)
        insert(self.graph, op, inputs, results, [self.node], attrs, at=self.node)
        return results

    def constant(self, values: np.ndarray) -> gs.Constant:
        return add_constant(self.graph, f"{self.node.outputs[0].name}/constant", values)

    def ints(self, *values: int) -> gs.Constant:
        return self.constant(np.array(values, np.int64))

    def replace(
        self, inputs: Sequence[gs.Tensor | None], attrs: Mapping[str, Any], source: Source
    ) -> None:
        """Put the attention in this node's place."""
        given = [gs.Variable.empty() if tensor is None else tensor for tensor in inputs]
        made = Node(OP, self.node.name, attrs, given, [], INTERNAL, self.node.provenance)
        made.position, made.source = getattr(self.node, "position", None), source
        y = self.node.outputs[0]
        at = next(i for i, node in enumerate(self.graph.nodes) if node is self.node)
        self.graph.nodes.insert(at, made)
        remove(self.graph, [self.node])
        made.outputs = [y]


@dataclass(frozen=True)
class _Form:
    """Why one of the operators is not divided, "" if it can be, and how it is."""

    refuse: Callable[[_Call], str]
    divide: Callable[[_Call], None]


def run(graph: gs.Graph) -> int:
    """Divide all that can be; returns how many."""
    count = 0
    for node in list(graph.nodes):
        form = _FORMS.get(node.op) if node.domain == CONTRIB else None
        if form is None:
            continue
        call = _Call(graph, node)
        node.refused = form.refuse(call)
        if not node.refused:
            form.divide(call)
            count += 1
    return count


def restored(graph: gs.Graph, node: gs.Node) -> list[Node]:
    """The nodes for an attention that no kernel takes, in the element type of its source."""
    source, y, casts = node.source, node.outputs[0], list[Node]()

    def cast(before: gs.Tensor, after: gs.Tensor) -> Node:
        attrs = {"to": int(onnx_dtype(after.dtype))}
        name = fresh(graph, f"{after.name}/Cast")
        return Node("Cast", name, attrs, [before], [after], "", node.provenance)

    def typed(index: int | None) -> gs.Tensor:
        if index is None:
            return gs.Variable.empty()
        tensor = node.inputs[index]
        if not is_float(tensor) or tensor.dtype == source.dtype:
            return tensor
        name = fresh(graph, f"{tensor.name}/Cast_output")
        wide = gs.Variable(name, source.dtype, tensor.shape)
        casts.append(cast(tensor, wide))
        return wide

    inputs, result = [typed(index) for index in source.inputs], y
    if y.dtype != source.dtype:
        result = gs.Variable(fresh(graph, f"{y.name}/{source.op}"), source.dtype, y.shape)
    name, attrs = node.name, dict(source.attrs)
    operator = Node(source.op, name, attrs, inputs, [result], CONTRIB, node.provenance)
    return [*casts, operator, *([] if result is y else [cast(result, y)])]


def _refused_uses(call: _Call, past: Sequence[int]) -> str:
    """Why a call does more than attend: its inputs `past` have keys and values of earlier runs."""
    if any(call.input(index) is not None for index in past):
        return _PAST
    if call.gives_more():
        return _READ
    return _ROTARY if call.integer("do_rotary") else ""


# --- masks ----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Sizes:
    """Sizes of the scores, None where they are not known."""

    batch: int | str | None
    queries: int | str | None
    keys: int | str | None
    key_axis: int = 1  # the axis of keys in k: 2 if k lies by heads

    @property
    def square(self) -> bool:
        """True if there are as many keys as queries."""
        return self.queries is not None and self.queries == self.keys


_ENDS, _BOUNDS, _KEYS, _SCORES = "[B]", "[2B]", "[B, T]", "[B, S, T]"


def _mask_form(mask: gs.Tensor, sizes: _Sizes) -> str | None:
    """The meaning of a mask's integers: the number of keys of each batch, the ends of keys and then
    their beginnings, or 1 for each key, or each score, that is kept; None if that is not known."""
    shape = mask.shape
    if shape is None or len(shape) not in (1, 2, 3):
        return None
    if len(shape) > 1:
        return _KEYS if len(shape) == 2 else _SCORES
    if shape[0] is not None and shape[0] == sizes.batch:
        return _ENDS
    if isinstance(sizes.batch, int) and shape[0] == 2 * sizes.batch:
        return _BOUNDS
    return None


def _refused_masks(call: _Call, mask: gs.Tensor | None, sizes: _Sizes, forms: Sequence[str]) -> str:
    """Why masks cannot be nodes."""
    if mask is not None and _mask_form(mask, sizes) not in forms:
        return f"its mask is none of {', '.join(forms)}"
    if call.integer("unidirectional") and not sizes.square:
        return "its mask is causal, and it may have more or fewer keys than queries"
    if mask is not None and call.integer("unidirectional") and not call.filter > _LOW:
        return "its causal mask and the other one exclude keys by the same number"
    return ""


def _kept(call: _Call, mask: gs.Tensor, k: gs.Tensor, sizes: _Sizes) -> gs.Variable:
    """True for the keys that a mask keeps; broadcasts to [B, heads, S, T]."""
    form = _mask_form(mask, sizes)
    if form in (_KEYS, _SCORES):
        kept = call.add("Greater", mask, call.constant(np.zeros((), mask.dtype)))
        return call.add("Unsqueeze", kept, call.ints(*((1, 2) if form == _KEYS else (1,))))
    ends, begins = mask, None
    if form == _BOUNDS:
        ends, begins = call.several("Split", [mask], 2, axis=0)
    position = _positions(call, k, sizes)
    kept = call.add("Less", position, _of_batch(call, ends))
    if begins is None:
        return kept
    return call.add("And", kept, call.add("GreaterOrEqual", position, _of_batch(call, begins)))


def _positions(call: _Call, k: gs.Tensor, sizes: _Sizes) -> gs.Variable:
    """The numbers of the keys, int64 [T]."""
    axis = call.constant(np.array(sizes.key_axis))
    count = call.add("Gather", call.add("Shape", k), axis, axis=0)
    zero, one = (call.constant(np.array(number)) for number in (0, 1))
    return call.add("Range", zero, count, one)


def _of_batch(call: _Call, numbers: gs.Tensor) -> gs.Variable:
    """A number for each batch, int64 [B, 1, 1, 1]."""
    wide = call.add("Cast", numbers, to=int(onnx_dtype(np.dtype(np.int64))))
    return call.add("Reshape", wide, call.ints(-1, 1, 1, 1))


def _added(
    call: _Call, mask: gs.Tensor | None, bias: gs.Tensor | None, sizes: _Sizes, k: gs.Tensor
) -> gs.Tensor | None:
    """Mask and bias as numbers that are added to the scores."""
    if mask is None:
        return bias
    narrow = call.dtype == np.float16 and call.filter < np.finfo(np.float16).min
    dtype = np.dtype(np.float32) if narrow else call.dtype
    zero, filtered = (call.constant(np.array(number, dtype)) for number in (0.0, call.filter))
    added = call.add("Where", _kept(call, mask, k, sizes), zero, filtered)
    if bias is None:
        return added
    if narrow:
        bias = call.add("Cast", bias, to=int(onnx_dtype(dtype)))
    return call.add("Add", added, bias)


# --- Attention and MultiHeadAttention -------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Operands:
    """Queries, keys and values."""

    q: gs.Tensor
    k: gs.Tensor
    v: gs.Tensor


def _attend(
    call: _Call, operands: _Operands, mask: gs.Tensor | None, bias: gs.Tensor | None, sizes: _Sizes
) -> None:
    """Put attention in the node's place; MultiHeadAttention if no kernel takes it."""
    heads, causal = call.integer("num_heads"), call.integer("unidirectional")
    added = _added(call, mask, bias, sizes, operands.k)
    own = {"num_heads", "mask_filter_value", "scale", "unidirectional"}
    attrs = {name: value for name, value in call.node.attrs.items() if name in own}
    if mask is not None and _mask_form(mask, sizes) == _BOUNDS:
        # MultiHeadAttention has no such mask, and adds a bias only if it has all rows
        rows = call.add("Gather", call.add("Shape", operands.q), call.ints(1), axis=0)
        one = call.ints(1)
        shape = call.add("Concat", one, one, rows, one, axis=0)
        assert added is not None  # there is a mask
        mask, bias = None, call.add("Expand", added, shape)
        added = bias
    inputs = [operands.q, operands.k, operands.v, added, mask, bias]
    places = [index if inputs[index] is not None else None for index in (4, 5)]
    call.replace(
        inputs,
        {
            "q_num_heads": heads,
            "kv_num_heads": heads,
            "scale": float(call.node.attrs.get("scale", 0.0)),
            "is_causal": causal,
        },
        Source("MultiHeadAttention", attrs, (0, 1, 2, None, *places), call.dtype),
    )


def _packed_sizes(call: _Call) -> _Sizes:
    batch, positions, _ = call.node.inputs[0].shape
    return _Sizes(batch, positions, positions)


def _widths(call: _Call) -> list[int]:
    """The columns of queries, keys and values; empty if they do not fit the weights and heads."""
    weight, heads = call.node.inputs[1], call.integer("num_heads")
    columns = int(weight.shape[1])
    widths = list(call.node.attrs.get("qkv_hidden_sizes") or [columns // 3] * 3)
    fits = len(widths) == 3 and sum(widths) == columns and widths[0] == widths[1]
    whole = heads > 0 and all(width > 0 and width % heads == 0 for width in widths)
    return widths if fits and whole else []


def _refuse_packed(call: _Call) -> str:
    x, weight = call.node.inputs[:2]
    if not isinstance(weight, gs.Constant) or len(weight.shape) != 2:
        return "its weights are computed"
    if x.shape is None or len(x.shape) != 3 or not _widths(call):
        return _UNKNOWN
    forms = (_ENDS, _BOUNDS, _KEYS, _SCORES)
    return _refused_uses(call, (4, 6)) or _refused_masks(
        call, call.input(3), _packed_sizes(call), forms
    )


def _divide_packed(call: _Call) -> None:
    x, weight = call.node.inputs[:2]
    packed, bias, widths = call.add("MatMul", x, weight), call.input(2), _widths(call)
    if bias is not None:
        packed = call.add("Add", packed, bias)
    q, k, v = call.several("Split", [packed, call.ints(*widths)], 3, axis=2)
    _attend(call, _Operands(q, k, v), call.input(3), call.input(5), _packed_sizes(call))


def _multi_head_sizes(call: _Call) -> _Sizes | None:
    """None if the inputs are of no known form."""
    q, k, v = (None if t is None else t.shape for t in map(call.input, range(3)))
    ranks = [0 if shape is None else len(shape) for shape in (q, k, v)]
    if q is None or [shape is None for shape in (k, v)] != [
        call.input(index) is None for index in (1, 2)
    ]:
        return None
    if ranks == [5, 0, 0]:
        return _Sizes(q[0], q[1], q[1])
    if k is None or ranks not in ([3, 5, 0], [3, 3, 3], [3, 4, 4]):
        return None
    return _Sizes(q[0], q[1], k[2], 2) if ranks[1] == 4 else _Sizes(q[0], q[1], k[1])


def _refuse_multi_head(call: _Call) -> str:
    sizes = _multi_head_sizes(call)
    if sizes is None or call.integer("num_heads") <= 0:
        return _UNKNOWN
    if reason := _refused_uses(call, (6, 7, 8, 9)):
        return reason
    if call.input(3) is not None and _bias_widths(call) is None:
        return "its bias is computed, or is for keys by heads"
    return _refused_masks(call, call.input(4), sizes, (_ENDS, _KEYS, _SCORES))


def _bias_widths(call: _Call) -> list[int] | None:
    """The numbers of the bias for queries, keys and values; None if that is not known."""
    q, k, bias = call.node.inputs[0], call.input(1), call.input(3)
    if not isinstance(bias, gs.Constant) or (k is not None and len(k.shape) == 4):
        return None
    row = q.shape[2:] if len(q.shape) == 3 else (q.shape[2], q.shape[4])
    if not all(isinstance(size, int) for size in row):
        return None
    width, total = int(np.prod(row)), int(bias.shape[0])
    return [width, width, total - 2 * width] if total > 2 * width else None


def _divide_multi_head(call: _Call) -> None:
    sizes, bias = _multi_head_sizes(call), call.input(3)
    assert sizes is not None  # `refuse` has looked
    operands = _unpacked(call)
    if bias is not None:
        ends = np.cumsum([0, *(_bias_widths(call) or [])])
        parts = [bias.values[ends[i] : ends[i + 1]] for i in range(3)]
        pairs = zip(operands, parts, strict=True)
        operands = [call.add("Add", tensor, call.constant(part)) for tensor, part in pairs]
    _attend(call, _Operands(*operands), call.input(4), call.input(5), sizes)


def _unpacked(call: _Call) -> list[gs.Tensor]:
    """Queries, keys and values. Packed ones are [B, S, heads, 3, D], or [B, T, heads, 2, D] without
    the queries, and become [B, S, heads x D]."""
    q, k, v = (call.input(index) for index in range(3))
    packed, count = (q, 3) if k is None else (k, 2)
    if v is not None:
        return [q, k, v]
    parts = [
        call.add("Gather", packed, call.constant(np.array(index)), axis=3) for index in range(count)
    ]
    rows = [call.add("Reshape", part, call.ints(0, 0, -1)) for part in parts]
    return rows if count == 3 else [q, *rows]


# --- GroupQueryAttention --------------------------------------------------------------------------

_SEQLENS, _TOTAL = 5, 6  # positions of inputs
_PLAIN = {"num_heads", "kv_num_heads", "scale", "local_window_size", "rotary_interleaved"}


def _refuse_grouped(call: _Call) -> str:
    sizes = _grouped_sizes(call)
    if sizes is None:
        return _UNKNOWN
    if reason := _refused_uses(call, (3, 4)):
        return reason
    other = {name for name, value in call.node.attrs.items() if value and name not in _PLAIN}
    if more := sorted(name for name in other if call.node.attrs[name] not in (b"NONE", "NONE", -1)):
        return f"its attribute {more[0]} is not known"
    if any(call.input(index) is not None for index in range(10, len(call.node.inputs))):
        return "it has a bias, or more than queries, keys and values"
    seqlens = call.input(_SEQLENS)
    if seqlens is None or not sizes.square:
        return "it may have more or fewer keys than queries"
    if call.integer("local_window_size") > 0 and not _are_full(seqlens, sizes):
        return "its window is not the same for queries behind the last key"
    return ""


def _are_full(last: gs.Tensor, sizes: _Sizes) -> bool:
    """True if the last keys of all batches are the last ones there are."""
    values = constant_values(last)
    return isinstance(sizes.keys, int) and values is not None and (values == sizes.keys - 1).all()


def _grouped_sizes(call: _Call) -> _Sizes | None:
    """None if the inputs are of no known form: rows, or queries, keys and values in one row."""
    shapes: list[Any] = [getattr(tensor, "shape", None) for tensor in map(call.input, range(3))]
    heads, key_heads = call.integer("num_heads"), call.integer("kv_num_heads")
    packed = call.input(1) is None
    rows = shapes[:1] if packed else shapes
    if any(shape is None or len(shape) != 3 for shape in rows) or min(heads, key_heads) <= 0:
        return None
    batch, queries, width = rows[0]
    total = heads + 2 * key_heads if packed else heads
    if not isinstance(width, int) or width % total or heads % key_heads:
        return None
    return _Sizes(batch, queries, rows[-1][1])


def _divide_grouped(call: _Call) -> None:
    """It is causal. Keys behind the last one of a batch are excluded, and queries without keys give
    zeros."""
    q, k, v = (call.input(index) for index in range(3))
    heads, key_heads = call.integer("num_heads"), call.integer("kv_num_heads")
    sizes, seqlens = _grouped_sizes(call), call.input(_SEQLENS)
    assert q is not None and sizes is not None and seqlens is not None  # noqa: PT018
    if k is None:
        size = q.shape[2] // (heads + 2 * key_heads)
        widths = call.ints(*(n * size for n in (heads, key_heads, key_heads)))
        q, k, v = call.several("Split", [q, widths], 3, axis=2)
    mask = None
    if not _are_full(seqlens, sizes):
        mask = call.add("LessOrEqual", _positions(call, k, sizes), _of_batch(call, seqlens))
    window = int(call.node.attrs.get("local_window_size", -1))
    call.replace(
        [q, k, v, mask, seqlens, call.input(_TOTAL)],
        {
            "q_num_heads": heads,
            "kv_num_heads": key_heads,
            "scale": float(call.node.attrs.get("scale", 0.0)),
            "is_causal": 1,
            "window": max(window, 0),
            "zeros": 1,
        },
        Source(call.node.op, call.node.attrs, (0, 1, 2, None, None, 4, 5), call.dtype),
    )


_FORMS = {
    "Attention": _Form(_refuse_packed, _divide_packed),
    "GroupQueryAttention": _Form(_refuse_grouped, _divide_grouped),
    "MultiHeadAttention": _Form(_refuse_multi_head, _divide_multi_head),
}
