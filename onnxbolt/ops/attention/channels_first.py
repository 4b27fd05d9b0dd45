"""Attention over the pixels of an image whose channels are divided into heads, as YOLOv10 and its
successors have it:

    Reshape(x, [B, heads, size, pixels])  =  T1(Reshape(T(x), [B, pixels, heads, size]))
    Reshape(y, [B, C, H, W])              =  T'(Reshape(T2(y), [B, H, W, C]))

with T an image's axes in NHWC, T' back, and y [B, heads, size, pixels]. Kernels read the elements
of a head side by side, as they lie in NHWC, where T and T' vanish. A single head may have no axis,
as in EfficientViT and SHViT.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.forms import FIRST_TO_LAST, LAST_TO_FIRST
from onnxbolt.graph.edit import (
    add_constant,
    insert,
    producer,
    prune,
    rearranged,
    remove,
    sole_use,
    stand_alone,
    stand_in,
)
from onnxbolt.graph.names import fresh
from onnxbolt.graph.order import in_order
from onnxbolt.ops.attention import forms
from onnxbolt.ops.attention.lengths import Size, sizes
from onnxbolt.ops.attention.products import Attempt
from onnxbolt.ops.attention.scales import before
from onnxbolt.ops.base import FusedOp

_IMAGE = 4  # axes
_TO_LAST, _TO_FIRST = list(FIRST_TO_LAST[_IMAGE]), list(LAST_TO_FIRST[_IMAGE])
# by the number of axes: [B, pixels, heads, size] to [B, heads, size, pixels], and back
_PIXELS_LAST = {3: [0, 2, 1], 4: [0, 2, 3, 1]}
_PIXELS_FIRST = {3: [0, 2, 1], 4: [0, 3, 1, 2]}
_PARTS = frozenset({"Slice", "Split", "Transpose"})  # between a division and operands


def turn(op: FusedOp, graph: gs.Graph, among: Iterable[gs.Node]) -> list[gs.Node]:
    """Let attentions `among` the given ones read images in NHWC; returns those that it changed."""
    turned, made = list[gs.Node](), dict[str, gs.Tensor]()
    for node in among:
        attempt = None if isinstance(forms.match(op, node), tuple) else _first(node)
        if attempt is None:
            continue
        read = attempt.operands
        divisions = [each for x in (read.q, read.k, read.v) if (each := _division(x)) is not None]
        if len(divisions) == len((read.q, read.k, read.v)):
            image = divisions[0].inputs[0]
            for reshape in dict.fromkeys(divisions):
                for part in _divide(graph, reshape, made):
                    _join(graph, part, image)
            for reader in list(attempt.y.outputs):
                _join(graph, reader.outputs[0], image)
            turned.append(node)
    if turned:
        prune(graph)
        graph.nodes = in_order(graph)  # rows of an image may have readers in front of them
    return turned


def _first(node: gs.Node) -> Attempt | None:
    return next(iter(forms.attempts(node)), None)


def _division(tensor: gs.Tensor) -> gs.Node | None:
    """The Reshape that divides an image's channels into heads of which an operand is a part."""
    while (node := producer(tensor)) is not None:
        if node.op == "Reshape" and not node.domain:
            return node if _divides(node.inputs[0], node.outputs[0]) else None
        source = node.inputs[0] if node.op in _PARTS and not node.domain else before(node)
        if source is None:
            return None
        tensor = source
    return None


def _divides(image: gs.Tensor, heads: gs.Tensor) -> bool:
    """True for [B, C, H, W] and [B, heads, size, pixels] with C = heads x size, and for
    [B, C, pixels]."""
    if len(image.shape or ()) != _IMAGE or len(heads.shape or ()) not in _PIXELS_LAST:
        return False
    (batch, channels, *_), (same, *by_heads, _) = sizes(image), sizes(heads)
    known = isinstance(channels, int) and all(isinstance(size, int) for size in by_heads)
    return batch == same and known and math.prod(map(int, by_heads)) == channels


# --- rewriting ------------------------------------------------------------------------------------


def _divide(graph: gs.Graph, reshape: gs.Node, made: dict[str, gs.Tensor]) -> list[gs.Tensor]:
    """Divide an image in NHWC, and its heads into parts likewise; returns the tensors that then are
    Transposes."""
    x, y = reshape.inputs[0], reshape.outputs[0]
    _, *by_heads, pixels = sizes(y)
    rows = _rows(graph, x, pixels, reshape, made)
    if len(by_heads) > 1:
        target = add_constant(graph, f"{y.name}/shape", np.array([0, -1, *by_heads], np.int64))
        rows = rearranged(graph, "Reshape", [rows, target], y, _by_pixels(y), reshape)
    split, last = sole_use(graph, y), len(y.shape) - 1
    if split is None or split.op != "Split" or split.attrs.get("axis", 0) not in (last - 1, -2):
        _transpose_to(graph, [rows], reshape)
        return [y]
    parts = list(split.outputs)
    divided = [gs.Variable(fresh(graph, f"{part.name}/rows"), y.dtype) for part in parts]
    for each, part in zip(divided, parts, strict=True):
        each.shape = _by_pixels(part)
        stand_alone(each)
    inputs, attrs = [rows, *split.inputs[1:]], {**split.attrs, "axis": last}
    insert(graph, "Split", inputs, divided, [reshape, split], attrs, at=split)
    _transpose_to(graph, divided, split)
    remove(graph, [reshape])
    return parts


