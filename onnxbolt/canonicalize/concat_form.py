"""Concats of tensors that were one, and of Concats, along the same axis.

    Concat(.., a, b, ..) where Split(x) = a, b  =  Concat(.., x, ..)
    Concat(.., Concat(a, b), ..)                =  Concat(.., a, b, ..)

What a cross-stage block (CSPNet, YOLO) hands past its layers is then one tensor, and no copy of two
parts of it. A dense block's features, of which each Concat adds one, are the same tensors in all
Concats, so that kernels may write and read them in one place (layout/slices.py).
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_graphsurgeon as gs

from onnxbolt.graph.edit import is_float, pinned, producer


def run(graph: gs.Graph) -> int:
    """Join what has been split, and flatten Concats of Concats; returns how many changed."""
    concats = [
        node
        for node in graph.nodes
        if node.op == "Concat" and not node.domain and node.outputs[0].shape is not None
    ]
    concats = [node for node in concats if is_float(node.outputs[0])]
    return sum(_join(node) for node in concats) + _flatten_all(graph, concats)


def _join(concat: gs.Node) -> bool:
    left, joined = list(concat.inputs), list[gs.Tensor]()
    while left:
        split = _split_into(left, concat)
        joined.append(split.inputs[0] if split is not None else left[0])
        del left[: 1 if split is None else len(split.outputs)]
    changed = len(joined) < len(concat.inputs)
    if changed:
        concat.inputs = joined
    return changed


def _split_into(tensors: Sequence[gs.Tensor], concat: gs.Node) -> gs.Node | None:
    """The Split along the Concat's axis whose outputs `tensors` begin with."""
    split = producer(tensors[0])
    if split is None or split.op != "Split" or not _same_axis(split, concat):
        return None
    first = tensors[: len(split.outputs)]
    same = len(first) == len(split.outputs) and all(
        a is b for a, b in zip(first, split.outputs, strict=True)
    )
    return split if same and len(first) > 1 else None


def _flatten_all(graph: gs.Graph, concats: Sequence[gs.Node]) -> int:
    """The last first: those that it alone has read, which nobody reads then, stay as they are
    until they are pruned."""
    count, dead = 0, set[gs.Node]()
    for node in reversed(concats):
        y = node.outputs[0]
        if all(reader in dead for reader in y.outputs) and not pinned(graph, y):
            dead.add(node)
        else:
            count += _flatten(node)
    return count


def _flatten(concat: gs.Node) -> bool:
    pending, parts = list(reversed(concat.inputs)), list[gs.Tensor]()
    while pending:
        tensor = pending.pop()
        node = producer(tensor)
        if node is not None and node.op == "Concat" and _same_axis(node, concat):
            pending.extend(reversed(node.inputs))
        else:
            parts.append(tensor)
    changed = len(parts) > len(concat.inputs)
    if changed:
        concat.inputs = parts
    return changed


def _same_axis(node: gs.Node, concat: gs.Node) -> bool:
    rank = len(concat.outputs[0].shape)
    return not node.domain and node.attrs.get("axis", 0) % rank == concat.attrs["axis"] % rank
