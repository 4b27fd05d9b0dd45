"""Follows Reshape, Transpose, Split, Slice, Squeeze, Unsqueeze, Gather of one position and Expand
back to the tensor that they only rearrange, so that a kernel reads that tensor itself, by strides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import onnx_graphsurgeon as gs

from onnxbolt.graph.edit import constant_integers, producer
from onnxbolt.ops.attention.lengths import Size, numbers, sizes

# --- the places of an axis' elements -------------------------------------------------------------


@dataclass(frozen=True)
class Stride:
    """Elements from one index to the next: a number times symbolic sizes."""

    factor: int
    symbols: tuple[str, ...] = ()

    def __mul__(self, size: Size) -> Stride:
        if isinstance(size, int):
            return Stride(self.factor * size, self.symbols)
        return Stride(self.factor, tuple(sorted((*self.symbols, size))))


@dataclass(frozen=True)
class Atom:
    """Indices that lie evenly in memory."""

    size: Size
    stride: Stride

    def split(self, inner: int) -> tuple[Atom, Atom]:
        """The outer and the inner part; `inner` divides the size."""
        assert isinstance(self.size, int)  # symbolic sizes are not split
        return Atom(self.size // inner, self.stride * inner), Atom(inner, self.stride)


Axis: TypeAlias = tuple[Atom, ...]  # outermost first; empty if the axis has one index


@dataclass(frozen=True)
class Layout:
    """The elements of a tensor within another one: its axes, and the first element's place."""

    axes: tuple[Axis, ...]
    offset: int = 0


def of(tensor: gs.Tensor) -> Layout | None:
    """A tensor as it lies itself; None if its rank is unknown or it is empty."""
    if tensor.shape is None or 0 in tensor.shape:
        return None
    axes, stride = list[Axis](), Stride(1)
    for size in reversed(sizes(tensor)):
        axes.append(() if size == 1 else (Atom(size, stride),))
        stride = stride * size
    return Layout(tuple(reversed(axes)))


def merged(axis: Axis) -> Atom | None:
    """One atom for the axis, of size 1 if it has one index; None if it does not lie evenly."""
    if not axis:
        return Atom(1, Stride(0))
    *outer, last = axis
    for atom in reversed(outer):
        if not isinstance(last.size, int) or not isinstance(atom.size, int):
            return None
        if atom.stride != last.stride * last.size:
            return None
        last = Atom(atom.size * last.size, last.stride)
    return last


def regrouped(atoms: Sequence[Atom], shape: Sequence[Size]) -> tuple[Axis, ...] | None:
    """The atoms, in row-major order, as axes of `shape`; None if that is not certain.

    Axes are found from the left up to one whose size is no known product of atoms, and from the
    right down to it; it takes the rest.
    """
    rest, dims = tuple(atoms), list(shape)
    left, right = list[Axis](), list[Axis]()
    while dims and (found := _taken(rest, dims[0], last=False)) is not None:
        axis, rest = found
        left.append(axis)
        dims.pop(0)
    while len(dims) > 1:
        found = _taken(rest, dims.pop(), last=True)
        if found is None:
            return None
        axis, rest = found
        right.insert(0, axis)
    if dims and not _may_have(rest, dims[0]):
        return None
    if dims:
        return (*left, rest, *right)
    return None if rest else (*left, *right)


def _may_have(atoms: Axis, size: Size) -> bool:
    """False if atoms do not have `size` indices together."""
    counts = [atom.size for atom in atoms if isinstance(atom.size, int)]
    return isinstance(size, str) or len(counts) < len(atoms) or math.prod(counts) == size


