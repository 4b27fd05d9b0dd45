"""Attention: softmax(scale q k^T, masked) v of each head, read from what the projections wrote and
written as the next projection reads it (ONNX MatMul, Softmax, MatMul and the nodes around them)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx_graphsurgeon as gs
from onnx import AttributeProto

from onnxbolt.candidates import Anchor, Candidate
from onnxbolt.graph.windows import Windows
from onnxbolt.ops.attention import pattern, pieces, preparation
from onnxbolt.ops.attention.attributes import VIEWS, attributes, bounds
from onnxbolt.ops.attention.body import Variant, attend
from onnxbolt.ops.attention.found import AttentionAnchor, Band, Masking, ScaledDotProduct
from onnxbolt.ops.attention.views import ROWS, View
from onnxbolt.ops.base import FusedOp, Operation, Piece, Signature, Sizes, Stored, Tensors
from onnxbolt.ops.body import AttributeType, Body, epilogue
from onnxbolt.patterns.types import AnchorPattern
from onnxbolt.problems import AttentionProblem


class Attention(FusedOp):
    """q, k, v and mask to y [B, S, H x E], or [B, S, H, E] where the reader is not known to want
    heads as one axis; with windows, q, k, v and y are images whose windows are the batches. Where
    q, k and v lie in one tensor, that is the node's input three times. The candidate's only link,
    if there is one, is the step Quantize."""

    name, op_type = "attention", "FusedAttention"
    problem_type = AttentionProblem
    takes_windows = True
    takes_codes = True

    def anchors(self) -> Sequence[AnchorPattern]:
        """The softmax of several nodes, and operators that are attention by themselves."""
        return pattern.anchors(self)

    def prepare(self, graph: gs.Graph) -> Sequence[str]:
        """Move factors of heads to queries, join masks that no kernel reads apart, divide their
        batch and heads, and exchange batch and positions."""
        return preparation.prepare(self, graph)

    def channels(self, anchor: Anchor) -> int:
        """The length of y's last axis."""
        found = _found(anchor)
        return found.v.size * (found.heads if found.joined else 1)

    def problem(
        self, candidate: Candidate, sizes: Sizes, stored: Stored | None
    ) -> AttentionProblem:
        """Sizes of q, k and v, by their views."""
        found, dtype = _found(candidate.anchor), candidate.anchor.dtype
        mask, variant = found.mask.tensor, Variant.of(found)
        mask_type = [variant.mask_type.value] if variant.mask_type else []
        words = [found.mask.kind.value, *mask_type] if mask is not None else []
        views, windows = (found.q, found.k, found.v), found.windows
        (_, queries), (_, keys), _ = rows = [_rows(view, sizes, windows) for view in views]
        return AttentionProblem(
            max(batch for batch, _ in rows),
            found.heads,
            found.key_heads,
            queries,
            keys,
            found.q.size,
            found.v.size,
            dtype,
            candidate.out,
            tuple(words),
            tuple(sizes(mask)) if mask is not None else (),
            (found.q.order, found.k.order, found.v.order),
            _band(found.mask.band, keys - queries),
            windows.numbers if windows else (),
            candidate.chain,
        )

    def operation(self, candidate: Candidate, stored: Stored, tensors: Tensors) -> Operation:
        """Attributes that docs/node-format.md describes."""
        anchor = candidate.anchor
        found, steps = _found(anchor), tuple(step.of_type for step in candidate.epilogue)
        return Operation(
            Signature(self, anchor.dtype, steps=steps, variant=Variant.of(found)),
            [tensors.get(tensor, stored.reads) for tensor in (anchor.x, *anchor.further)],
            {**attributes(found), **(candidate.parameters if steps else {})},
        )

    def pieces(
        self, attributes: Mapping[str, Any], shapes: Sequence[Sequence[int]]
    ) -> Sequence[Piece]:
        """Some queries of some batches, where there are many scores."""
        return pieces.cut(attributes, shapes)

    def letters(self, signature: Signature) -> str:
        """Keys, values and mask."""
        return _variant(signature).letters

    def inputs(self, signature: Signature) -> list[str]:
        """Keys, values and mask."""
        masked = _variant(signature).masking is not Masking.NONE
        return ["k", "v", *(["mask"] if masked else [])]

    def attributes(self, signature: Signature) -> Mapping[str, AttributeType]:
        """The scale, the places of what lies in rows, the numbers of heads that share keys, the
        band, and the numbers of the step Quantize."""
        variant = _variant(signature)
        places = zip(VIEWS, variant.places, strict=True)
        rows = {name: AttributeProto.INTS for name, place in places if place.order == ROWS}
        shared = ("heads", "key_heads") if variant.grouped else ()
        return {
            "scale": AttributeProto.FLOAT,
            **rows,
            **dict.fromkeys(shared, AttributeProto.INT),
            **({"band": AttributeProto.INTS} if variant.banded else {}),
            **({"windows": AttributeProto.INTS} if variant.windows else {}),
            **({"epilogue_params": AttributeProto.FLOATS} if signature.steps else {}),
        }

    def words(self, signature: Signature) -> Sequence[str]:
        """The variant's."""
        return _variant(signature).words

    def body(self, body: Body, signature: Signature, opset: int) -> str:
        """The products and the softmax, with the root of the scale on both sides; codes are made
        in fp32."""
        result = attend(body, _variant(signature))
        if signature.steps:
            result = epilogue(body, signature.steps, opset, body.widen(result))
        return result


def _found(anchor: Anchor) -> ScaledDotProduct:
    assert isinstance(anchor, AttentionAnchor)  # the pattern makes no others
    return anchor.attention


def _variant(signature: Signature) -> Variant:
    assert isinstance(signature.variant, Variant)  # `operation` makes no others
    return signature.variant


def _band(band: Band, aligned: int) -> tuple[int, ...]:
    """A band as a problem has it; `aligned`: its shift if it is at the end."""
    return (*bounds(band), aligned if band.at_end else 0) if band else ()


def _rows(view: View, sizes: Sizes, windows: Windows | None) -> tuple[int, int]:
    """Batch and positions of a view."""
    shape = sizes(view.tensor)
    if windows is not None:
        return shape[0] * windows.count, windows.positions
    return shape[0], shape[1 if view.order == ROWS else 2]
