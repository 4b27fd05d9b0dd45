"""Concat(.., a, b, ..) where Split(x) = a, b along the same axis  =  Concat(.., x, ..)

What a cross-stage block (CSPNet, YOLO) hands past its layers is then one tensor, and no copy of two parts of it.
"""
from __future__ import annotations

from collections.abc import Sequence

import onnx_graphsurgeon as gs

from onnxbolt.graph.edit import producer


def run(graph: gs.Graph) -> int:
    """Join what has been split; returns how many Concats changed."""
    return sum(_join(node) for node in graph.nodes if node.op == "Concat" and not node.domain and node.outputs[0].shape is not None)


def _join(concat: gs.Node) -> bool:
    left, joined = list(concat.inputs), list[gs.Tensor]()
    while left:
        split = _split_into(left, concat)
        joined.append(split.inputs[0] if split is not None else left[0])
        del left[:1 if split is None else len(split.outputs)]
    changed = len(joined) < len(concat.inputs)
    if changed:
        concat.inputs = joined
    return changed


def _split_into(tensors: Sequence[gs.Tensor], concat: gs.Node) -> gs.Node | None:
    """The Split along the Concat's axis whose outputs `tensors` begin with."""
    split, rank = producer(tensors[0]), len(concat.outputs[0].shape)
    if split is None or split.op != "Split" or split.domain or split.attrs.get("axis", 0) % rank != concat.attrs["axis"] % rank:
        return None
    first = tensors[:len(split.outputs)]
    same = len(first) == len(split.outputs) and all(a is b for a, b in zip(first, split.outputs, strict=True))
    return split if same and len(first) > 1 else None
