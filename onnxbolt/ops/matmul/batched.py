"""Products of two tensors with a matrix of its own for each batch, as Mask2Former's of queries by
an image's features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import onnx_graphsurgeon as gs

from onnxbolt.candidates import Anchor, Candidate
from onnxbolt.dtypes import DType
from onnxbolt.forms import PLAIN
from onnxbolt.ops.base import Described, FusedOp, Operation, Signature, Sizes, Stored, Tensors
from onnxbolt.ops.body import Body, epilogue
from onnxbolt.ops.matmul import einsums, form
from onnxbolt.ops.products import operands
from onnxbolt.patterns.types import AnchorPattern, Match
from onnxbolt.problems import BatchedGemmProblem


@dataclass(frozen=True, eq=False, kw_only=True)
class BatchedAnchor(Anchor):
    """A product by the rows [B, N, K] of a tensor; it has no weight."""

    matrices: gs.Tensor

    @property
    def further(self) -> tuple[gs.Tensor, ...]:
        """The matrices."""
        return (self.matrices,)


class BatchedGemm(FusedOp):
    """x [B, M, K], weight [B, N, K] to y [B, M, N]; x or weight may have one matrix for all
    batches, and all sizes may be symbolic."""

    name, op_type = "batched_gemm", "FusedBatchedGemm"
    problem_type = BatchedGemmProblem
    weighted = True
    takes_epilogue = True

    def prepare(self, graph: gs.Graph) -> Sequence[str]:
        """Write products as MatMul; `Matmul` brings these to the form that kernels compute."""
        count = einsums.multiply(graph)
        return [f"products: {count} (Einsums as MatMul)"] if count else []

    def anchors(self) -> Sequence[AnchorPattern]:
        """MatMul by a Transpose of matrices."""
        return (AnchorPattern(("MatMul",), self._match),)

    def _match(self, node: gs.Node) -> Match:
        x, matrices = node.inputs[0], form.matrices_of(node)
        dtype = DType.of(x.dtype)
        if matrices is None or isinstance(x, gs.Constant) or dtype is None:
            return None
        if matrices.dtype != x.dtype or 0 in (*x.shape, *matrices.shape):
            return None
        return BatchedAnchor(self, node, x, None, dtype, matrices=matrices), ()

    def channels(self, anchor: Anchor) -> int:
        """N, 0 if it is symbolic."""
        columns = _of(anchor).matrices.shape[1]
        return columns if isinstance(columns, int) else 0

    def writes_slices(self, anchor: Anchor) -> bool:
        """True where the number of columns is known."""
        return bool(self.channels(anchor))

    def problem(
        self, candidate: Candidate, sizes: Sizes, stored: Stored | None
    ) -> BatchedGemmProblem:
        """A product for each batch."""
        anchor = _of(candidate.anchor)
        (left, rows, _), (right, columns, depth) = sizes(anchor.x), sizes(anchor.matrices)
        known = (size if isinstance(size, int) else 1 for size in anchor.matrices.shape[1:])
        return BatchedGemmProblem(
            max(left, right),
            rows,
            columns,
            depth,
            anchor.dtype,
            candidate.out,
            candidate.chain,
            *known,
        )

    def operation(self, candidate: Candidate, stored: Stored, tensors: Tensors) -> Operation:
        """Attribute `epilogue_params`."""
        anchor = _of(candidate.anchor)
        return Operation(
            Signature(self, anchor.dtype, 0, candidate.epilogue),
            [
                tensors.get(anchor.x, PLAIN),
                tensors.get(anchor.matrices, PLAIN),
                *operands(candidate, (PLAIN,), tensors),
            ],
            candidate.parameters,
        )

    def body(self, body: Body, signature: Signature, opset: int) -> str:
        """MatMul by the transposed weight."""
        x, (_, *further) = body.load("x"), self.inputs(signature)
        weight = body("Transpose", [body.load("weight")], perm=[0, 2, 1])
        return epilogue(body, signature.steps, opset, body("MatMul", [x, weight]), further)

    def positions(self, node: Described) -> list[Any]:
        """The rows of a batch: each batch has weights of its own."""
        return [node.output[1]]


def _of(anchor: Anchor) -> BatchedAnchor:
    assert isinstance(anchor, BatchedAnchor)  # the pattern makes no others
    return anchor
