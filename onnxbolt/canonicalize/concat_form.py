"""Simplifies a Concat of the outputs of a Split, or of the outputs of other Concats, along the same
axis.

    Concat(.., a, b, ..) where Split(x) = a, b  =  Concat(.., x, ..)
    Concat(.., Concat(a, b), ..)                =  Concat(.., a, b, ..)

A cross-stage block (CSPNet, YOLO) then passes one tensor around its layers instead of copies of its
two parts. In a dense block, where each Concat adds one feature map, all Concats then read the same
tensors, so that kernels can write and read these in one place (layout/slices.py).
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_graphsurgeon as gs

from onnxbolt.graph.edit import is_float, pinned, producer


def run(graph: gs.Graph) -> int:
    """Join the outputs of Splits, and flatten nested Concats; returns how many changed."""
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
    """Flatten the Concats, the last one first. Inner Concats that nothing reads afterwards stay in
    the graph until it is pruned."""
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
