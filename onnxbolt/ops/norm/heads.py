"""Which nodes are a normalization of each head of queries or keys.

    x [B, S, N] -> heads [B, S, H, D] -> LayerNormalization(.., gamma, beta)
    x [B, S, N] -> heads [B, S, H, D] -> LayerNormalization(..) -> [B, S, H x D] -> Rotate
    x [B, S, N] -> LayerNormalization(..) -> Rotate

and the same of RMSNormalization. gamma may have values of its own for each head, also as a Mul
behind the normalization. The heads are a view of x, of which they may be a part: Q, K and V
in one product. Rotate is that of canonicalize/rotary_form.py. match/head_norms.py and
match/rotations.py write normalizations of queries and keys so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import onnx_graphsurgeon as gs

from onnxbolt.candidates import Anchor, Link, Refusal
from onnxbolt.canonicalize import rotary_form
from onnxbolt.domains import INTERNAL
from onnxbolt.epilogues import ROTATE, Step
from onnxbolt.graph.edit import only_reader
from onnxbolt.ops.attention import views
from onnxbolt.ops.attention.views import ROWS, Followed, View
from onnxbolt.ops.base import FusedOp
from onnxbolt.ops.norm import pattern
from onnxbolt.patterns.types import AnchorPattern, Match


@dataclass(frozen=True, eq=False, kw_only=True)
class HeadAnchor(Anchor):
    """A normalization of heads, which are a view of x. The first `rotated` columns of all heads are
    rotated by `table`, if there is one."""

    view: View
    table: gs.Tensor | None = None
    rotated: int = 0

    @property
    def further(self) -> tuple[gs.Tensor, ...]:
        """The table."""
        return () if self.table is None else (self.table,)

    @property
    def strided(self) -> tuple[View, ...]:
        """x."""
        return (self.view,)

    @property
    def output(self) -> gs.Tensor:
        """The heads without rotation."""
        return self.node.outputs[0]

    @property
    def heads(self) -> int:
        """The number of heads."""
        assert isinstance(self.view.heads, int)  # `followed` has looked
        return self.view.heads


def anchors(op: FusedOp, centered: bool) -> tuple[AnchorPattern, ...]:
    """The nodes that `op` begins at."""
    return pattern.of_plain(partial(_match, op), centered)


def followed(x: gs.Tensor, by_heads: bool = False) -> Followed | None:
    """The heads [batch, positions, heads, size], with `by_heads` [batch, heads, positions, size],
    or one head [batch, positions, size], as a view of rows; None if they are no such view, or do
    not begin at multiples of their size."""
    rank = len(x.shape or ())
    if rank not in (3, 4) or (rank == 3 and by_heads):
        return None
    order = (0, 1, 2, 3) if by_heads else (0, 2, 1, 3)
    found = views.follow(x, views.by_rows(1) if rank == 3 else views.by_heads(order))
    view = None if found is None else found.view
    if view is None or view.order != ROWS or view.copies != 1 or len(view.tensor.shape) != 3:
        return None
    known = isinstance(view.heads, int) and isinstance(view.tensor.shape[-1], int)
    return found if known and view.pitch % view.size == view.lead % view.size == 0 else None


def _match(op: FusedOp, node: gs.Node) -> Match:
    """None where the heads are rows as they lie: then it is a normalization of rows."""
    found = followed(node.inputs[0])
    match = None if found is None else pattern.normalization(op, node, _count(found))
    if found is None or match is None or isinstance(match, Refusal):
        return None
    (plain, links), view = match, found.view
    scale = scale_behind(node, view)
    if scale is not None:
        factor = next(each for each in scale.inputs if isinstance(each, gs.Constant))
        links = (Link(Step("Scale"), factor, (scale,), scale.outputs[0]),)
    rotation = _rotation(node if scale is None else scale)
    if rotation is None and (view.heads == 1 or len(node.inputs[0].shape) == 3):
        return None
    reshape, rotate = rotation or ((), None)
    others = (*own(found.nodes, node), *reshape)
    anchor = HeadAnchor(op, node, view.tensor, None, plain.dtype, others=others, view=view)
    if rotate is None:
        return anchor, links
    columns, table = rotate.inputs
    anchor = replace(anchor, table=table, rotated=int(rotate.attrs["rotated_columns"]))
    rows = tuple(replace(link, output=columns) for link in links)
    return anchor, (*rows, Link(Step(ROTATE), table, (rotate,), rotate.outputs[0]))


def scale_behind(node: gs.Node, view: View, by_heads: bool = False) -> gs.Node | None:
    """The Mul that alone reads a normalization without factors, and multiplies by a constant of all
    heads' elements."""
    reader = only_reader(node.outputs[0])
    if len(node.inputs) > 1 or reader is None or reader.op != "Mul" or reader.domain:
        return None
    sizes = [view.heads, 1, view.size] if by_heads else [view.heads, view.size]
    factors = [t for t in reader.inputs if isinstance(t, gs.Constant)]
    whole = [1] * (4 - len(sizes)) + sizes
    fits = len(factors) == 1 and list(factors[0].shape) == whole[-len(factors[0].shape) :]
    return reader if fits and len(factors[0].shape) >= len(sizes) else None


def _count(found: Followed) -> int:
    assert isinstance(found.view.heads, int)  # `followed` has looked
    return found.view.heads


def own(nodes: Sequence[gs.Node], norm: gs.Node) -> list[gs.Node]:
    """The nodes between x and its heads that nobody else reads."""
    found: list[gs.Node] = []
    for node in reversed(nodes):
        if any(reader not in (norm, *found) for t in node.outputs for reader in t.outputs):
            break
        found.insert(0, node)
    return found


def _rotation(node: gs.Node) -> tuple[tuple[gs.Node, ...], gs.Node] | None:
    """The Rotate that alone reads a normalization, and in front of it the Reshape of several heads
    to one axis."""
    y = node.outputs[0]
    between: tuple[gs.Node, ...] = ()
    reader = only_reader(y)
    if reader is not None and reader.op == "Reshape" and len(y.shape) == 4:
        between, flat = (reader,), reader.outputs[0]
        reader = only_reader(flat) if len(flat.shape or ()) == 3 else None
    rotates = reader is not None and (reader.op, reader.domain) == (rotary_form.OP, INTERNAL)
    rotates = rotates and len(between) == len(y.shape) - 3
    return (between, reader) if rotates else None