def _taken(atoms: Axis, size: Size, last: bool) -> tuple[Axis, Axis] | None:
    """The first (or last) atoms that have `size` indices together, and the others."""
    if isinstance(size, str):
        index = -1 if last else 0
        if not atoms or atoms[index].size != size:
            return None
        return (atoms[index],), atoms[:-1] if last else atoms[1:]
    taken: Axis = ()
    while size > 1:
        if not atoms:
            return None
        atom, others = (atoms[-1], atoms[:-1]) if last else (atoms[0], atoms[1:])
        if isinstance(atom.size, str):
            return None
        if atom.size > size and atom.size % size == 0:
            outer, inner = atom.split(size if last else atom.size // size)
            atom, others = (inner, (*others, outer)) if last else (outer, (inner, *others))
        if size % int(atom.size):
            return None
        taken = (atom, *taken) if last else (*taken, atom)
        atoms, size = others, size // int(atom.size)
    return taken, atoms


# --- nodes that rearrange -------------------------------------------------------------------------


def through(node: gs.Node, layout: Layout, output: gs.Tensor) -> Layout | None:
    """The layout behind `node`, whose first input has `layout`; None if the node does more than
    rearrange, or its result is not certain."""
    rule = None if node.domain else _RULES.get(node.op)
    if rule is None or output.shape is None or 0 in output.shape:
        return None
    return rule(node, layout, output)


def rearranges(node: gs.Node) -> bool:
    """True for operators that `through` knows."""
    return not node.domain and node.op in _RULES


def _reshape(node: gs.Node, layout: Layout, output: gs.Tensor) -> Layout | None:
    atoms = [atom for axis in layout.axes for atom in axis]
    axes = regrouped(atoms, sizes(output))
    return None if axes is None else replace(layout, axes=axes)


def _transpose(node: gs.Node, layout: Layout, output: gs.Tensor) -> Layout:
    order = node.attrs.get("perm", range(len(layout.axes))[::-1])
    return replace(layout, axes=tuple(layout.axes[axis] for axis in order))


def _identity(node: gs.Node, layout: Layout, output: gs.Tensor) -> Layout:
    return layout


def _split(node: gs.Node, layout: Layout, output: gs.Tensor) -> Layout | None:
    axis = int(node.attrs.get("axis", 0)) % len(layout.axes)
    counts = [size for part in node.outputs if isinstance(size := part.shape[axis], int)]
    index = next(i for i, part in enumerate(node.outputs) if part is output)
    if len(counts) != len(node.outputs):
        return None
    return _part(layout, axis, sum(counts[:index]), counts[index])


def _slice(node: gs.Node, layout: Layout, output: gs.Tensor) -> Layout | None:
    starts, axes = constant_integers(node, 1), constant_integers(node, 3)
    steps = constant_integers(node, 4) if len(node.inputs) > 4 and node.inputs[4].name else [1]
    if len(node.inputs) < 4 or starts is None or axes is None or steps is None:
        return None
    result: Layout | None = layout
    for start, axis in zip(starts, axes, strict=True):
        whole, part = node.inputs[0].shape[axis], output.shape[axis]
        if set(steps) != {1} or not isinstance(whole, int) or not isinstance(part, int):
            return None
        begin = min(max(start + whole if start < 0 else start, 0), whole)
        result = None if result is None else _part(result, axis % len(layout.axes), begin, part)
    return result


def _gather(node: gs.Node, layout: Layout, output: gs.Tensor) -> Layout | None:
    """One position of an axis, which vanishes."""
    index, axis = constant_integers(node, 1), int(node.attrs.get("axis", 0)) % len(layout.axes)
    size = node.inputs[0].shape[axis]
    if index is None or tuple(node.inputs[1].shape) or not isinstance(size, int):
        return None
    part = _part(layout, axis, index[0] % size, 1)
    return part and replace(part, axes=part.axes[:axis] + part.axes[axis + 1 :])


def _expand(node: gs.Node, layout: Layout, output: gs.Tensor) -> Layout | None:
    """Copies along axes of one index lie at one place."""
    target, before = numbers(node.inputs[1]), sizes(node.inputs[0])
    after = sizes(output)
    new = len(after) - len(before)
    if target is None or len(target) != len(after):
        target = [None] * len(after)
    axes = list[Axis]()
    wanted = zip([1] * new + before, ((),) * new + layout.axes, after, target, strict=True)
    for size, axis, result, number in wanted:
        copies = result if isinstance(result, int) else number
        if size == 1 and isinstance(copies, int):
            axes.append((Atom(copies, Stride(0)),) if copies > 1 else ())
        elif size != 1 and (size in (result, number) or number == 1):
            axes.append(axis)
        else:
            return None
    return replace(layout, axes=tuple(axes))


def _part(layout: Layout, axis: int, begin: int, count: int) -> Layout | None:
    """`count` indices of an axis from `begin` on."""
    found = merged(layout.axes[axis])
    if found is None or (begin and found.stride.symbols):
        return None
    axes = list(layout.axes)
    axes[axis] = () if count == 1 else (Atom(count, found.stride),)
    return Layout(tuple(axes), layout.offset + begin * found.stride.factor)


_RULES = {
    "Reshape": _reshape,
    "Squeeze": _reshape,
    "Unsqueeze": _reshape,
    "Flatten": _reshape,
    "Transpose": _transpose,
    "Identity": _identity,
    "Split": _split,
    "Slice": _slice,
    "Gather": _gather,
    "Expand": _expand,
}


# --- queries, keys and values ---------------------------------------------------------------------

ROWS, HEADS = "bshd", "bhsd"  # the order of axes in memory


@dataclass(frozen=True, eq=False)
class View:
    """Queries, keys or values [batch, positions, heads, size] within `tensor`.

    ROWS: `tensor` is [batch, positions, ..], and a row holds groups of `pitch` elements. Head h is
    in group `first` + h, from element `lead` on; `whole`: the row has nothing else. HEADS: `tensor`
    is [batch, heads, positions, size]. Each head stands for `copies` of the operand, side by side.
    """

    tensor: gs.Tensor
    order: str
    batch: Size
    positions: Size
    heads: Size
    size: int
    pitch: int
    first: int = 0
    lead: int = 0
    whole: bool = True
    copies: int = 1

    def fits(self, begin: int, width: int) -> bool:
        """True if a row of `width` elements, of which `tensor` has those from `begin` on, still
        consists of groups, of which each head is in one."""
        if not isinstance(self.heads, int):  # then the Split in front hides where heads begin
            return False
        lead = (begin + self.lead) % self.pitch
        return width % self.pitch == 0 and lead + self.size <= self.pitch


@dataclass(frozen=True, eq=False)
class Followed:
    """A view, and the nodes between its tensor and the operand."""

    view: View
    nodes: tuple[gs.Node, ...]


# the axes [batch, heads, positions, size] of an operand with this layout; None if it has not these
Arrange: TypeAlias = Callable[[Layout], "tuple[Axis, Axis, Axis, Axis] | None"]


def by_heads(order: Sequence[int] = (0, 1, 2, 3)) -> Arrange:
    """For an operand whose axes in `order` are [batch, heads, positions, size]."""

    def arrange(layout: Layout) -> tuple[Axis, Axis, Axis, Axis] | None:
        if len(layout.axes) != 4:
            return None
        batch, heads, positions, size = (layout.axes[axis] for axis in order)
        return batch, heads, positions, size

    return arrange


def folded(heads: int, order: Sequence[int] = (0, 1, 2)) -> Arrange:
    """For an operand whose axes in `order` are [batch x heads, positions, size]."""

    def arrange(layout: Layout) -> tuple[Axis, Axis, Axis, Axis] | None:
        if len(layout.axes) != 3:
            return None
        both, positions, size = (layout.axes[axis] for axis in order)
        found = regrouped(both, ("", heads))
        return None if found is None else (found[0], found[1], positions, size)

    return arrange


def by_rows(heads: int) -> Arrange:
    """For an operand [batch, positions, heads x size], or by heads."""

    def arrange(layout: Layout) -> tuple[Axis, Axis, Axis, Axis] | None:
        if len(layout.axes) != 3:
            return by_heads()(layout)
        batch, positions, row = layout.axes
        width = math.prod(atom.size for atom in row if isinstance(atom.size, int))
        found = regrouped(row, (heads, width // heads)) if heads > 0 else None
        return None if found is None else (batch, found[0], positions, found[1])

    return arrange


def follow(
    tensor: gs.Tensor,
    arrange: Arrange,
    scaled: Callable[[gs.Node], gs.Tensor | None] = lambda node: None,
) -> Followed | None:
    """The operand `tensor` as a view of the tensor furthest back; None if it cannot be read by
    strides. `scaled` gives the tensor that a node only scales or casts, None for other nodes."""
    for root, layout, nodes in roots(tensor, scaled):
        axes = None if layout is None else arrange(layout)
        view = None if layout is None or axes is None else _view(root, axes, layout.offset)
        if view is not None:
            return Followed(view, nodes)
    return None


def heads_of(
    tensor: gs.Tensor, axis: int, scaled: Callable[[gs.Node], gs.Tensor | None]
) -> Iterator[int]:
    """Numbers of heads that `axis` of an operand, batch x heads, may have."""
    for _, layout, _ in roots(tensor, scaled):
        atoms = () if layout is None else layout.axes[axis]
        if len(atoms) > 1 and isinstance(heads := atoms[-1].size, int):
            yield heads


def roots(
    tensor: gs.Tensor, scaled: Callable[[gs.Node], gs.Tensor | None]
) -> Iterator[tuple[gs.Tensor, Layout | None, tuple[gs.Node, ...]]]:
    """Tensors that `tensor` may be read from, furthest back first, each with the layout of `tensor`
    in it and the nodes between them."""
    chain: list[tuple[gs.Node, gs.Tensor]] = []  # nodes with the output that is followed
    tensors = [tensor]
    while (node := producer(tensors[0])) is not None:
        source = node.inputs[0] if rearranges(node) else scaled(node)
        if source is None:
            break
        chain.insert(0, (node, tensors[0]))
        tensors.insert(0, source)
    for skipped, root in enumerate(tensors):
        layout = of(root)
        for node, output in chain[skipped:]:
            if layout is not None and rearranges(node):
                layout = through(node, layout, output)
        yield root, layout, tuple(node for node, _ in chain[skipped:])


def _view(root: gs.Tensor, axes: tuple[Axis, Axis, Axis, Axis], offset: int) -> View | None:
    whole, copies = of(root), 1
    batch, heads, positions, size = axes
    while heads and heads[-1].stride == Stride(0) and isinstance(heads[-1].size, int):
        copies *= heads[-1].size
        heads = heads[:-1]
    found = [merged(axis) for axis in (batch, heads, positions, size)]
    if whole is None or any(atom is None for atom in found):
        return None
    atoms = [atom for atom in found if atom is not None]
    depth = atoms[3].size
    if not isinstance(depth, int) or (depth > 1 and atoms[3].stride != Stride(1)):
        return None
    if (batch, heads, positions, size) == whole.axes and not offset:
        dims = atoms[0].size, atoms[2].size, atoms[1].size, depth
        return View(root, HEADS, *dims, depth, copies=copies)
    view = _rows(root, whole, offset, (atoms[0], atoms[1], atoms[2], atoms[3]))
    return view and replace(view, copies=copies)


def _rows(
    root: gs.Tensor, whole: Layout, offset: int, atoms: tuple[Atom, Atom, Atom, Atom]
) -> View | None:
    """The view of a tensor whose first axes are batch and positions."""
    batch, heads, positions, size = atoms
    if len(whole.axes) < 3:
        return None
    if [merged(axis) for axis in whole.axes[:2]] != [batch, positions] or heads.stride.symbols:
        return None
    assert isinstance(size.size, int)  # _view has looked
    row = sizes(root)[2:]
    pitch = heads.stride.factor if heads.size != 1 else size.size
    dims = batch.size, positions.size, heads.size, size.size
    if row == [heads.size, size.size] and pitch == size.size and not offset:
        return View(root, ROWS, *dims, pitch)
    if not all(isinstance(n, int) for n in (*row, heads.size)):
        return None
    width = math.prod(int(n) for n in row)
    first, lead = divmod(offset, pitch)
    if width % pitch or lead + size.size > pitch or first + int(heads.size) > width // pitch:
        return None
    everything = (width, 0) == (int(heads.size) * size.size, offset)
    return View(root, ROWS, *dims, pitch, first, lead, everything)
