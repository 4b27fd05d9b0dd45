"""Fold blocks of pixels that become channels into the convolution behind them.

    Conv(SpaceToDepth(x, b), W, strides s, pads p)  =  Conv(x, W', strides b s, pads b p)

with W' [K, C, b R, b S] at (b r + i, b t + j) what W has at (r, t) for pixel (i, j) of a block. No
values are moved then, and no products are added. Images whose last blocks are not whole, and
Reshapes that change height or width, stay. Three forms of SpaceToDepth are recognized:

    Concat(x[.., 0::b, 0::b], x[.., 1::b, 0::b], ..)     Focus of YOLOv5 and YOLOX, in any order
    Reshape(Transpose(Reshape(x)))                        PyTorch's pixel_unshuffle
    SpaceToDepth(x)
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.graph.edit import (
    add_constant,
    auto_pad,
    constant_integers,
    conv_attributes,
    derived,
    is_float,
    producer,
    prune,
    sole_use,
)

_END = 2**31 - 1  # an end of a Slice that no image reaches
_UNSHUFFLED = [0, 1, 3, 5, 2, 4]  # [N, C, H/b, b, W/b, b] to [N, C, b, b, H/b, W/b]


@dataclass(frozen=True)
class _Blocks:
    """An image, the size of its blocks, and for each channel of the result that of the image, and
    row and column in a block. `last` is the node that has this result."""

    image: gs.Tensor
    size: int
    channels: tuple[tuple[int, int, int], ...]
    last: gs.Node

    @property
    def sources(self) -> tuple[str, ...]:
        """Names of the source's nodes that have made the result from the image."""
        found, pending = dict[gs.Node, None](), [self.last]
        while pending:
            node = pending.pop()
            found[node] = None
            inputs = (tensor for tensor in node.inputs if tensor is not self.image)
            pending.extend(p for t in inputs if (p := producer(t)) is not None and p not in found)
        return tuple(name for node in found for name in node.provenance)


@dataclass(frozen=True)
class _Grid:
    """Every so manieth pixel of an image, from a first one on, along height and width."""

    image: gs.Tensor
    first: tuple[int, int] = (0, 0)
    step: tuple[int, int] = (1, 1)


def run(graph: gs.Graph) -> int:
    """Rewrite all convolutions behind such blocks; returns how many."""
    count = sum(
        _folded(graph, node) for node in graph.nodes if node.op == "Conv" and not node.domain
    )
    if count:
        prune(graph)
    return count


def _folded(graph: gs.Graph, conv: gs.Node) -> bool:
    x, weight = conv.inputs[:2]
    if not isinstance(weight, gs.Constant) or not is_float(weight) or len(weight.shape) != 4:
        return False
    attributes = conv_attributes(conv)
    if auto_pad(conv) != "NOTSET" or attributes["group"] != 1 or attributes["dilations"] != [1, 1]:
        return False
    blocks = _blocks(graph, x) if sole_use(graph, x) is conv else None
    if blocks is None or len(blocks.channels) != weight.shape[1] or 0 in weight.shape:
        return False
    (k, _, r, s), b = weight.shape, blocks.size
    shape = (k, int(blocks.image.shape[1]), b * r, b * s)

    def spread(values: np.ndarray) -> np.ndarray:
        wide = np.zeros(shape, values.dtype)
        for place, (channel, i, j) in enumerate(blocks.channels):
            wide[:, channel, i::b, j::b] = values[:, place]
        return wide

    wide = add_constant(graph, weight.name, derived(weight, spread, weight.dtype, shape))
    conv.inputs = [blocks.image, wide, *conv.inputs[2:]]
    conv.provenance = tuple(dict.fromkeys((*blocks.sources, *conv.provenance)))
    conv.attrs |= {"kernel_shape": [b * r, b * s]}
    for name, fallback in (("strides", [1, 1]), ("pads", [0] * 4)):
        conv.attrs[name] = [b * n for n in conv.attrs.get(name, fallback)]
    conv.origin = None
    return True


def _blocks(graph: gs.Graph, tensor: gs.Tensor) -> _Blocks | None:
    """The blocks of which `tensor` has the pixels as channels; None where it has none."""
    node = producer(tensor)
    if node is None or node.domain:
        return None
    if node.op == "SpaceToDepth":
        return _by_pixel(node, int(node.attrs["blocksize"]))
    if node.op == "Concat":
        return _focus(node)
    return _unshuffled(graph, node) if node.op == "Reshape" else None


