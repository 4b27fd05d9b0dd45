"""Layout-preserving nodes: those whose results are NHWC if their input is.

Choices among channels, Flatten, Reshape, Squeeze and Transpose are not, except Reshapes between
images and sequences, and channel shuffles.
"""

from __future__ import annotations

import onnx_graphsurgeon as gs

# operators that do not preserve NHWC, with the exceptions above
_LEAVING = frozenset({"ArgMax", "ArgMin", "Flatten", "Reshape", "Squeeze", "Transpose"})
_SWAPPED = [0, 2, 1, 3, 4]


def kept_by(node: gs.Node) -> list[gs.Tensor]:
    """The results that are NHWC if the node's input is; empty if the node does not preserve
    NHWC. For a channel shuffle, whose first node this is, the result of its last node."""
    if node.op not in _LEAVING or joins_or_splits_pixels(node):
        return list(node.outputs)
    result = shuffled(node)
    return [] if result is None else [result]


def joins_or_splits_pixels(node: gs.Node) -> bool:
    """True for a Reshape from [N, C, H, W] to [N, C, L] or back, as vision transformers have it
    around their tokens."""
    x, y = node.inputs[0].shape, node.outputs[0].shape
    ranks = {len(shape) for shape in (x, y) if shape is not None}
    return (
        node.op == "Reshape"
        and ranks == {3, 4}
        and None not in x[:2]
        and list(x[:2]) == list(y[:2])
    )


def shuffled(node: gs.Node) -> gs.Tensor | None:
    """The result of a channel shuffle that begins at `node`; None for any other node.

    ShuffleNet's channel shuffle is a Reshape from [N, C, H, W] to [N, g, C/g, H, W], a Transpose
    that swaps g and C/g, and a Reshape back, whose intermediate results have no other readers.
    """
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