def _rows(
    graph: gs.Graph, x: gs.Tensor, pixels: Size, at: gs.Node, made: dict[str, gs.Tensor]
) -> gs.Tensor:
    """[B, pixels, C] of an image [B, C, H, W]; parts of an image's channels are parts of its
    rows."""
    if x.name in made:
        return made[x.name]
    split = producer(x)
    if split is not None and split.op == "Split" and split.attrs.get("axis", 0) in (1, -3):
        whole = _rows(graph, split.inputs[0], pixels, split, made)
        outputs = [gs.Variable(fresh(graph, f"{y.name}/rows"), y.dtype) for y in split.outputs]
        for part, y in zip(outputs, split.outputs, strict=True):
            part.shape = [whole.shape[0], pixels, y.shape[1]]
            stand_alone(part)
            made[y.name] = part
        inputs, attrs = [whole, *split.inputs[1:]], {**split.attrs, "axis": 2}
        insert(graph, "Split", inputs, outputs, [split], attrs, at=split)
        return made[x.name]
    batch, channels, *area = sizes(x)
    image = rearranged(graph, "Transpose", [x], x, [batch, *area, channels], at, perm=_TO_LAST)
    stand_in(image, x, channels_last=True)
    target = add_constant(graph, f"{x.name}/shape", np.array([0, -1, channels], np.int64))
    made[x.name] = rearranged(graph, "Reshape", [image, target], x, [batch, pixels, channels], at)
    return made[x.name]


def _by_pixels(heads: gs.Tensor) -> list[Size]:
    """The sizes of a tensor [B, heads, size, pixels] with pixels behind B."""
    return [sizes(heads)[axis] for axis in _PIXELS_FIRST[len(heads.shape)]]


def _transpose_to(graph: gs.Graph, rows: Sequence[gs.Tensor], node: gs.Node) -> None:
    """Make what a node writes Transposes of rows."""
    written, attrs = list(node.outputs), {"perm": _PIXELS_LAST[len(rows[0].shape)]}
    behind = [insert(graph, "Transpose", [each], [], [node], attrs, at=node) for each in rows]
    remove(graph, [node])
    for transpose, y in zip(behind, written, strict=True):
        transpose.outputs = [y]


def _join(graph: gs.Graph, heads: gs.Tensor, like: gs.Tensor) -> None:
    """Make images that are Reshapes of a tensor [B, heads, size, pixels] in NHWC. Those of open
    sizes are as large as the image `like`."""
    for reshape in list(heads.outputs):
        if reshape.op != "Reshape" or reshape.domain or reshape.inputs[0] is not heads:
            continue
        y = reshape.outputs[0]
        known = all(isinstance(size, int) for size in y.shape[1:])
        if not _divides(y, heads) or not (known or sizes(y)[2:] == sizes(like)[2:]):
            continue
        batch, channels, *area = sizes(y)
        rows = _turned(graph, heads, reshape)
        if known:
            ends = np.array([-1, *area, channels], np.int64)
            target: gs.Tensor = add_constant(graph, f"{y.name}/shape", ends)
        else:
            target = _shape_like(graph, y, like, reshape)
        image = rearranged(graph, "Reshape", [rows, target], y, [batch, *area, channels], reshape)
        stand_in(image, y, channels_last=True)
        behind = insert(graph, "Transpose", [image], [], [reshape], {"perm": _TO_FIRST}, at=reshape)
        remove(graph, [reshape])
        behind.outputs = [y]


def _shape_like(graph: gs.Graph, y: gs.Tensor, like: gs.Tensor, at: gs.Node) -> gs.Tensor:
    """The shape of `y` in NHWC, of which `like` has batch, height and width."""
    integers = gs.Variable(f"{y.name}/sizes", np.dtype(np.int64))
    axes = add_constant(graph, f"{y.name}/axes", np.array([0, 2, 3], np.int64))
    channels = add_constant(graph, f"{y.name}/channels", np.array([y.shape[1]], np.int64))
    shape = rearranged(graph, "Shape", [like], integers, [_IMAGE], at)
    first = rearranged(graph, "Gather", [shape, axes], integers, [3], at, axis=0)
    return rearranged(graph, "Concat", [first, channels], integers, [_IMAGE], at, axis=0)


def _turned(graph: gs.Graph, heads: gs.Tensor, at: gs.Node) -> gs.Tensor:
    """[B, pixels, heads, size] of [B, heads, size, pixels], which may be a Transpose itself."""
    source, node, perm = heads, producer(heads), _PIXELS_FIRST[len(heads.shape)]
    if node is not None and node.op == "Transpose" and not node.domain:
        source, perm = node.inputs[0], [node.attrs["perm"][axis] for axis in perm]
    if perm == sorted(perm):
        return source
    return rearranged(graph, "Transpose", [source], heads, _by_pixels(heads), at, perm=perm)
