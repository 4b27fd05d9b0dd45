"""Which nodes are a normalization of a sum of embeddings.

    LayerNormalization(Add(.. Add(Gather(table, ids), Gather(table, ids)) .., rows), gamma, beta)

and the same of RMSNormalization, with constant tables [V, C], indices [B, S] of which all but those
of one table may also be broadcast to that shape, and at most once constant rows [S, C] or [1, S, C]
(positions). The sum may be a single Gather, and may have further readers, as in pattern.py.
Canonicalization has added up what is constant (canonicalize/embedding_form.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.candidates import Anchor, Refusal
from onnxbolt.dtypes import IndexType
from onnxbolt.graph.edit import producer
from onnxbolt.graph.embeddings import gather_of
from onnxbolt.ops.base import FusedOp
from onnxbolt.ops.norm import pattern
from onnxbolt.patterns.types import AnchorPattern, Match
from onnxbolt.problems import MAX_TABLES

_RANK = 3  # axes of the sum


@dataclass(frozen=True, eq=False)
class EmbeddingAnchor(Anchor):
    """An anchor whose x are indices. `lookups` has the indices and the table of each embedding, x
    first; the constant is that of the rows, or None."""

    lookups: tuple[tuple[gs.Tensor, gs.Constant], ...] = ()

    @property
    def further(self) -> tuple[gs.Tensor, ...]:
        """The indices of the other tables."""
        return tuple(indices for indices, _ in self.lookups[1:])

    @property
    def columns_of_tables(self) -> int:
        """Columns of each table, and of the result."""
        return int(self.lookups[0][1].shape[1])

    @property
    def index_type(self) -> IndexType:
        """The type of all indices."""
        found = IndexType.of(self.x.dtype)
        assert found is not None  # the pattern has looked
        return found

    @property
    def rows(self) -> np.ndarray | None:
        """The rows that are added to each sequence, [S, C]; None if there are none."""
        (rows,) = self.constants
        return None if rows is None else np.array(rows.values).reshape(rows.shape[-2:])


@dataclass(frozen=True, eq=False)
class _Sum:
    """The nodes that compute a sum, the Gathers among them, and the other terms."""

    nodes: tuple[gs.Node, ...]
    gathers: tuple[gs.Node, ...]
    others: tuple[gs.Tensor, ...]
    total: gs.Tensor


def anchors(op: FusedOp, centered: bool) -> tuple[AnchorPattern, ...]:
    """The nodes that `op` begins at."""
    return (AnchorPattern(("Gather",), partial(_gather, op, centered)),)


def _gather(op: FusedOp, centered: bool, node: gs.Node) -> Match:
    """None where `node` is not the first embedding of a sum that is normalized."""
    if gather_of(node.outputs[0]) is None:
        return None
    found = _sum_of(node)
    if found.gathers[0] is not node:
        return None
    rows = next((term for term in found.others if isinstance(term, gs.Constant)), None)
    total = pattern.Sum(producer(found.total), found.total, rows)
    match = pattern.of_sum(op, centered, total)
    if match is None or isinstance(match, Refusal):
        return None  # nothing normalizes it, or the norm alone is refused
    if reason := _reason(found):
        return Refusal(node.name, node.op, reason, found.total.name)
    anchor, links = match
    first = next(gather for gather in found.gathers if _is_whole(gather, found.total))
    gathers = [first, *(gather for gather in found.gathers if gather is not first)]
    lookups = tuple((gather.inputs[1], gather.inputs[0]) for gather in gathers)
    nodes = (*(n for n in found.nodes if n is not node), *anchor.others)
    return (
        EmbeddingAnchor(
            op, node, lookups[0][0], anchor.weight, anchor.dtype, (rows,), nodes, lookups
        ),
        links,
    )


def _sum_of(gather: gs.Node) -> _Sum:
    """The whole sum that a Gather's result is a term of: the terms of Adds that nothing else
    reads."""
    total = gather.outputs[0]
    while len(total.outputs) == 1 and _is_addition(total.outputs[0]):
        total = total.outputs[0].outputs[0]
    nodes, gathers, others, pending = [], [], [], [total]
    while pending:
        term = pending.pop(0)
        node = producer(term)
        if node is not None and _is_addition(node) and (term is total or len(term.outputs) == 1):
            nodes.append(node)
            pending = [*node.inputs, *pending]
        elif (found := gather_of(term)) is not None:
            nodes.append(found)
            gathers.append(found)
        else:
            others.append(term)
    return _Sum(tuple(reversed(nodes)), tuple(gathers), tuple(others), total)


def _is_addition(node: gs.Node) -> bool:
    return node.op == "Add" and not node.domain


def _reason(found: _Sum) -> str:
    """Why no kernel of a norm computes the sum in front of it; "" where one does."""
    if any(not isinstance(term, gs.Constant) for term in found.others):
        return "a term of the sum in front of a norm is neither an embedding nor constant"
    if len(found.gathers) > MAX_TABLES:
        return f"the kernel of a norm adds up at most {MAX_TABLES} embeddings"
    if len(set(map(id, found.gathers))) < len(found.gathers):
        return "an embedding is added twice in front of a norm"
    whole = [gather for gather in found.gathers if _is_whole(gather, found.total)]
    if not whole:
        return "no indices of embeddings are known to have the batch and tokens of their sum"
    types = {gather.inputs[1].dtype for gather in found.gathers}
    if len(types) > 1 or IndexType.of(*types) is None:
        return "the embeddings of a sum have indices of different types"
    if any(len(gather.inputs[1].shape or (0, 0, 0)) >= _RANK for gather in found.gathers):
        return "the indices of an embedding have more than two axes"
    if len(found.others) > 1 or not all(_are_rows(rows, found.total) for rows in found.others):
        return "the constants that are added to embeddings are no row for each token"
    return ""


def _is_whole(gather: gs.Node, total: gs.Tensor) -> bool:
    """True if a run-time tensor of indices has the shape of the sum without its columns."""
    indices, shape = gather.inputs[1], list(total.shape or ())
    known: Sequence[int | str | None] = indices.shape or ()
    whole = len(shape) == _RANK and list(known) == shape[:-1] and None not in known
    return whole and not isinstance(indices, gs.Constant)


def _are_rows(rows: gs.Tensor, total: gs.Tensor) -> bool:
    _, length, columns = total.shape
    return tuple(rows.shape) in ((length, columns), (1, length, columns))
