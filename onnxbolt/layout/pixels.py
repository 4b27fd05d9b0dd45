"""Reshapes that leave a tensor's pixels and channels in order: between images and sequences, and
around a shuffle of channel groups."""

from __future__ import annotations

import onnx_graphsurgeon as gs

# ops whose rules lead out of channels last
_LEAVING = frozenset({"Flatten", "Reshape", "Squeeze", "Transpose"})
_SWAPPED = [0, 2, 1, 3, 4]


def kept_by(node: gs.Node) -> list[gs.Tensor]:
    """What comes of a node with its channels last, if what it reads has them so; nothing of one
    that leads out of that."""
    if node.op not in _LEAVING or joins_or_splits_pixels(node):
        return list(node.outputs)
    result = shuffled(node)
    return [] if result is None else [result]


def joins_or_splits_pixels(node: gs.Node) -> bool:
    """Whether a Reshape makes [N, C, L] of [N, C, H, W], or the reverse, as vision transformers
    do with their tokens."""
    x, y = node.inputs[0].shape, node.outputs[0].shape
    ranks = {len(shape) for shape in (x, y) if shape is not None}
    return (
        node.op == "Reshape"
        and ranks == {3, 4}
        and None not in x[:2]
        and list(x[:2]) == list(y[:2])
    )


def shuffled(node: gs.Node) -> gs.Tensor | None:
    """What comes of a Reshape of [N, C, H, W] to [N, g, C/g, H, W], a Transpose that swaps these
    two and a Reshape back, where the first of these is `node` and nobody else reads between them
    (ShuffleNet); None otherwise."""
    x, groups = node.inputs[0].shape, node.outputs[0].shape
    if (
        x is None
        or groups is None
        or (len(x), len(groups)) != (4, 5)
        or [x[0], *x[2:]] != [groups[0], *groups[3:]]
        or None in x
    ):
        return None
    if not all(isinstance(size, int) for size in (x[1], *groups[1:3])):
        return None
    transpose = _only_reader(node.outputs[0], "Transpose")
    if transpose is None or list(transpose.attrs.get("perm", ())) != _SWAPPED:
        return None
    last = _only_reader(transpose.outputs[0], "Reshape")
    return (
        last.outputs[0]
        if last is not None and list(last.outputs[0].shape or ()) == list(x)
        else None
    )


def _only_reader(tensor: gs.Tensor, op: str) -> gs.Node | None:
    return tensor.outputs[0] if len(tensor.outputs) == 1 and tensor.outputs[0].op == op else None
