"""Which nodes are a normalization of tokens that constant rows are added to.

    LayerNormalization(Add(x, rows), gamma, beta)
    LayerNormalization(Add(Concat(head, x, axis=1), rows), gamma, beta)

and the same of RMSNormalization, with x [B, L, C], constant rows [S, C] or [1, S, C] (positions),
and a constant head of S - L tokens, the same for each sequence: a class token, whose Concat needs
no copy then. The head is added to the first of the rows when the model is built. The sum may have
further readers, as in pattern.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
class TokenAnchor(Anchor):
    """An anchor whose constants are the rows, and the head or None."""

    @property
    def rows(self) -> np.ndarray:
        """The rows that are added to each sequence, [S, C], the head included."""
        found, head = self.constants
        assert found is not None  # the pattern has found it
        rows = np.array(found.values).reshape(found.shape[-2:])
        if head is not None:
            own, tokens = unrounded_values(found), unrounded_values(head)
            assert own is not None  # numpy knows their type
            assert tokens is not None
            first = own.reshape(rows.shape)[: self.prefix].astype(np.float64)
            rows[: self.prefix] = (first + tokens[0]).astype(rows.dtype)
        return rows

    @property
    def tokens(self) -> int:
        """Rows of a sequence of the result."""
        found, _ = self.constants
        assert found is not None  # likewise
        return int(found.shape[-2])

    @property
    def prefix(self) -> int:
        """Tokens of the head."""
        return self.tokens - int(self.x.shape[1])


@dataclass(frozen=True, eq=False)
class _Tokens:
    """x, the rows, the head, and the nodes that add them up."""

    x: gs.Tensor
    rows: gs.Constant
    head: gs.Constant | None
    nodes: tuple[gs.Node, ...]


def anchors(op: FusedOp, centered: bool) -> tuple[AnchorPattern, ...]:
    """The nodes that `op` begins at."""
    return (
        AnchorPattern(("Add",), partial(_addition, op, centered)),
        AnchorPattern(("Concat",), partial(_concat, op, centered)),
    )


def _concat(op: FusedOp, centered: bool, node: gs.Node) -> Match:
    readers = node.outputs[0].outputs
    if len(readers) != 1 or readers[0].op != "Add" or readers[0].domain:
        return None
    found = _tokens_of(readers[0])
    return _matched(op, centered, found) if found and found.nodes[0] is node else None


def _addition(op: FusedOp, centered: bool, node: gs.Node) -> Match:
    found = _tokens_of(node)
    return _matched(op, centered, found) if found and found.nodes[0] is node else None


def _matched(op: FusedOp, centered: bool, found: _Tokens) -> Match:
    """The anchor; None where nothing normalizes the sum, or a norm alone has to be refused."""
    add = found.nodes[-1]
    match = pattern.of_sum(op, centered, pattern.Sum(add, found.x, found.rows))
    if match is None or isinstance(match, Refusal):
        return None
    anchor, links = match
    first, *others = (*found.nodes, *anchor.others)
    constants = (found.rows, found.head)
    nodes = tuple(others)
    return TokenAnchor(op, first, found.x, anchor.weight, anchor.dtype, constants, nodes), links


def _tokens_of(add: gs.Node) -> _Tokens | None:
    """The sum that an Add computes; None for any other sum."""
    rows = [tensor for tensor in add.inputs if isinstance(tensor, gs.Constant)]
    variables = [tensor for tensor in add.inputs if not isinstance(tensor, gs.Constant)]
    total = add.outputs[0].shape
    if len(rows) != 1 or len(variables) != 1 or total is None or len(total) != _RANK:
        return None
    length, columns = total[1:]
    if not isinstance(length, int) or tuple(rows[0].shape) not in (
        (length, columns),
        (1, length, columns),
    ):
        return None
    concat = producer(variables[0])
    if concat is not None and (found := _with_head(concat, add, length, columns)) is not None:
        return _Tokens(found[1], rows[0], found[0], (concat, add))
    own = list(variables[0].shape or ())
    return _Tokens(variables[0], rows[0], None, (add,)) if own == list(total) else None


def _with_head(
    concat: gs.Node, add: gs.Node, length: int, columns: int
) -> tuple[gs.Constant, gs.Tensor] | None:
    """The head and x of a Concat of sequences that `add` alone reads."""
    if concat.op != "Concat" or concat.domain or concat.attrs.get("axis") not in (1, 1 - _RANK):
        return None
    if len(concat.inputs) != 2 or list(concat.outputs[0].outputs) != [add]:
        return None
    head, x = _of_each_sequence(concat.inputs[0], columns), concat.inputs[1]
    sizes: Sequence[int | str | None] = x.shape or ()
    if head is None or isinstance(x, gs.Constant) or len(sizes) != _RANK or sizes[2] != columns:
        return None
    if not isinstance(sizes[1], int) or not 0 < sizes[1] < length:
        return None
    return (head, x) if head.shape[1] in (1, length - sizes[1]) else None


def _of_each_sequence(tensor: gs.Tensor, columns: int) -> gs.Constant | None:
    """The constant [1 or B, tokens, columns] that a head is or expands, if it is the same for each
    sequence; else None."""
    node = producer(tensor)
    if node is not None and node.op == "Expand" and not node.domain:
        tensor = node.inputs[0]
    values = constant_values(tensor)
    if values is None or values.ndim != _RANK or values.shape[2] != columns or not values.size:
        return None
    return tensor if bool((values == values[:1]).all()) else None
