"""Which nodes are deformable attention: GridSamples of the levels of an image, whose samples are
multiplied by weights and added up.

    y[n, q, h] = sum over l, p of weights[n, q, h, l p] sample(image l of x[n, :, h],
                                                               grid[n, q, h, l, p])

How exporters move values between x, grid, weights and y does not matter (moves.py): x [N, S, H D]
has the images of all levels as rows, one level after the other, and grid is [N, Q, H, L, P, 2].
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.candidates import Anchor, Refusal
from onnxbolt.dtypes import DType
from onnxbolt.graph.edit import producer
from onnxbolt.ops.base import FusedOp
from onnxbolt.ops.deformable_attention.moves import BATCH, MOVING, Moves, sizes_of, source
from onnxbolt.ops.grid_sample import Grid, grid_of
from onnxbolt.patterns.types import AnchorPattern, Match

MOST_LEVELS = 8  # as many as kernels take (custom_ops/ops/grid_sample/arguments.h)
_BEHIND = MOVING | {"Concat", "Mul", "ReduceSum"}  # operators between samples and the result
_MOST_VALUES = 2**24  # 128 MiB of float64; a detector's decoder has 2 million
_LARGE = "it has more samples than what its nodes do is found out with"
_MOST_STEPS = 12  # nodes between a sample and the result, on each way


@dataclass(frozen=True)
class Attended:
    """Heads, channels of a head, height and width of each level, points of each level, and how the
    images are sampled: all that a function body depends on."""

    heads: int
    size: int
    levels: tuple[int, ...]
    points: int
    grid: Grid

    @property
    def pixels(self) -> list[int]:
        """Those of each level."""
        return [h * w for h, w in zip(self.levels[::2], self.levels[1::2], strict=True)]

    @property
    def words(self) -> list[str]:
        """The words in the op type's name."""
        levels = zip(self.levels[::2], self.levels[1::2], strict=True)
        numbers = [f"{self.heads}x{self.size}x{self.points}", *(f"{h}x{w}" for h, w in levels)]
        return [*numbers, *self.grid.words]


@dataclass(frozen=True, eq=False)
class DeformableAnchor(Anchor):
    """An anchor with what it computes, and the tensors of grid and weights."""

    attended: Attended | None = None
    grid: gs.Tensor | None = None
    weights: gs.Tensor | None = None

    @property
    def further(self) -> tuple[gs.Tensor, ...]:
        """Grid and weights."""
        assert self.grid is not None  # the pattern has found them
        assert self.weights is not None
        return self.grid, self.weights


def anchors(op: FusedOp) -> tuple[AnchorPattern, ...]:
    """The first of the GridSamples."""
    return (AnchorPattern(("GridSample",), partial(_match, op)),)


def _match(op: FusedOp, node: gs.Node) -> Match:
    samples = list(_samples(node))
    result = _result(node)
    if result is None or not samples or samples[0] is not node:
        return None
    y, product = result
    x, grid, weights = _sources(samples, product)
    found = None if weights is None else _attended(samples, x, grid)
    if found is None or weights is None:
        return None
    dtype = DType.of(x.dtype)
    alike = (y.dtype, weights.dtype) == (x.dtype, x.dtype)
    if dtype is None or not alike or grid.dtype not in (x.dtype, np.float32):
        return Refusal(node.name, node.op, f"no kernel for its element type: {x.dtype}", x.name)
    if _values(found, x, grid) > _MOST_VALUES:
        return Refusal(node.name, node.op, _LARGE, y.name)
    nodes = _proven(samples, found, (x, grid, weights), y)
    if nodes is None:
        reason = "its samples are no deformable attention: they are moved or summed otherwise"
        return Refusal(node.name, node.op, reason, y.name)
    others = tuple(each for each in nodes if each is not node)
    return DeformableAnchor(op, node, x, None, dtype, (), others, found, grid, weights), ()


def _values(found: Attended, x: gs.Tensor, grid: gs.Tensor) -> int:
    """How many numbers `_proven` computes with at once."""
    channels = found.heads * found.size
    samples = int(grid.shape[1]) * len(found.pixels) * found.points
    batch = x.shape[0] if isinstance(x.shape[0], int) else BATCH
    return int(batch) * channels * max(samples, sum(found.pixels))


def _samples(node: gs.Node) -> Iterator[gs.Node]:
    """The GridSamples whose samples are summed with those of `node`, in the order of levels."""
    tensor = node.outputs[0]
    for _ in range(_MOST_STEPS):
        reader = _reader(tensor)
        if reader is None:
            return
        if reader.op == "Concat":
            for each in reader.inputs:
                found = producer(source(each))
                if found is None or found.op != "GridSample" or found.domain:
                    return
                yield found
            return
        if reader.op == "Mul":  # there is one level
            yield node
            return
        if reader.op not in MOVING:
            return
        tensor = reader.outputs[0]


def _reader(tensor: gs.Tensor) -> gs.Node | None:
    """The only node that reads a tensor."""
    return tensor.outputs[0] if len(tensor.outputs) == 1 and not tensor.outputs[0].domain else None


def _result(node: gs.Node) -> tuple[gs.Tensor, gs.Node] | None:
    """The last tensor behind the samples that only moves and the sum stand in front of, [N, Q, C],
    and the product of samples and weights."""
    tensor, product, summed = node.outputs[0], None, False
    y = None
    for _ in range(2 * _MOST_STEPS):
        reader = _reader(tensor)
        if reader is None or reader.op not in _BEHIND:
            break
        if reader.op == "Mul":
            if product is not None:
                break
            product = reader
        summed = summed or reader.op == "ReduceSum"
        tensor = reader.outputs[0]
        if summed and product is not None and tensor.shape is not None and len(tensor.shape) == 3:
            y = tensor
    return None if y is None or product is None else (y, product)


