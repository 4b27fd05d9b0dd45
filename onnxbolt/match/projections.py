"""Merge the projections of one input, for ops that read their results by strides:

    x U + a,  x V + b,  x W + c   =   columns of   x [U V W] + [a b c]

for vectors or constant matrices a, b and c.

One product reads x once and is launched once. Its result holds the projections' tensors side by
side; a Split gives them their names. An op that finds its operands behind the Split reads the
result itself (Anchor.strided), and nothing is left to read the Split. That merges Q, K and V of an
attention, or those two of them that have one input, and K and V that all layers of a decoder
compute of one encoder's result.

No merged product is predicted to be slower than its parts, on any architecture: tests hold that,
so no plan has to compare the two.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.candidates import Candidate, Strided
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import ADD, BIAS, CASTS
from onnxbolt.graph import promises, weights
from onnxbolt.graph.edit import Derived, add_constant, insert, pinned, remove
from onnxbolt.graph.names import fresh
from onnxbolt.graph.promises import stage
from onnxbolt.match import rotations
from onnxbolt.match.matcher import match
from onnxbolt.match.partition import partition


@dataclass(frozen=True, eq=False)
class _Projection:
    """A product of x and a constant [K, N], plus a bias [N] or rows [.., N] of the result's shape
    if there are any, and how its result is read."""

    product: gs.Node
    x: gs.Tensor
    weight: gs.Constant
    bias: gs.Constant | None
    result: gs.Variable
    nodes: tuple[gs.Node, ...]
    dtype: DType
    reads: tuple[Strided, ...]

    @property
    def width(self) -> int:
        return int(self.weight.shape[1])


@stage(requires=promises.SOUND, ensures=promises.KEPT)
def merge(graph: gs.Graph) -> list[str]:
    """Merge in place; returns a line for the report if anything was merged."""
    alike = defaultdict[Hashable, list[list[_Projection]]](list)  # groups with the same weights
    for group in _groups(graph):
        alike[tuple(each.weight.name for each in group)].append(group)
    count = 0
    for groups in alike.values():
        products = {each.product for group in groups for each in group}
        parts = [each.weight for each in groups[0]]
        if all(_is_small(part) or products.issuperset(part.outputs) for part in parts):
            weight = add_constant(graph, f"{parts[0].name}_merged", _side_by_side(parts))
            for group in groups:
                _replace(graph, group, weight)
                count += len(group)
    return [f"projections: {count} (projections of one input merged)"] if count else []


def _groups(graph: gs.Graph) -> Iterator[list[_Projection]]:
    """The projections of each input, in the order in which they are read: at least two, all of
    which can be read side by side."""
    candidates = partition(match(graph).candidates)
    made = {each.output.name: each for each in map(_without_cast, candidates) if each}
    moved = rotations.embedded(graph, candidates)
    reads = defaultdict[str, list[Strided]](list)
    for operand in (operand for each in candidates for operand in moved.strided(each)):
        reads[operand.tensor.name].append(operand)
    groups = defaultdict[Hashable, list[_Projection]](list)
    for name, operands in reads.items():
        found = _projection(made.get(name), operands)
        if (
            found
            and moved.left_over.issuperset(found.result.outputs)
            and not pinned(graph, found.result)
        ):
            groups[found.x.name, found.dtype].append(found)
    return (group for group in groups.values() if len(group) > 1 and _can_be_read(group))


def _without_cast(candidate: Candidate) -> Candidate | None:
    """The candidate up to a conversion at its end: a rotation may be computed in another type."""
    cast = candidate.steps[-1:] and candidate.steps[-1] in CASTS.values()
    return candidate.prefix(len(candidate.links) - 1) if cast else candidate


def _projection(candidate: Candidate | None, reads: Sequence[Strided]) -> _Projection | None:
    """The candidate as a projection; None unless it is a product of matrices, with at most a bias,
    whose result is a tensor of the source."""
    if candidate is None or candidate.anchor.node.op != "MatMul" or candidate.steps not in _STEPS:
        return None
    anchor = candidate.anchor
    bias = candidate.links[0].operand if candidate.links else None
    if bias is not None and not isinstance(bias, gs.Constant):
        return None
    return _Projection(
        anchor.node,
        anchor.x,
        anchor.weight,
        bias,
        candidate.output,
        candidate.nodes,
        anchor.dtype,
        tuple(reads),
    )


_STEPS = ((), (BIAS,), (ADD,))


def _can_be_read(group: Sequence[_Projection]) -> bool:
    """True if each result can be read beside those before it, and begins at a multiple of 16
    bytes."""
    *begins, width = itertools.accumulate((each.width for each in group), initial=0)
    return all(
        each.width % each.dtype.alignment == 0
        and all(read.fits(begin, width) for read in each.reads)
        for each, begin in zip(group, begins, strict=True)
    )


def _is_small(weight: gs.Constant) -> bool:
    """True if a copy of a weight, for nodes that keep it, is no loss."""
    return int(np.prod(weight.shape)) * weight.dtype.itemsize < weights.LARGE


def _side_by_side(parts: Sequence[gs.Constant]) -> np.ndarray | Derived:
    """[K, N] of all parts; large ones are not kept in memory."""
    shape = (parts[0].shape[0], sum(part.shape[1] for part in parts))
    dtype = parts[0].dtype

    def joined() -> np.ndarray:
        return np.concatenate([part.values for part in parts], axis=1)

    large = shape[0] * shape[1] * dtype.itemsize >= weights.LARGE
    return Derived(joined, dtype, shape) if large else joined()


def _replace(graph: gs.Graph, group: Sequence[_Projection], weight: gs.Constant) -> None:
    """Replace the group's nodes by one product and a Split, at the place of the first."""
    replaced = {node for each in group for node in each.nodes}
    first = next(node for node in graph.nodes if node in replaced)
    results = [each.result for each in group]
    axis = len(results[0].shape) - 1
    shape = [*results[0].shape[:axis], weight.shape[1]]

    def add(op: str, inputs: list[gs.Tensor], sources: Sequence[gs.Node]) -> gs.Variable:
        name = fresh(graph, f"{results[0].name}_merged")
        result = gs.Variable(name, results[0].dtype, shape)
        insert(graph, op, inputs, [result], sources, at=first)
        return result

    merged = add("MatMul", [group[0].x, weight], [each.product for each in group])
    if any(each.bias is not None for each in group):
        bias = add_constant(graph, f"{weight.name}_bias", _biases(group))
        merged = add("Add", [merged, bias], [node for each in group for node in each.nodes[1:]])
    merged.joined = tuple(results)
    widths = np.array([each.width for each in group], np.int64)
    parts = add_constant(graph, f"{merged.name}_parts", widths)
    insert(graph, "Split", [merged, parts], results, (), {"axis": axis}, at=first)
    remove(graph, replaced)


def _biases(group: Sequence[_Projection]) -> np.ndarray:
    """The biases side by side, zeros where there is none; rows of one for each row if some have
    these."""
    values = [np.zeros(each.width) if each.bias is None else each.bias.values for each in group]
    rows = next((value.shape[:-1] for value in values if value.size > value.shape[-1]), ())
    parts = [
        value if value.size > value.shape[-1] else np.broadcast_to(value.reshape(-1), (*rows, n))
        for value, n in zip(values, (each.width for each in group), strict=True)
    ]
    return np.concatenate(parts, axis=-1).astype(group[0].dtype.numpy)
