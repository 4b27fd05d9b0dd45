"""Recognizes nodes that divide images into windows, or unite windows to images, by the rows that
they move: Reshape and Transpose in any number and order, and rolls of the image beside them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.graph.edit import constant_integers, constant_values, producer, sole_use
from onnxbolt.graph.windows import Windows, fitted
from onnxbolt.ops.attention import views
from onnxbolt.ops.attention.lengths import Size
from onnxbolt.ops.attention.views import Atom, Layout, Stride


@dataclass(frozen=True, eq=False)
class Moved:
    """An image [batch, height, width, channels], and the nodes between it and its windows.

    `flat`: the image with one axis for its pixels, [batch, height x width, channels], and the
    Reshape between the two; None if there is none. Without such a Reshape it is `image` itself."""

    image: gs.Tensor
    windows: Windows
    nodes: tuple[gs.Node, ...]
    flat: tuple[gs.Tensor, *tuple[gs.Node, ...]] | None


# --- from windows back to the image ---------------------------------------------------------------


def divided(tensor: gs.Tensor) -> Moved | None:
    """The image whose windows `tensor` [batch x windows, positions, channels] is; None if no image
    is known whose rows have another order."""
    chain = list[tuple[gs.Node, gs.Tensor]]()
    source = tensor
    while (node := producer(source)) is not None and views.rearranges(node):
        chain.insert(0, (node, source))
        source = node.inputs[0]
        rows = _rows_within(source, chain)
        if rows is not None:
            nodes = tuple(node for node, _ in chain)
            moved = (_unrolled if len(source.shape) == 4 else _flat)(source, rows, nodes)
            if moved is not None and not moved.windows.keep_order:
                return moved
    return None


def _rows_within(image: gs.Tensor, chain: Sequence[tuple[gs.Node, gs.Tensor]]) -> np.ndarray | None:
    """The pixel at each position of each window, [windows, positions], where `chain` makes windows
    of an image."""
    whole, layout = views.of(image), views.of(image)
    if whole is None or len(whole.axes) not in (3, 4) or not _is_known(image.shape[1:]):
        return None
    for node, output in chain:
        layout = None if layout is None else views.through(node, layout, output)
    if layout is None or len(layout.axes) != 3 or layout.axes[2] != whole.axes[-1]:
        return None
    outer, batch = layout.axes[0], whole.axes[0]
    if outer[: len(batch)] != batch:
        return None
    rows = _places((*outer[len(batch) :], *layout.axes[1]), image.shape[-1])
    positions = math.prod(int(atom.size) for atom in layout.axes[1])
    return None if rows is None else rows.reshape(-1, positions)


def _flat(image: gs.Tensor, rows: np.ndarray, nodes: tuple[gs.Node, ...]) -> Moved | None:
    """The windows of an image with one axis for its pixels."""
    windows = fitted(rows)
    return None if windows is None else Moved(image, windows, nodes, (image,))


def _unrolled(image: gs.Tensor, rows: np.ndarray, nodes: tuple[gs.Node, ...]) -> Moved | None:
    """The windows of the image before it was rolled."""
    height, width, channels = image.shape[1:]
    while (node := producer(image)) is not None and (roll := _roll(node)) is not None:
        rows = roll.pixels(height, width)[rows]
        image, nodes = roll.source, (*roll.nodes, *nodes)
    windows = fitted(rows, width)
    if windows is None:
        return None
    before = producer(image)
    flat = None
    if before is not None and before.op == "Reshape" and not before.domain:
        shape = before.inputs[0].shape
        if shape is not None and list(shape[1:]) == [height * width, channels]:
            flat = before.inputs[0], before
    return Moved(image, windows, nodes, flat)


# --- from windows forward to the image ------------------------------------------------------------


def united(graph: gs.Graph, tensor: gs.Tensor, windows: Windows, batch: Size) -> Moved | None:
    """The image of `batch` that nodes make of its windows `tensor`; None if they make something
    else, or a value between is read elsewhere."""
    nodes = tuple[gs.Node, ...]()
    layout: Layout | None = _as_windows(tensor, windows, batch)
    while layout is not None and (node := sole_use(graph, tensor)) is not None:
        if not views.rearranges(node):
            return None
        tensor, nodes = node.outputs[0], (*nodes, node)
        layout = views.through(node, layout, tensor)
        rows = None if layout is None else _rows_of(tensor, layout, batch, windows)
        if rows is not None and len(tensor.shape) == 3:
            same = np.array_equal(rows, windows.back())
            return Moved(tensor, windows, nodes, (tensor,)) if same else None
        if rows is not None and (found := _rolled(graph, tensor, rows, windows)) is not None:
            image, rolls = found
            return Moved(image, windows, (*nodes, *rolls), _flattened(graph, image))
    return None


def _as_windows(tensor: gs.Tensor, windows: Windows, batch: Size) -> Layout:
    """The layout of [batch x windows, positions, channels]."""
    row = Stride(int(tensor.shape[2]))
    atoms = (
        Atom(batch, row * windows.pixels),
        Atom(windows.count, row * windows.positions),
        Atom(windows.positions, row),
        Atom(tensor.shape[2], Stride(1)),
    )
    first, second, third, last = ((atom,) if atom.size != 1 else () for atom in atoms)
    return Layout(((*first, *second), third, last))


def _rows_of(image: gs.Tensor, layout: Layout, batch: Size, windows: Windows) -> np.ndarray | None:
    """The row, window * positions + position, of each pixel; None if this is no such image."""
    if list(image.shape[1:-1]) not in ([windows.height, windows.width], [windows.pixels]):
        return None
    channels = image.shape[-1]
    first = Atom(batch, Stride(channels) * windows.pixels)
    if layout.axes[0] != ((first,) if batch != 1 else ()):
        return None
    if layout.axes[-1] != ((Atom(channels, Stride(1)),) if channels != 1 else ()):
        return None
    return _places([atom for axis in layout.axes[1:-1] for atom in axis], channels)


def _rolled(
    graph: gs.Graph, image: gs.Tensor, rows: np.ndarray, windows: Windows
) -> tuple[gs.Tensor, tuple[gs.Node, ...]] | None:
    """The image in its own order: `image`, or what rolls make of it; with the rolls' nodes."""
    nodes, back = tuple[gs.Node, ...](), windows.back()
    while not np.array_equal(rows, back):
        roll = _roll_of(graph, image)
        if roll is None:
            return None
        image, nodes = roll.nodes[-1].outputs[0], (*nodes, *roll.nodes)
        rows = rows[roll.pixels(windows.height, windows.width)]
    return image, nodes


