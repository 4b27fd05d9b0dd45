"""Normalizations that are folded into the product behind them (steps FoldedLayerNorm and
FoldedRmsNorm, docs/decisions/norms-in-products.md).

    s = x V + a + residual      s, statistics of its rows = x V + a + residual
    y = norm(s) gamma + beta    z = (s W' - mean c) / deviation + b'
    z = y W + b

    W' = diag(gamma) W          c = column sums of W'          b' = b + beta W

No kernel is left for the norm, and y is never in memory. W' is rounded to the element type, and c
is summed from what is stored: so the rounding of W' multiplies s - mean, as that of W does. Times
decide, when all else is planned (plan/mergers.py).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.candidates import Candidate, Link, Refusal
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import (
    BIAS,
    FOLDED_LAYER_NORM,
    FOLDED_RMS_NORM,
    MOMENTS,
    NORMS,
    SCALE,
    STORE,
    Step,
)
from onnxbolt.graph import weights
from onnxbolt.graph.edit import Derived, Weight, sole_use, stand_alone
from onnxbolt.graph.names import fresh
from onnxbolt.match.matcher import fits
from onnxbolt.plan.mergers import Merger
from onnxbolt.problems.gemm_moments import PART

_REFUSED = "not folded into the next product"
_REMEDY = (
    f"only sm_90a has kernels for that: in 16-bit types, of rows of a multiple of {PART} columns"
)
# the largest element of a weight in fp16, so that sums of a few products stay finite
_LARGEST = 2.0**14
# fp16's least normal number; elements below it lose more than its rounding, the second number
_LEAST_NORMAL, _ROUNDING = 2.0**-14, 2.0**-11


def mergers(graph: gs.Graph, candidates: Sequence[Candidate]) -> Iterator[Merger | Refusal]:
    """The normalizations that the product behind them might compute, and why others are none."""
    producers = {c.output.name: c for c in candidates if _has_statistics(c)}
    readers = {c.anchor.node: c for c in candidates if _has_statistics(c)}
    taken = set[str]()  # products whose result's statistics are written already
    for norm in candidates:
        for x in (norm.anchor.x, *norm.tensors):
            writer = producers.get(x.name)
            if writer is None or x.name in taken:
                continue
            links = norm.anchor.op.as_epilogue(norm, x)
            if not links or norm.anchor.dtype is not writer.anchor.dtype:
                continue
            found = _merger(graph, writer, norm, links, readers)
            if isinstance(found, Merger):
                taken.add(x.name)
            if found is not None:
                yield found
            break


def _has_statistics(candidate: Candidate) -> bool:
    """True for a product of one layer that may read or write statistics of rows."""
    return (
        candidate.anchor.op.takes_statistics
        and len(candidate.widths) == 1
        and candidate.out is candidate.anchor.dtype
        and {STORE, *NORMS}.isdisjoint(candidate.steps)
    )


def _merger(
    graph: gs.Graph,
    writer: Candidate,
    norm: Candidate,
    links: Sequence[Link],
    readers: dict[gs.Node, Candidate],
) -> Merger | Refusal | None:
    """The merger of a normalization, whose `links` are those behind the writer's result; None where
    no product reads it."""
    behind = [readers[node] for node in norm.output.outputs if node in readers]
    behind = [reader for reader in behind if reader.anchor.x is norm.output]
    if not behind:
        return None
    reader, node = behind[0], norm.anchor.nodes[-1]
    if sole_use(graph, norm.output) is not reader.anchor.node:
        reason = f"{_REFUSED}, because others read its result as well"
        return Refusal(node.name, node.op, reason, norm.output.name, apart=True)
    at = next(i for i, link in enumerate(links) if link.step.name in NORMS)
    before = [link for link in links[:at] if link.step.name != STORE]
    if before and sole_use(graph, writer.output) is None:
        return None  # others read what the residual is added to
    folded = _Folded(norm, links[at], links[at + 1 :], reader)
    if reason := folded.loss():
        return Refusal(
            node.name, node.op, f"{_REFUSED}, because {reason}", norm.output.name, apart=True
        )
    result = before[-1].output if before else writer.output
    statistics = gs.Variable(
        fresh(graph, f"{result.name}_statistics"), np.dtype(np.float32), _shape(result)
    )
    stand_alone(statistics)
    written = (*writer.links, *before, Link(Step(MOMENTS), None, (), result))
    first = dataclasses.replace(writer, links=written, layers=(), statistics=statistics)
    second = folded.candidate(graph, result, statistics, set(first.nodes))
    if not (fits(first.links) and fits(second.links) and first.is_known(result)):
        return None
    apart = (writer, norm, reader)
    sizes = f"rows of {int(reader.anchor.weight.shape[0])} columns"
    return Merger((first, second), apart, node, _REFUSED, sizes, _REMEDY)


def _shape(result: gs.Tensor) -> list[int] | None:
    """The shape of the statistics of a tensor's rows; None if that of the tensor is not known."""
    if result.shape is None or not all(isinstance(size, int) for size in result.shape):
        return None
    *leading, columns = result.shape
    return [columns // PART, math.prod(leading), 2]


@dataclasses.dataclass(frozen=True)
class _Folded:
    """A normalization, the link that normalizes, its factors, and the product that reads it."""

    norm: Candidate
    link: Link
    factors: Sequence[Link]
    reader: Candidate

    def loss(self) -> str:
        """Why the weight with gamma as a factor cannot be stored; "" where it can."""
        if self.reader.anchor.dtype is not DType.F16:
            return ""
        weight = np.abs(self._exact_weight())
        if not weight.max(initial=0.0) <= _LARGEST:
            return f"gamma makes its weight larger than {_LARGEST:.0f}"
        small = np.where(weight < _LEAST_NORMAL, weight, 0)
        lost, whole = (np.linalg.norm(each, axis=0) for each in (small, weight))
        if np.any(lost > _ROUNDING * whole):
            return "gamma makes its weight too small for fp16"
        return ""

    def candidate(
        self, graph: gs.Graph, x: gs.Tensor, statistics: gs.Variable, done: set[gs.Node]
    ) -> Candidate:
        """The product that normalizes the rows of `x`; the writer has the nodes `done`."""
        reader, anchor = self.reader, self.reader.anchor
        stored = self._weight()
        weight = Weight(fresh(graph, f"{anchor.weight.name}_folded"), stored)
        centered = NORMS[self.link.step.name]
        sums = self._vector(graph, "sums", weight.values.astype(np.float64).sum(0))
        step = Step(FOLDED_LAYER_NORM if centered else FOLDED_RMS_NORM, self.link.step.params)
        nodes = (*(node for node in self.norm.nodes if node not in done), anchor.node)
        normalized = Link(step, sums if centered else None, nodes, anchor.output)
        product = anchor.op.normalizing(anchor, x, weight, statistics)
        links = (normalized, *self._epilogue(graph))
        return dataclasses.replace(reader, anchor=product, links=links, layers=())

    def _epilogue(self, graph: gs.Graph) -> Iterator[Link]:
        """The reader's steps, with beta's part of the bias."""
        links = list(self.reader.links)
        beta = self._factor(BIAS)
        if beta is not None:
            has_bias = bool(links) and links[0].step.name == BIAS
            bias = links.pop(0) if has_bias else Link(Step(BIAS), None, (), self._product)
            values = beta @ self._values(self.reader.anchor.weight)
            if bias.operand is not None:
                values = values + self._values(bias.operand).reshape(-1)
            yield dataclasses.replace(bias, operand=self._vector(graph, "bias", values))
        yield from links

    @property
    def _product(self) -> gs.Tensor:
        return self.reader.anchor.output

    def _vector(self, graph: gs.Graph, word: str, values: np.ndarray) -> gs.Constant:
        name = fresh(graph, f"{self.reader.anchor.weight.name}_{word}")
        return gs.Constant(name, values.astype(np.float32))

    def _weight(self) -> np.ndarray | Derived:
        """The weight with gamma as a factor, rounded once; a large one is not kept in memory."""
        weight = self.reader.anchor.weight
        shape, dtype = tuple(map(int, weight.shape)), np.dtype(weight.dtype)

        def rounded() -> np.ndarray:
            return self._exact_weight().astype(dtype)

        large = math.prod(shape) * dtype.itemsize >= weights.LARGE
        return Derived(rounded, dtype, shape) if large else rounded()

    def _exact_weight(self) -> np.ndarray:
        gamma, weight = self._factor(SCALE), self._values(self.reader.anchor.weight)
        return weight if gamma is None else weight * gamma[:, None]

    def _factor(self, step: str) -> np.ndarray | None:
        """Gamma or beta."""
        found = (link.operand for link in self.factors if link.step.name == step)
        operand = next(found, None)
        return None if operand is None else self._values(operand).reshape(-1)

    @staticmethod
    def _values(constant: gs.Tensor) -> np.ndarray:
        assert isinstance(constant, gs.Constant)  # patterns have looked
        values: np.ndarray = constant.values.astype(np.float64)
        return values