def _by_pixel(node: gs.Node, size: int) -> _Blocks | None:
    """The channels of a block's pixel lie behind one another."""
    image = node.inputs[0]
    count = _channels(image)
    if count is None or size < 2:
        return None
    order = ((c, i, j) for i, j, c in itertools.product(range(size), range(size), range(count)))
    return _Blocks(image, size, tuple(order), node)


def _channels(image: gs.Tensor) -> int | None:
    shape = image.shape
    known = shape is not None and len(shape) == 4 and isinstance(shape[1], int)
    return shape[1] if known else None


def _focus(concat: gs.Node) -> _Blocks | None:
    """A Concat along channels of grids of one image."""
    grids = [_grid(tensor) for tensor in concat.inputs]
    if len(grids) < 2 or None in grids or concat.attrs["axis"] not in (1, -3):
        return None
    found = [grid for grid in grids if grid is not None]
    image, (size, across) = found[0].image, found[0].step
    count = _channels(image)
    alike = all(grid.image is image and grid.step == (size, size) for grid in found)
    if count is None or size < 2 or size != across or not alike:
        return None
    firsts = [grid.first for grid in found]
    whole = all(_is_whole(image.shape[2 + at], size, [f[at] for f in firsts]) for at in (0, 1))
    if not whole or len(set(firsts)) < len(firsts):
        return None
    return _Blocks(image, size, tuple((c, *at) for at in firsts for c in range(count)), concat)


def _is_whole(pixels: object, size: int, firsts: Sequence[int]) -> bool:
    """True if grids have as many pixels along an axis as it has whole blocks: the last pixel of a
    block is in whole blocks alone, and Concat wants grids of one size."""
    return size - 1 in firsts or (isinstance(pixels, int) and pixels % size == 0)


def _grid(tensor: gs.Tensor, slices: int = 2) -> _Grid | None:
    """The grid that at most so many Slices of height and width make of an image; None for other
    nodes."""
    node = producer(tensor)
    if node is None or node.op != "Slice" or node.domain or not slices:
        return None
    bounds = [constant_integers(node, i) for i in range(1, 5)]
    inner = _grid(node.inputs[0], slices - 1) or _Grid(node.inputs[0])
    if None in bounds or node.inputs[0].shape is None or len(node.inputs[0].shape) != 4:
        return None
    first, step = list(inner.first), list(inner.step)
    for start, end, axis, stride in zip(*(bound or () for bound in bounds), strict=True):
        size, at = node.inputs[0].shape[axis], axis % 4 - 2
        whole = end >= _END or (isinstance(size, int) and end >= size)
        if at < 0 or start < 0 or stride < 1 or not whole or start >= stride or step[at] != 1:
            return None
        first[at], step[at] = int(start), int(stride)
    return _Grid(inner.image, (first[0], first[1]), (step[0], step[1]))


def _are_equal(ours: Sequence[object], theirs: Sequence[object]) -> bool:
    """True if three sizes are known to be the same ones: a Reshape keeps their product, so that
    two of them are enough."""
    pairs = zip(ours, theirs, strict=True)
    return sum(a == b and isinstance(a, int | str) and a != "" for a, b in pairs) >= 2


def _unshuffled(graph: gs.Graph, last: gs.Node) -> _Blocks | None:
    """The pixels of a channel lie behind one another."""
    turned = producer(last.inputs[0])
    apart = producer(turned.inputs[0]) if turned is not None else None
    if turned is None or apart is None or (turned.op, apart.op) != ("Transpose", "Reshape"):
        return None
    inner = (sole_use(graph, turned.outputs[0]), sole_use(graph, apart.outputs[0]))
    if inner != (last, turned) or list(turned.attrs.get("perm", ())) != _UNSHUFFLED:
        return None
    image, divided = apart.inputs[0], apart.outputs[0].shape
    count, result = _channels(image), last.outputs[0].shape
    if count is None or divided is None or len(divided) != 6 or result is None:
        return None
    size = divided[3]
    squares = isinstance(size, int) and size > 1 and size == divided[5] and divided[1] == count
    if not squares or len(result) != 4 or result[1] != count * size * size:
        return None
    batch, rows, columns = divided[0], divided[2], divided[4]
    pixels = [n * size if isinstance(n, int) else None for n in (rows, columns)]
    kept = _are_equal((image.shape[0], *image.shape[2:]), (batch, *pixels))
    if not kept or not _are_equal((result[0], *result[2:]), (batch, rows, columns)):
        return None
    order = itertools.product(range(count), range(size), range(size))
    return _Blocks(image, size, tuple(order), last)
