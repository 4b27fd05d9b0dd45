"""Writes normalizations of queries' and keys' heads by positions, as projections have them, and
their heads as parts of a projection's result alone:

    x [B, S, N] -> .. -> heads [B, H, S, D] -> normalization -> attention
    x [B, S, N] -> heads [B, S, H, D] -> normalization -> Transpose [B, H, S, D] -> attention

There a kernel reads the heads from the projection's result by strides (ops/norm/heads.py), and
attention reads its result so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.domains import INTERNAL
from onnxbolt.graph import promises
from onnxbolt.graph.edit import add_constant, insert, pinned, producer, prune, remove, stand_alone
from onnxbolt.graph.names import fresh
from onnxbolt.graph.promises import stage
from onnxbolt.graph.skipping import is_skipped
from onnxbolt.match.matcher import match
from onnxbolt.match.partition import partition
from onnxbolt.ops.attention import views
from onnxbolt.ops.attention.found import AttentionAnchor
from onnxbolt.ops.attention.rotary import behind
from onnxbolt.ops.attention.scales import before
from onnxbolt.ops.attention.views import View
from onnxbolt.ops.norm.heads import followed, own, scale_behind
from onnxbolt.ops.norm.pattern import epsilon, normalizes


@dataclass(frozen=True, eq=False)
class _Norm:
    """A normalization of heads that are a view of rows; `by_heads`: [B, H, S, D]. `scale` is the
    Mul behind it by a constant of all heads, if there is one."""

    node: gs.Node
    view: View
    by_heads: bool
    scale: gs.Node | None = None

    @property
    def nodes(self) -> list[gs.Node]:
        """The normalization and the Mul."""
        return [self.node] if self.scale is None else [self.node, self.scale]


@stage(requires=promises.SOUND, ensures=promises.KEPT)
def move(graph: gs.Graph) -> list[str]:
    """Move in place; returns a line for the report if anything was moved."""
    if not any(map(_moved, graph.nodes)):
        return []
    found = {each.node: each for each in _of_attention(graph)}
    for norm in found.values():
        _move(graph, norm)
    if not found:
        return []
    prune(graph)
    return [f"head norms: {len(found)} (heads read from projections)"]


def _moved(node: gs.Node) -> _Norm | None:
    """The normalization of heads that lie otherwise than projections have them, or of those that
    others read in part."""
    if not normalizes(node) or len(node.inputs[0].shape or ()) != 4:
        return None
    for by_heads in (False, True):
        found = followed(node.inputs[0], by_heads)
        if found is not None:
            shared = found.nodes[: len(found.nodes) - len(own(found.nodes, node))]
            apart = all(each.op == "Split" for each in shared)
            norm = _Norm(node, found.view, by_heads, scale_behind(node, found.view, by_heads))
            return None if apart and not by_heads and norm.scale is None else norm
    return None


def _of_attention(graph: gs.Graph) -> Iterator[_Norm]:
    """Those of queries and keys, in front of a rotation if there is one."""
    for candidate in partition(match(graph).candidates):
        if not isinstance(candidate.anchor, AttentionAnchor):
            continue
        attention = candidate.anchor.attention
        for view in (attention.q, attention.k):
            rotation = behind(view.tensor)
            node = _norm_before(view.tensor if rotation is None else rotation[0].x)
            found = None if node is None else _moved(node)
            if found is None or is_skipped(graph, *found.nodes):
                continue
            statistics = found.node.outputs[1:]
            results = [*(each.outputs[0] for each in found.nodes), *statistics]
            if not any(pinned(graph, t) for t in results) and not any(
                t.outputs for t in statistics
            ):
                yield found


def _norm_before(tensor: gs.Tensor) -> gs.Node | None:
    """The normalization of which a tensor is a view, or a multiple."""
    while (node := producer(tensor)) is not None and not normalizes(node):
        source = node.inputs[0] if views.rearranges(node) else before(node)
        if source is None:
            normalized = (each for each in node.inputs if isinstance(each, gs.Variable))
            norm = producer(next(normalized, node.inputs[0]))
            found = None if norm is None or node.op != "Mul" else _moved(norm)
            return norm if found is not None and found.scale is node else None
        tensor = source
    return node


def _move(graph: gs.Graph, norm: _Norm) -> None:
    node, last = norm.node, norm.nodes[-1]
    y, domain, factors = last.outputs[0], node.domain, node.inputs[1:]
    if norm.scale is not None:  # a scale for each head, which ONNX's operators do not have
        domain = INTERNAL
        factors = [
            _of_heads(graph, t, norm.view) for t in last.inputs if isinstance(t, gs.Constant)
        ]
    inputs = [_heads(graph, norm.view, node), *factors]
    attributes = {"epsilon": epsilon(node)} if domain == INTERNAL else node.attrs
    result = y if not norm.by_heads else _variable(graph, y, [y.shape[i] for i in (0, 2, 1, 3)])
    last.outputs.clear()
    insert(graph, node.op, inputs, [result], norm.nodes, attributes, domain, at=node)
    if norm.by_heads:
        insert(graph, "Transpose", [result], [y], (), {"perm": [0, 2, 1, 3]}, at=node)
    remove(graph, norm.nodes)


def _of_heads(graph: gs.Graph, factor: gs.Constant, view: View) -> gs.Constant:
    """A factor as [H, D]."""
    values = factor.values.reshape(view.heads, view.size)
    return add_constant(graph, f"{factor.name}_heads", values)


def _heads(graph: gs.Graph, view: View, at: gs.Node) -> gs.Variable:
    """The heads [B, S, H, D] of a view."""
    assert isinstance(view.heads, int)  # `followed` has looked
    x = view.tensor
    shape = [*x.shape[:2], x.shape[2] // view.pitch, view.pitch]
    groups, sizes = _variable(graph, x, shape), _ints(graph, 0, 0, *shape[2:])
    insert(graph, "Reshape", [x, sizes], [groups], (), at=at)
    if view.whole:
        return groups
    heads = _variable(graph, x, [*x.shape[:2], view.heads, view.size])
    ranges = (
        _ints(graph, view.first, view.lead),
        _ints(graph, view.first + view.heads, view.lead + view.size),
        _ints(graph, 2, 3),
    )
    insert(graph, "Slice", [groups, *ranges], [heads], (), at=at)
    return heads


def _ints(graph: gs.Graph, *values: int) -> gs.Constant:
    return add_constant(graph, "head_norm_numbers", np.array(values, np.int64))


def _variable(graph: gs.Graph, like: gs.Tensor, shape: Sequence[int | str]) -> gs.Variable:
    made = gs.Variable(fresh(graph, f"{like.name}_heads"), like.dtype, list(shape))
    stand_alone(made)
    return made