def _sources(
    samples: Sequence[gs.Node], product: gs.Node
) -> tuple[gs.Tensor, gs.Tensor, gs.Tensor | None]:
    """The tensors that images, positions and weights are parts of; no weights if there are several
    such tensors."""
    images = {t.name: t for node in samples for t in [source(node.inputs[0])]}
    grids = {t.name: t for node in samples for t in [_grid_source(node.inputs[1])]}
    (x, *others), (grid, *more) = images.values(), grids.values()
    given = [source(t) for t in product.inputs]
    weights = [tensor for tensor in given if not _is_sampled(tensor)]
    return x, grid, weights[0] if len(weights) == 1 and not others and not more else None


def _is_sampled(tensor: gs.Tensor) -> bool:
    """True for what GridSamples have computed."""
    node = producer(tensor)
    return node is not None and node.op in ("Concat", "GridSample")


def _grid_source(tensor: gs.Tensor) -> gs.Tensor:
    """The tensor [N, Q, H, L, P, 2] that positions are a part of."""
    for _ in range(_MOST_STEPS):
        node = producer(tensor)
        if tensor.shape is not None and len(tensor.shape) == 6:
            break
        if node is None or node.domain or node.op not in MOVING:
            break
        tensor = node.inputs[0]
    return tensor


def _attended(samples: Sequence[gs.Node], x: gs.Tensor, grid: gs.Tensor) -> Attended | None:
    """The sizes; None where they do not fit together, or are not known."""
    ways = {grid_of(node) for node in samples}
    rows, places = sizes_of(x), sizes_of(grid)
    if len(ways) != 1 or rows is None or places is None or len(rows) != 3 or len(places) != 6:
        return None
    (way,) = ways
    _, _, heads, levels, points, two = places
    shapes = [sizes_of(node.inputs[0]) for node in samples]
    sizes = [size for shape in shapes if shape and len(shape) == 4 for size in shape[2:]]
    pixels = sum(h * w for h, w in zip(sizes[::2], sizes[1::2], strict=True))
    fits = len(samples) == levels <= MOST_LEVELS and len(sizes) == 2 * levels
    if way is None or not fits or two != 2 or pixels != rows[1] or rows[2] % heads:
        return None
    way = replace(way, in_f32=grid.dtype == np.float32)
    return Attended(heads, rows[2] // heads, tuple(sizes), points, way)


def _proven(
    samples: Sequence[gs.Node],
    found: Attended,
    sources: tuple[gs.Tensor, gs.Tensor, gs.Tensor],
    y: gs.Tensor,
) -> tuple[gs.Node, ...] | None:
    """The nodes that compute `y`, none of which others read, in their order; None where they do
    something else."""
    x, grid, weights = sources
    b = int(x.shape[0]) if isinstance(x.shape[0], int) else BATCH
    moves, q = Moves(), int(grid.shape[1])
    h, d, p, levels = found.heads, found.size, found.points, len(samples)
    shapes = {
        x.name: (b, sum(found.pixels), h * d),
        grid.name: (b, q, h, levels, p, 2),
        weights.name: (b, q, h, levels * p),
    }
    given = {}
    for tensor in sources:
        shape = shapes[tensor.name]
        known = sizes_of(tensor)
        if known is None or known[1:] != list(shape[1:]):
            return None
        if isinstance(tensor.shape[0], int) and tensor.shape[0] != b:
            return None
        given[tensor.name] = np.arange(np.prod(shape), dtype=np.float64).reshape(shape)
        moves.give(tensor, given[tensor.name])
    rng, taken = np.random.default_rng(0), list[np.ndarray]()
    first = 0
    for level, (node, count) in enumerate(zip(samples, found.pixels, strict=True)):
        image = (
            given[x.name][:, first : first + count].reshape(b, count, h, d).transpose(0, 2, 3, 1)
        )
        at = given[grid.name][:, :, :, level].transpose(0, 2, 1, 3, 4)
        first += count
        hw = found.levels[2 * level : 2 * level + 2]
        if not _same(moves.of(node.inputs[0]), image.reshape(b * h, d, *hw)):
            return None
        if not _same(moves.of(node.inputs[1]), at.reshape(b * h, q, p, 2)):
            return None
        taken.append(rng.integers(0, 8, (b * h, d, q, p)).astype(np.float64))
        moves.give(node.outputs[0], taken[-1])
        moves.nodes[node] = None
    together = np.concatenate(taken, -1).reshape(b, h, d, q, levels * p)
    expected = np.einsum("bhdqi,bqhi->bqhd", together, given[weights.name])
    if not _same(moves.of(y), expected.reshape(b, q, h * d)):
        return None
    return _unshared(tuple(moves.nodes), y)


def _same(values: np.ndarray | None, expected: np.ndarray) -> bool:
    return values is not None and np.array_equal(values, expected)


def _unshared(nodes: Sequence[gs.Node], y: gs.Tensor) -> tuple[gs.Node, ...]:
    """The nodes without those whose results others read, and what these are computed from."""
    kept: dict[gs.Node, None] = {}
    for node in reversed(nodes):
        readers = [reader for t in node.outputs if t is not y for reader in t.outputs]
        if all(reader in kept for reader in readers):
            kept[node] = None
    return tuple(reversed(kept))