def _flattened(graph: gs.Graph, image: gs.Tensor) -> tuple[gs.Tensor, gs.Node] | None:
    """The image with one axis for its pixels, if only a Reshape reads it that makes it so."""
    node = sole_use(graph, image)
    if node is None or node.op != "Reshape" or node.domain:
        return None
    shape, (height, width, channels) = node.outputs[0].shape, image.shape[1:]
    fits = shape is not None and list(shape[1:]) == [height * width, channels]
    return (node.outputs[0], node) if fits else None


# --- parts ----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Roll:
    """Nodes whose result at index i of an axis, 1 or 2, is that of `source` at i + shift."""

    source: gs.Tensor
    axis: int
    shift: int
    nodes: tuple[gs.Node, ...]

    def pixels(self, height: int, width: int) -> np.ndarray:
        """The source's pixel for each of the result: int64 [height * width]."""
        pixels = np.arange(height * width).reshape(height, width)
        return np.roll(pixels, -self.shift, self.axis - 1).reshape(-1)


def _roll(node: gs.Node) -> _Roll | None:
    """The roll of an image that ends with `node`."""
    image = node.outputs[0].shape
    if node.domain or image is None or len(image) != 4 or not _is_known(image[1:]):
        return None
    rule = {"Concat": _of_slices, "Gather": _of_indices}.get(node.op)
    found = rule(node) if rule is not None else None
    return found if found is not None and found.axis in (1, 2) else None


def _of_slices(concat: gs.Node) -> _Roll | None:
    """Concat(x[shift:], x[:shift])"""
    if len(concat.inputs) != 2:
        return None
    behind, front = map(producer, concat.inputs)
    axis = int(concat.attrs["axis"]) % 4
    size = concat.outputs[0].shape[axis]
    if behind is None or front is None:
        return None
    rest, first = _bounds(behind, axis, size), _bounds(front, axis, size)
    if rest is None or first is None:
        return None
    shift, end = rest
    if end != size or first != (0, shift) or behind.inputs[0] is not front.inputs[0]:
        return None
    return _Roll(behind.inputs[0], axis, shift, (behind, front, concat))


def _bounds(node: gs.Node, axis: int, size: int) -> tuple[int, int] | None:
    """The indices of the axis that a Slice takes, if it divides no other."""
    if node.op != "Slice" or node.domain:
        return None
    starts, ends, axes = (constant_integers(node, index) for index in (1, 2, 3))
    steps = constant_integers(node, 4) if len(node.inputs) > 4 else [1]
    if starts is None or ends is None or axes is None or steps != [1] or len(axes) != 1:
        return None
    if axes[0] % 4 != axis:
        return None
    begin, end, _ = slice(starts[0], ends[0]).indices(size)
    return begin, end


def _of_indices(gather: gs.Node) -> _Roll | None:
    indices = constant_values(gather.inputs[1])
    axis = int(gather.attrs.get("axis", 0)) % 4
    size = gather.outputs[0].shape[axis]
    if indices is None or indices.shape != (size,):
        return None
    shift = int(indices[0]) % size
    if not np.array_equal(indices % size, (np.arange(size) + shift) % size):
        return None
    return _Roll(gather.inputs[0], axis, shift, (gather,))


def _roll_of(graph: gs.Graph, image: gs.Tensor) -> _Roll | None:
    """The roll that alone reads an image."""
    ends = {
        reader if reader.op == "Gather" else sole_use(graph, reader.outputs[0])
        for reader in image.outputs
    }
    end = next(iter(ends), None) if len(ends) == 1 else None
    roll = None if end is None else _roll(end)
    ours = roll is not None and roll.source is image
    return roll if ours and not any(image is output for output in graph.outputs) else None


def _places(atoms: Sequence[Atom], channels: int) -> np.ndarray | None:
    """The rows of `channels` elements in which the atoms' elements are, in the atoms' order."""
    rows = np.zeros(1, np.int64)
    for atom in atoms:
        stride = atom.stride
        if isinstance(atom.size, str) or stride.symbols or stride.factor % channels:
            return None
        steps = np.arange(atom.size) * (stride.factor // channels)
        rows = (rows[:, None] + steps).reshape(-1)
    return rows


def _is_known(shape: Sequence[Size]) -> bool:
    return all(isinstance(size, int) and size > 0 for size in shape)
