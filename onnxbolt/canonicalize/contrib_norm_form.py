"""ONNX Runtime's own norms of sums, written as the sums and the norms that they hold:

    SkipLayerNormalization(x, skip, gamma, beta, bias)   = LayerNormalization(x + bias + skip)
    SkipSimplifiedLayerNormalization                     = the same, with RMS normalization
    EmbedLayerNormalization(ids, segments, tables, ..)   = LayerNormalization(sum of embeddings)

onnxruntime.transformers writes them, for instance for all layers of BERT. A bias is then one of the
product in front of it, and embeddings are Gathers as others are. Semantics: ONNX Runtime,
docs/ContribOperators.md, and its CPU kernels, with which tests compare.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.canonicalize import norm_form
from onnxbolt.domains import CONTRIB
from onnxbolt.dtypes import DType
from onnxbolt.graph.edit import (
    Node,
    add_constant,
    insert,
    optional,
    pinned,
    remove,
    stand_alone,
)
from onnxbolt.graph.element_types import onnx_dtype
from onnxbolt.graph.names import fresh

_SKIPS = {
    "SkipLayerNormalization": norm_form.LAYER,
    "SkipSimplifiedLayerNormalization": norm_form.SIMPLIFIED,
}
_EMBED = "EmbedLayerNormalization"
_EPSILON = 1e-12  # the operators' default
_INT32 = np.dtype(np.int32)
_MASK, _INDEX = 7, 1  # the input for a mask, and the output for the number of its ones


def run(graph: gs.Graph) -> int:
    """Write all whose statistics nobody reads as sums and norms; returns how many."""
    found = [node for node in graph.nodes if node.domain == CONTRIB and _is_known(graph, node)]
    for node in found:
        _Written(graph, node).replace()
    return len(found)


def _is_known(graph: gs.Graph, node: gs.Node) -> bool:
    def read(index: int) -> bool:
        tensor = optional(node.outputs, index)
        return tensor is not None and (bool(tensor.outputs) or pinned(graph, tensor))

    if node.op in _SKIPS:
        return DType.of(node.inputs[0].dtype) is not None and not read(1) and not read(2)
    counts = not read(_INDEX) or optional(node.inputs, _MASK) is not None
    return node.op == _EMBED and counts and DType.of(node.inputs[2].dtype) is not None


class _Written:
    """The nodes that take a node's place."""

    def __init__(self, graph: gs.Graph, node: gs.Node) -> None:
        self.graph, self.node, self.y = graph, node, node.outputs[0]

    def replace(self) -> None:
        """Write them, and remove the node."""
        embeds = self.node.op == _EMBED
        total = self._embeddings() if embeds else self._skipped()
        stored, index = (optional(self.node.outputs, place) for place in (2 if embeds else 3, 1))
        if stored is not None:
            total = self._become(total, stored)
        if embeds and index is not None and (mask := self._input(_MASK)) is not None:
            self._become(self._ones(mask, index.dtype or _INT32), index)
        factors = map(self._input, (5, 6) if embeds else self._factors())
        self._normalize([total, *(factor for factor in factors if factor is not None)])

    def _factors(self) -> tuple[int, ...]:
        return (2, 3) if self.node.op == "SkipLayerNormalization" else (2,)

    def _input(self, index: int) -> gs.Tensor | None:
        return optional(self.node.inputs, index)

    def _become(self, tensor: gs.Tensor, output: gs.Tensor) -> gs.Tensor:
        """Let the node that computes `tensor` compute an output of this one; the output."""
        (made,) = tensor.inputs
        self.node.outputs.remove(output)
        made.outputs = [output]
        return output

    def _skipped(self) -> gs.Tensor:
        """x + bias + skip."""
        x, skip = self.node.inputs[:2]
        bias = self._input(self._factors()[-1] + 1)
        if bias is not None:
            x = self._add("Add", [x, bias], x.dtype)
        return self._add("Add", [x, skip], x.dtype)

    def _embeddings(self) -> gs.Tensor:
        """The sum of embeddings of words, positions and segments."""
        ids, segments, words, positions, kinds = map(self._input, range(5))
        places = self._input(8)
        total = self._gathered(words, ids)
        total = self._sum(total, self._gathered(positions, places or self._positions(ids)))
        if segments is None or kinds is None:
            return total
        return self._sum(total, self._gathered(kinds, segments))

    def _gathered(self, table: gs.Tensor, indices: gs.Tensor) -> gs.Tensor:
        return self._add("Gather", [table, indices], table.dtype, axis=0)

    def _sum(self, a: gs.Tensor, b: gs.Tensor) -> gs.Tensor:
        return self._add("Add", [a, b], a.dtype)

    def _positions(self, ids: gs.Tensor) -> gs.Tensor:
        """The place of each token in its sequence: a constant where the length is one, else of the
        ids' shape, so that it is known that the embeddings have that shape, too."""
        length = ids.shape[1] if ids.shape is not None else None
        if isinstance(length, int):
            return self._constant(np.arange(length, dtype=ids.dtype))
        zero, one = (self._constant(np.array(number, ids.dtype)) for number in (0, 1))
        ones = self._add("Add", [self._add("Mul", [ids, zero], ids.dtype), one], ids.dtype)
        axis = self._constant(np.array(1))
        return self._add("CumSum", [ones, axis], ids.dtype, exclusive=1)

    def _ones(self, mask: gs.Tensor, dtype: np.dtype) -> gs.Tensor:
        """The number of ones in each row of the mask."""
        one, axes = self._constant(np.ones((), mask.dtype)), self._constant(np.array([1]))
        ones = self._add("Equal", [mask, one], np.dtype(bool))
        kept = self._add("Cast", [ones], dtype, to=int(onnx_dtype(dtype)))
        return self._add("ReduceSum", [kept, axes], dtype, keepdims=0)

    def _normalize(self, inputs: Sequence[gs.Tensor]) -> None:
        """Put the norm of the sum, which is the first input, in the place of the node."""
        name, provenance = self.node.name, self.node.provenance
        attrs = {"axis": -1, "epsilon": float(self.node.attrs.get("epsilon", _EPSILON))}
        op = _SKIPS.get(self.node.op, norm_form.LAYER)
        at = next(i for i, node in enumerate(self.graph.nodes) if node is self.node)
        remove(self.graph, [self.node])
        norm = Node(op, name, attrs, inputs, [], "", provenance)
        if op == norm_form.SIMPLIFIED:
            norm.outputs, made = [self.y], [norm]
        else:
            norm.inputs.clear()
            made = norm_form.written(self.graph, norm, inputs, self.y)
        self.graph.nodes[at:at] = made

    def _constant(self, values: np.ndarray) -> gs.Constant:
        return add_constant(self.graph, f"{self.y.name}/constant", values)

    def _add(
        self, op: str, inputs: Sequence[gs.Tensor], dtype: np.dtype, **attrs: Any
    ) -> gs.Variable:
        result = gs.Variable(fresh(self.graph, f"{self.y.name}/{op}"), dtype)
        stand_alone(result)
        insert(self.graph, op, inputs, [result], [self.node], attrs, at=self.node)
        return result
