"""Products of two tensors that are both computed at run time: similarities and correlations.

Its nodes are those of GEMMs whose weight is such a tensor. Kernels that begin to read weights
before the kernels in front of them have ended do not serve them (custom_ops/runtime/
dependent_launch.h).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import onnx_graphsurgeon as gs

from onnxbolt.candidates import Anchor, Candidate
from onnxbolt.dtypes import DType
from onnxbolt.forms import PLAIN
from onnxbolt.ops.base import FusedOp, Operation, Signature, Sizes, Stored, Tensors
from onnxbolt.ops.gemm import Gemm
from onnxbolt.ops.matmul import form
from onnxbolt.ops.products import operands
from onnxbolt.patterns.types import AnchorPattern, Match
from onnxbolt.problems import MatmulProblem


@dataclass(frozen=True, eq=False, kw_only=True)
class MatmulAnchor(Anchor):
    """A product by the rows [N, K] of a tensor; it has no weight."""

    rows: gs.Tensor

    @property
    def further(self) -> tuple[gs.Tensor, ...]:
        """The rows."""
        return (self.rows,)


class Matmul(FusedOp):
    """x [.., K], rows [N, K] to y [.., N]; both K and N may be symbolic."""

    name, op_type = "matmul", "FusedMatmul"
    problem_type = MatmulProblem
    takes_epilogue = True

    def __init__(self, gemm: Gemm) -> None:
        self._gemm = gemm  # the op of its nodes

    @property
    def kinds(self) -> tuple[str, ...]:
        """None: its nodes are those of another op."""
        return ()

    def prepare(self, graph: gs.Graph) -> Sequence[str]:
        """Bring products to the form that kernels compute."""
        count = form.turn(graph)
        return [f"products: {count} (second operands read by rows)"] if count else []

    def restore(self, graph: gs.Graph) -> int:
        """Take that back."""
        return form.turn_back(graph)

    def anchors(self) -> Sequence[AnchorPattern]:
        """MatMul by a Transpose of rows."""
        return (AnchorPattern(("MatMul",), self._match),)

    def _match(self, node: gs.Node) -> Match:
        x, rows = node.inputs[0], form.rows_of(node)
        dtype = DType.of(x.dtype)
        if rows is None or isinstance(x, gs.Constant) or dtype is None or rows.dtype != x.dtype:
            return None
        if x.shape is None or len(x.shape) < 2 or 0 in (*x.shape, *rows.shape):
            return None
        return MatmulAnchor(self, node, x, None, dtype, rows=rows), ()

    def channels(self, anchor: Anchor) -> int:
        """N, 0 if it is symbolic."""
        columns = _of(anchor).rows.shape[0]
        return columns if isinstance(columns, int) else 0

    def writes_slices(self, anchor: Anchor) -> bool:
        """True where the number of columns is known."""
        return bool(self.channels(anchor))

    def problem(self, candidate: Candidate, sizes: Sizes, stored: Stored | None) -> MatmulProblem:
        """The product of all leading dimensions' rows."""
        anchor = _of(candidate.anchor)
        columns, depth = sizes(anchor.rows)
        known = (size if isinstance(size, int) else 1 for size in anchor.rows.shape)
        return MatmulProblem(
            math.prod(sizes(anchor.x)[:-1]),
            columns,
            depth,
            anchor.dtype,
            candidate.out,
            candidate.chain,
            *known,
        )

    def operation(self, candidate: Candidate, stored: Stored, tensors: Tensors) -> Operation:
        """A GEMM by the rows as its weight; attribute `epilogue_params`."""
        anchor = _of(candidate.anchor)
        return Operation(
            Signature(self._gemm, anchor.dtype, 0, candidate.epilogue),
            [
                tensors.get(anchor.x, PLAIN),
                tensors.get(anchor.rows, PLAIN),
                *operands(candidate, (PLAIN,), tensors),
            ],
            candidate.parameters,
        )


def _of(anchor: Anchor) -> MatmulAnchor:
    assert isinstance(anchor, MatmulAnchor)  # the pattern makes no others
    return anchor
