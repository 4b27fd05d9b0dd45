"""Deformable attention (Zhu et al. 2020): for each query and head the weighted sum of samples of
images of several sizes (ONNX GridSample, Mul, ReduceSum and what moves values between them)."""

from __future__ import annotations

from collections.abc import Sequence

from onnxbolt.candidates import Anchor, Candidate
from onnxbolt.dtypes import DType
from onnxbolt.forms import PLAIN
from onnxbolt.ops.base import FusedOp, Operation, Signature, Sizes, Stored, Tensors
from onnxbolt.ops.body import Body
from onnxbolt.ops.deformable_attention import pattern
from onnxbolt.ops.deformable_attention.pattern import Attended, DeformableAnchor
from onnxbolt.ops.grid_sample import sampled
from onnxbolt.patterns.types import AnchorPattern
from onnxbolt.problems import DeformableAttentionProblem


class DeformableAttention(FusedOp):
    """x [N, S, H D], a grid [N, Q, H, L, P, 2] and weights [N, Q, H, L P] to y [N, Q, H D];
    variants are `Attended`s without their queries."""

    name, op_type = "deformable_attention", "DeformableAttention"
    problem_type = DeformableAttentionProblem

    def anchors(self) -> Sequence[AnchorPattern]:
        """The first GridSample."""
        return pattern.anchors(self)

    def channels(self, anchor: Anchor) -> int:
        """Those of all heads."""
        found = _found(anchor)
        return found.heads * found.size

    def problem(
        self, candidate: Candidate, sizes: Sizes, stored: Stored | None
    ) -> DeformableAttentionProblem:
        """Sizes of the anchor's tensors."""
        anchor, found = candidate.anchor, _found(candidate.anchor)
        return DeformableAttentionProblem(
            sizes(anchor.x)[0],
            sizes(anchor.further[0])[1],
            found.heads,
            found.size,
            found.levels,
            found.points,
            anchor.dtype,
            candidate.out,
        )

    def operation(self, candidate: Candidate, stored: Stored, tensors: Tensors) -> Operation:
        """Attributes `sampling`, `heads` and `levels`."""
        anchor, found = candidate.anchor, _found(candidate.anchor)
        return Operation(
            Signature(self, anchor.dtype, variant=found),
            [tensors.get(tensor, PLAIN) for tensor in (anchor.x, *anchor.further)],
            {
                "sampling": found.grid.numbers,
                "heads": found.heads,
                "levels": list(found.levels),
            },
        )

    def inputs(self, signature: Signature) -> list[str]:
        """Grid and weights."""
        return ["grid", "weights"]

    def letters(self, signature: Signature) -> str:
        """The type of the grid, and that of the weights."""
        return f"{'f' if _variant(signature).grid.in_f32 else 't'}t"

    def words(self, signature: Signature) -> Sequence[str]:
        """Its sizes, and how it samples."""
        return _variant(signature).words

    def body(self, body: Body, signature: Signature, opset: int) -> str:
        """GridSamples of all levels, in float32, their product with the weights, and the sum."""
        how = _variant(signature)
        grid = "grid" if how.grid.in_f32 else body.convert(body.load("grid"), body.dtype, DType.F32)
        weights = body.convert(body.load("weights"), body.dtype, DType.F32)
        x = body.widen(body.load("x"))
        queries = body("Slice", [body("Shape", [grid]), body.ints(1), body.ints(2)])
        samples = [
            _level(body, x, grid, level, how, queries, opset) for level in range(len(how.pixels))
        ]
        together = body("Concat", samples, axis=3) if len(samples) > 1 else samples[0]
        weights = body("Transpose", [weights], perm=[0, 2, 1, 3])
        count = len(how.pixels) * how.points
        weights = _reshaped(body, weights, body.ints(-1, 1), queries, body.ints(count))
        product = body("Mul", [together, weights])
        total = body("ReduceSum", [product, body.ints(3)], keepdims=0)  # [N H, D, Q]
        total = _reshaped(body, total, body.ints(-1, how.heads * how.size), queries)
        return body("Transpose", [total], perm=[0, 2, 1])


def _level(
    body: Body, x: str, grid: str, level: int, how: Attended, queries: str, opset: int
) -> str:
    """The samples of one level, [N H, D, Q, P]."""
    first = sum(how.pixels[:level])
    h, w = how.levels[2 * level : 2 * level + 2]
    ends = body.ints(first), body.ints(first + h * w), body.ints(1)
    rows = body("Slice", [x, *ends])
    image = body("Reshape", [rows, body.ints(0, h, w, how.heads, how.size)])
    image = body("Transpose", [image], perm=[0, 3, 4, 1, 2])
    image = body("Reshape", [image, body.ints(-1, how.size, h, w)])
    at = body("Gather", [grid, body.integer(level)], axis=3)
    at = body("Transpose", [at], perm=[0, 2, 1, 3, 4])
    at = _reshaped(body, at, body.ints(-1), queries, body.ints(how.points, 2))
    return sampled(body, image, at, how.grid, opset)


def _reshaped(body: Body, tensor: str, *sizes: str) -> str:
    return body("Reshape", [tensor, body("Concat", sizes, axis=0)])


def _found(anchor: Anchor) -> Attended:
    assert isinstance(anchor, DeformableAnchor)  # the pattern makes no others
    assert anchor.attended is not None
    return anchor.attended


def _variant(signature: Signature) -> Attended:
    assert isinstance(signature.variant, Attended)  # `operation` makes no others
    return signature.variant
