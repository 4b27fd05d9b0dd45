"""Merge the projections of one input, for ops that read their results by strides:

    x U + a,  x V + b,  x W + c   =   columns of   x [U V W] + [a b c]

for vectors or constant matrices a, b and c.

One product reads x once and is launched once. Its result holds the projections' tensors side by
side; a Split gives them their names. An op that finds its operands behind the Split reads the
result itself (Anchor.strided), and nothing is left to read the Split. That merges Q, K and V of an
attention, or those two of them that have one input, and K and V that all layers of a decoder
compute of one encoder's result. Products of codes of 8 bits are merged likewise, weights with their
scales, each with the Cast to 16 bits behind it.

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
from onnxbolt.canonicalize.quantized.scaling import DEQUANTIZE, new_tensor
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import ADD, BIAS, CASTS
from onnxbolt.graph import promises, weights
from onnxbolt.graph.edit import (
    Derived,
    add_constant,
    add_variable,
    insert,
    pinned,
    remove,
    stand_in,
)
from onnxbolt.graph.names import fresh
from onnxbolt.graph.promises import stage
from onnxbolt.match import rotations
from onnxbolt.match.matcher import match
from onnxbolt.match.partition import partition
from onnxbolt.ops.quantized.pattern import QuantizedAnchor, scales_of


@dataclass(frozen=True, eq=False)
class _Projection:
    """A product of x and a constant [K, N], plus a bias [N] or rows [.., N] of the result's shape
    if there are any, and how its result is read. `codes`: the anchor where both are codes."""

    product: gs.Node
    x: gs.Tensor
    weight: gs.Constant
    bias: gs.Constant | None
    result: gs.Variable
    nodes: tuple[gs.Node, ...]
    dtype: DType
    reads: tuple[Strided, ...]
    codes: QuantizedAnchor | None = None

    @property
    def reader(self) -> gs.Node:
        """The node that reads the weight."""
        return self.product if self.codes is None else self.codes.nodes[1]

    @property
    def alignment(self) -> int:
        """Columns that its width is a multiple of."""
        return self.dtype.alignment if self.codes is None else self.codes.dtype.alignment

    @property
    def key(self) -> Hashable:
        """Equal for projections of one input that may be merged."""
        scaling = None if self.codes is None else self.codes.scaling
        numbers = () if scaling is None else (float(scaling.scale), float(scaling.zero))
        return self.x.name, self.dtype, numbers

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
        readers = {each.reader for group in groups for each in group}
        parts = [each.weight for each in groups[0]]
        if all(_is_small(part) or readers.issuperset(part.outputs) for part in parts):
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
            groups[found.key].append(found)
    return (group for group in groups.values() if len(group) > 1 and _can_be_read(group))


def _without_cast(candidate: Candidate) -> Candidate | None:
    """The candidate up to a conversion at its end: a rotation may be computed in another type. A
    product of codes ends with its conversion to 16 bits."""
    if isinstance(candidate.anchor, QuantizedAnchor):
        return candidate
    cast = candidate.steps[-1:] and candidate.steps[-1] in CASTS.values()
    return candidate.prefix(len(candidate.links) - 1) if cast else candidate


def _projection(candidate: Candidate | None, reads: Sequence[Strided]) -> _Projection | None:
    """The candidate as a projection; None unless it is a product of matrices, with at most a bias,
    whose result is a tensor of the source."""
    if candidate is None or candidate.anchor.node.op != "MatMul":
        return None
    anchor, links, ends = candidate.anchor, candidate.links, _STEPS
    codes = anchor if isinstance(anchor, QuantizedAnchor) else None
    if codes is not None:  # behind the step that scales its sums
        links, ends = links[1:], _STEPS_OF_CODES
    if tuple(link.step.name for link in links) not in ends:
        return None
    bias = links[0].operand if links else None
    if bias is not None and not isinstance(bias, gs.Constant):
        return None
    return _Projection(
        anchor.node,
        anchor.x,
        anchor.weight,
        bias,
        candidate.output,
        candidate.nodes,
        candidate.out,
        tuple(reads),
        codes,
    )


_STEPS: tuple[tuple[str, ...], ...] = ((), (BIAS,), (ADD,))
_STEPS_OF_CODES: tuple[tuple[str, ...], ...] = tuple(
    (*bias, *cast)
    for bias in ((), (BIAS,))
    for cast in ((), *((CASTS[dtype],) for dtype in (DType.F16, DType.BF16)))
)


def _can_be_read(group: Sequence[_Projection]) -> bool:
    """True if each result can be read beside those before it, and begins at a multiple of 16
    bytes."""
    *begins, width = itertools.accumulate((each.width for each in group), initial=0)
    return all(
        each.width % each.alignment == 0 and all(read.fits(begin, width) for read in each.reads)
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

    anchors = [each.codes for each in group if each.codes is not None]
    made = group[0].product.outputs[0].dtype  # in front of a Cast

    def add(
        op: str, inputs: list[gs.Tensor], sources: Sequence[gs.Node], **attrs: object
    ) -> gs.Variable:
        name = fresh(graph, f"{results[0].name}_merged")
        result = gs.Variable(name, results[0].dtype if op == "Cast" else made, shape)
        insert(graph, op, inputs, [result], sources, attrs, at=first)
        return result

    factors = _values(graph, anchors, weight, first) if anchors else [group[0].x, weight]
    merged = add("MatMul", factors, [each.product for each in group])
    behind = [node for each in group for node in each.nodes if node is not each.product]
    if any(each.bias is not None for each in group):
        bias = add_constant(graph, f"{weight.name}_bias", _biases(group, made))
        merged = add("Add", [merged, bias], behind)
    if results[0].dtype != made:
        merged = add("Cast", [merged], behind, to=group[0].dtype.onnx)
    merged.joined = tuple(results)
    widths = np.array([each.width for each in group], np.int64)
    parts = add_constant(graph, f"{merged.name}_parts", widths)
    insert(graph, "Split", [merged, parts], results, (), {"axis": axis}, at=first)
    remove(graph, replaced)


def _values(
    graph: gs.Graph, anchors: Sequence[QuantizedAnchor], weight: gs.Constant, at: gs.Node
) -> list[gs.Tensor]:
    """The values of the codes x, and of the weight, whose columns have their scales side by
    side."""
    reads = anchors[0].reader
    x = add_variable(graph, f"{reads.outputs[0].name}_merged", reads.outputs[0])
    stand_in(x, reads.outputs[0])
    insert(graph, DEQUANTIZE, list(reads.inputs), [x], [each.reader for each in anchors], at=at)
    scales = np.concatenate([scales_of(each).values for each in anchors]).astype(x.dtype)
    given = add_constant(graph, f"{weight.name}_scales", scales)
    values = new_tensor(graph, f"{weight.name}_values", given.dtype, weight.shape)
    sources = [each.nodes[1] for each in anchors]
    insert(graph, DEQUANTIZE, [weight, given], [values], sources, {"axis": 1}, at=at)
    return [x, values]


def _biases(group: Sequence[_Projection], dtype: np.dtype) -> np.ndarray:
    """The biases side by side, zeros where there is none; rows of one for each row if some have
    these."""
    values = [np.zeros(each.width) if each.bias is None else each.bias.values for each in group]
    rows = next((value.shape[:-1] for value in values if value.size > value.shape[-1]), ())
    parts = [
        value if value.size > value.shape[-1] else np.broadcast_to(value.reshape(-1), (*rows, n))
        for value, n in zip(values, (each.width for each in group), strict=True)
    ]
    return np.concatenate(parts, axis=-1).astype(dtype)
