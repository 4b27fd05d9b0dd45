"""GEMM: a MatMul of activations [.., K] by a constant [K, N], with an epilogue and further GEMMs
behind it (ONNX MatMul; Gemm arrives as one from canonicalization)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from onnxbolt.candidates import Anchor, Candidate
from onnxbolt.epilogues import PRODUCT
from onnxbolt.families import reads_any_rows
from onnxbolt.forms import PLAIN, Form, padded_channels
from onnxbolt.ops.base import Operation, Signature, Sizes, Stored, Surroundings, Tensors
from onnxbolt.ops.body import Body, epilogue
from onnxbolt.ops.gemm import pattern
from onnxbolt.ops.products import LONG, ProductOp
from onnxbolt.patterns.types import AnchorPattern, StepPattern
from onnxbolt.problems import GemmProblem


class Gemm(ProductOp):
    """x [.., K], weight [N, K] to y [.., N]."""

    name, op_type = "gemm", "FusedGemm"
    kinds = ("gemm", "gemm_chain")
    problem_type = GemmProblem
    weight_axes = (1, 0)  # [K, N]
    any_order = True

    def kind_of(self, signature: Signature) -> str:
        """Several GEMMs in one kernel are a kind of their own."""
        further = any(step.name == PRODUCT for step in signature.steps)
        return "gemm_chain" if further else "gemm"

    def anchors(self) -> Sequence[AnchorPattern]:
        """MatMul; Gemm is here only if canonicalization could not make a MatMul of it."""
        return pattern.anchors(self)

    def continuations(self) -> Sequence[StepPattern]:
        """A further GEMM."""
        return pattern.continuations(self)

    def pointwise(self, anchor: Anchor) -> bool:
        """True: x is rows as they lie."""
        return True

    def forms(self, candidate: Candidate, around: Surroundings) -> tuple[Form, Form]:
        """x as it lies, or long rows padded on the way in; the result padded where that is
        free."""
        width, alignment = candidate.widths[-1], candidate.anchor.dtype.alignment
        writes = Form(False, padded_channels(width, alignment)) if around.padded else PLAIN
        return self._reads(candidate, around), writes

    def _reads(self, candidate: Candidate, around: Surroundings) -> Form:
        anchor = candidate.anchor
        if not around.x.last and around.x != PLAIN:
            return around.x
        count = int(anchor.weight.shape[0])
        pays = count >= LONG and not _reads_any_length(candidate, around)
        return Form(False, padded_channels(count, anchor.dtype.alignment)) if pays else PLAIN

    def weight_columns(self, candidate: Candidate, reads: Form) -> Form:
        """As x, but kernels that read rows of x of any length want rows of 16 bytes of the
        weight."""
        anchor = candidate.anchor
        several = len(candidate.widths) > 1
        if reads == PLAIN and (several or reads_any_rows(anchor.dtype, candidate.widths[0])):
            return self.inner_form(anchor, int(anchor.weight.shape[0]))
        return reads

    def problem(self, candidate: Candidate, sizes: Sizes, stored: Stored | None) -> GemmProblem:
        """The product of all leading dimensions' rows."""
        anchor, alignment = candidate.anchor, candidate.anchor.dtype.alignment
        reads, writes = (stored.reads, stored.writes) if stored is not None else (PLAIN, PLAIN)
        return GemmProblem(
            math.prod(sizes(anchor.x)[:-1]),
            writes.count(candidate.widths[-1]),
            reads.count(int(anchor.weight.shape[0])),
            anchor.dtype,
            candidate.out,
            candidate.chain,
            tuple(-(-n // alignment) * alignment for n in candidate.widths[:-1]),
        )

    def operation(self, candidate: Candidate, stored: Stored, tensors: Tensors) -> Operation:
        """Attribute `epilogue_params`."""
        anchor, reads = candidate.anchor, stored.reads
        columns = self.weight_columns(candidate, reads)
        padding = (columns.channels or ()).count(-1) if columns != reads else 0
        x = tensors.get(anchor.x, reads)
        return Operation(
            Signature(self, anchor.dtype, 0, candidate.epilogue, padding),
            [x, *self.node_inputs(candidate, reads, stored.writes, tensors)],
            candidate.parameters,
        )

    def body(self, body: Body, signature: Signature, opset: int) -> str:
        """MatMul by the transposed weight, whose padded columns are cut off."""
        x, (_, *operands) = body.load("x"), self.inputs(signature)
        weight = body("Transpose", [body.load("weight")], perm=[1, 0])
        if signature.padding:
            ends = body.ints(0), body.ints(-signature.padding), body.ints(0)
            weight = body("Slice", [weight, *ends])
        result = body("MatMul", [x, weight])
        return epilogue(body, signature.steps, opset, result, operands)


def _reads_any_length(candidate: Candidate, around: Surroundings) -> bool:
    """True if a kernel reads rows of any length and nobody else may want them padded: kernels for
    several products do."""
    alone = len(candidate.anchor.x.outputs) == 1 and reads_any_rows(
        candidate.anchor.dtype, candidate.widths[0], around.archs
    )
    return len(candidate.widths) > 1 or alone
