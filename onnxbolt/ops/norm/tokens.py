"""Which nodes are a normalization of tokens that constant rows are added to.

    LayerNormalization(Add(x, rows), gamma, beta)
    LayerNormalization(Concat(heads.., x, axis=1), gamma, beta)
    LayerNormalization(Add(Concat(heads.., x, axis=1), rows), gamma, beta)
    LayerNormalization(Concat(heads.., Add(x, rows), axis=1), gamma, beta)

and the same of RMSNormalization, with x [B, L, C], constant rows [S, C] or [1, S, C] (positions),
and constant heads of S - L tokens, the same for each sequence: class and register tokens, whose
Concat needs no copy then. The heads are rows of the tokens in front when the model is built. The
sum may have further readers, as in pattern.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.candidates import Anchor, Refusal
from onnxbolt.graph.edit import constant_values, producer, unrounded_values
from onnxbolt.ops.base import FusedOp
from onnxbolt.ops.norm import pattern
from onnxbolt.patterns.types import AnchorPattern, Match

_RANK = 3


@dataclass(frozen=True, eq=False)
class _Head:
    """A constant [1 or B, 1 or tokens, C] that is the same for each sequence."""

    values: gs.Constant
    tokens: int


@dataclass(frozen=True, eq=False)
class _Tokens:
    """x and what is put in front of it and added to it: rows to x alone, rows behind the Concat;
    and the nodes that do so."""

    x: gs.Tensor
    heads: tuple[_Head, ...]
    own: gs.Constant | None
    behind: gs.Constant | None
    nodes: tuple[gs.Node, ...]


@dataclass(frozen=True, eq=False, kw_only=True)
class TokenAnchor(Anchor):
    """An anchor of tokens that constants are added to."""

    found: _Tokens

    @property
    def rows(self) -> np.ndarray:
        """The rows that are added to each sequence, [S, C], the heads included."""
        own, behind = self.found.own, self.found.behind
        columns = int(self.x.shape[2])
        heads = [
            np.broadcast_to(_exact(head.values)[0], (head.tokens, columns))
            for head in self.found.heads
        ]
        length = self.tokens - self.prefix
        last = np.zeros((length, columns)) if own is None else _exact(own).reshape(length, columns)
        rows = np.concatenate([*heads, last])
        if behind is not None:
            rows = rows + _exact(behind).reshape(rows.shape)
        answer: np.ndarray = rows.astype(self.x.dtype)
        return answer

    @property
    def tokens(self) -> int:
        """Rows of a sequence of the result."""
        return self.prefix + int(self.x.shape[1])

    @property
    def prefix(self) -> int:
        """Tokens of the heads."""
        return sum(head.tokens for head in self.found.heads)


def _exact(constant: gs.Constant) -> np.ndarray:
    """The values in float64, as they were before the precision stage rounded them."""
    values = unrounded_values(constant)
    assert values is not None  # numpy knows their type
    return values.astype(np.float64)


def anchors(op: FusedOp, centered: bool) -> tuple[AnchorPattern, ...]:
    """The nodes that `op` begins at."""
    return (AnchorPattern(("Add", "Concat"), partial(_match, op, centered)),)


def _match(op: FusedOp, centered: bool, node: gs.Node) -> Match:
    """The anchor; None where nothing normalizes the sum, or a norm alone has to be refused."""
    end = _end(node)
    found = _sum(end) if end.op == "Add" else _joined(end)
    if found is None or found.nodes[0] is not node:
        return None
    constants = (found.behind, found.own, *(head.values for head in found.heads))
    # the link needs one of them; the node has the anchor's `rows` in its place
    added = next(constant for constant in constants if constant is not None)
    match = pattern.of_sum(op, centered, pattern.Sum(end, found.x, added))
    if match is None or isinstance(match, Refusal):
        return None
    anchor, links = match
    first, *others = (*found.nodes, *anchor.others)
    own = TokenAnchor(
        op, first, found.x, anchor.weight, anchor.dtype, others=tuple(others), found=found
    )
    return own, links


def _end(node: gs.Node) -> gs.Node:
    """The last node of a sum that begins at `node`, if it is one."""
    if node.op == "Add" and (concat := _only_reader(node, "Concat")) is not None:
        node = concat
    return _only_reader(node, "Add") or node if node.op == "Concat" else node


def _only_reader(node: gs.Node, op: str) -> gs.Node | None:
    """The node that alone reads the result, if it is an `op`."""
    readers = list(node.outputs[0].outputs)
    alone = len(readers) == 1 and readers[0].op == op and not readers[0].domain
    return readers[0] if alone else None


def _sum(add: gs.Node) -> _Tokens | None:
    """The sum that an Add of rows computes; None for any other sum."""
    parts = _rows_of(add)
    if parts is None:
        return None
    x, rows = parts
    concat = producer(x)
    if concat is not None and concat.op == "Concat" and list(x.outputs) == [add]:
        joined = _joined(concat, add.outputs[0].shape[1])
        if joined is not None:
            return replace(joined, behind=rows, nodes=(*joined.nodes, add))
    whole = list(x.shape or ()) == list(add.outputs[0].shape)
    return _Tokens(x, (), None, rows, (add,)) if whole else None


def _rows_of(add: gs.Node) -> tuple[gs.Tensor, gs.Constant] | None:
    """The tensor and the constant rows, one for each token, that an Add adds up."""
    rows = [tensor for tensor in add.inputs if isinstance(tensor, gs.Constant)]
    others = [tensor for tensor in add.inputs if not isinstance(tensor, gs.Constant)]
    total = add.outputs[0].shape
    if len(rows) != 1 or len(others) != 1 or total is None or len(total) != _RANK:
        return None
    length, columns = total[1:]
    fits = tuple(rows[0].shape) in ((length, columns), (1, length, columns))
    return (others[0], rows[0]) if isinstance(length, int) and fits else None


def _joined(concat: gs.Node, length: int | str | None = None) -> _Tokens | None:
    """x behind its heads, `length` tokens in all where that is known; None for another Concat."""
    total = concat.outputs[0].shape
    if concat.domain or concat.attrs.get("axis") not in (1, 1 - _RANK) or len(total or ()) != _RANK:
        return None
    *before, x = concat.inputs
    sizes: Sequence[int | str | None] = x.shape or ()
    if isinstance(x, gs.Constant) or len(sizes) != _RANK or sizes[2] != total[2]:
        return None
    if not isinstance(sizes[1], int) or not sizes[1]:
        return None
    # the tokens of a single head whose own number is computed at run time
    rest = length - sizes[1] if isinstance(length, int) and len(before) == 1 else None
    heads = [_head(tensor, total[2], rest) for tensor in before]
    if not heads or None in heads:
        return None
    found = _Tokens(x, tuple(filter(None, heads)), None, None, (concat,))
    add = producer(x)
    if add is None or add.op != "Add" or add.domain or list(x.outputs) != [concat]:
        return found
    parts = _rows_of(add)
    if parts is None or list(parts[0].shape or ()) != list(sizes):
        return found
    return replace(found, x=parts[0], own=parts[1], nodes=(add, concat))


def _head(tensor: gs.Tensor, columns: int | str | None, rest: int | None) -> _Head | None:
    """The constant that a head is or expands, if it is the same for each sequence; `rest`: its
    tokens where its shape does not say them."""
    shape, node = tensor.shape, producer(tensor)
    if node is not None and node.op == "Expand" and not node.domain:
        tensor = node.inputs[0]
    values = constant_values(tensor)
    if values is None or values.ndim != _RANK or values.shape[2] != columns or not values.size:
        return None
    known = shape[1] if shape is not None and len(shape) == _RANK else None
    tokens = known if isinstance(known, int) else rest
    if tokens is None or tokens < 1 or values.shape[1] not in (1, tokens):
        return None
    return _Head(tensor, tokens) if bool((values == values[:1]).all()) else None
