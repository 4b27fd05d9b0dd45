"""Attention over windows of images, read from the images and written to one: the Gathers of rows
that match/windows.py puts around it become the addresses of its operands and its result."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.candidates import Refusal
from onnxbolt.graph.edit import constant_values, only_reader, producer
from onnxbolt.graph.windows import Windows, fitted
from onnxbolt.ops.attention.found import AttentionAnchor
from onnxbolt.ops.attention.views import ROWS
from onnxbolt.patterns.types import Match


@dataclass(frozen=True, eq=False)
class _Image:
    """An image, its windows, and the nodes between it and a tensor of windows."""

    tensor: gs.Tensor
    windows: Windows
    nodes: tuple[gs.Node, ...]


def past(match: Callable[[gs.Node], Match]) -> Callable[[gs.Node], Match]:
    """`match`, whose anchors read and write images where all operands and the result are windows of
    images."""

    def wider(node: gs.Node) -> Match:
        found = match(node)
        if found is None or isinstance(found, Refusal):
            return found
        anchor, links = found
        assert isinstance(anchor, AttentionAnchor)  # attention's patterns make no others
        return _widened(anchor) or anchor, links

    return wider


def _widened(anchor: AttentionAnchor) -> AttentionAnchor | None:
    """The anchor reading and writing images; None if one of its tensors is no windows of one."""
    found = anchor.attention
    views = (found.q, found.k, found.v)
    images = [_divided(view.tensor) if view.order == ROWS else None for view in views]
    after = _united(found.output) if found.joined else None
    q, k, v = images
    if q is None or k is None or v is None or after is None:
        return None
    if any(image.windows != q.windows for image in (k, v, after)):
        return None
    own = dict.fromkeys(node for image in (q, k, v) for node in image.nodes)
    inside = {*anchor.nodes, *own}
    if not all(inside.issuperset(node.outputs[0].outputs) for node in own):
        return None
    attention = dataclasses.replace(
        found,
        q=dataclasses.replace(found.q, tensor=q.tensor),
        k=dataclasses.replace(found.k, tensor=k.tensor),
        v=dataclasses.replace(found.v, tensor=v.tensor),
        output=after.tensor,
        windows=q.windows,
    )
    others = (*own, *anchor.others, *after.nodes)
    return dataclasses.replace(anchor, x=q.tensor, others=others, attention=attention)


def _divided(tensor: gs.Tensor) -> _Image | None:
    """Reshape(Gather(image, windows)), the image perhaps behind one more Reshape."""
    last = _reshape(producer(tensor))
    gather = None if last is None else producer(last.inputs[0])
    if last is None or gather is None or (found := _gathered(gather, 2)) is None:
        return None
    before = _reshape(producer(gather.inputs[0]))
    if before is not None and _is_flat(before.inputs[0], gather.inputs[0]):
        width = before.inputs[0].shape[2]
        windows = fitted(found, width)
        return _image(before.inputs[0], windows, (before, gather, last))
    return _image(gather.inputs[0], fitted(found), (gather, last))


def _united(tensor: gs.Tensor) -> _Image | None:
    """The image that Gather(Reshape(tensor), back) is, perhaps before one more Reshape."""
    first = _reshape(only_reader(tensor))
    gather = None if first is None else only_reader(first.outputs[0])
    if first is None or gather is None or (found := _gathered(gather, 1)) is None:
        return None
    rows = np.argsort(found).reshape(-1, tensor.shape[1])
    image = gather.outputs[0]
    last = _reshape(only_reader(image))
    if last is not None and _is_flat(last.outputs[0], image):
        windows = fitted(rows, last.outputs[0].shape[2])
        return _image(last.outputs[0], windows, (first, gather, last))
    return _image(image, fitted(rows), (first, gather))


def _image(tensor: gs.Tensor, windows: Windows | None, nodes: tuple[gs.Node, ...]) -> _Image | None:
    return None if windows is None else _Image(tensor, windows, nodes)


def _gathered(node: gs.Node, rank: int) -> np.ndarray | None:
    """The indices of rank `rank` by which a node gathers rows of [batch, rows, channels]."""
    if node.op != "Gather" or node.domain or node.attrs.get("axis", 0) != 1:
        return None
    indices = constant_values(node.inputs[1])
    ranks = (len(node.inputs[0].shape or ()), -1 if indices is None else indices.ndim)
    return indices if ranks == (3, rank) else None


def _is_flat(image: gs.Tensor, rows: gs.Tensor) -> bool:
    """True if `rows` is an image [batch, height, width, channels] with one axis for its pixels."""
    if image.shape is None or len(image.shape) != 4 or not isinstance(image.shape[2], int):
        return False
    return image.shape[0] == rows.shape[0] and image.shape[3] == rows.shape[2]


def _reshape(node: gs.Node | None) -> gs.Node | None:
    return node if node is not None and node.op == "Reshape" and not node.domain else None
