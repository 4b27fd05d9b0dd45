"""The base of fused products: convolutions and GEMMs with an epilogue, alone or back-to-back.

Their weights and vectors are stored with the channels as the activations have them, padded ones
among them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt import grouped
from onnxbolt.candidates import Anchor, Candidate
from onnxbolt.forms import PLAIN, Form, padded_channels, take
from onnxbolt.graph.edit import Derived, derived
from onnxbolt.ops.base import FusedOp, Tensors

LONG = 64  # columns of a product from which on padding pays by itself


class ProductOp(FusedOp):
    """A product with a constant weight, and an epilogue that may hold further products."""

    weighted = True
    takes_epilogue = True

    def inner_form(self, anchor: Anchor, width: int) -> Form:
        """The form of a result between two products of one kernel, `width` channels in the
        original: padded, since TMA reads rows of 16 bytes of the weight behind it."""
        return Form(self.channels_last, padded_channels(width, anchor.dtype.alignment))

    def weight_columns(self, candidate: Candidate, reads: Form) -> Form:
        """How the first weight's columns are stored: by default as x, which is read in `reads`."""
        return reads

    def node_inputs(
        self, candidate: Candidate, reads: Form, writes: Form, tensors: Tensors
    ) -> list[gs.Tensor]:
        """The weight and the operands of the epilogue's steps, as they are stored."""
        anchor = candidate.anchor
        inner = (self.inner_form(anchor, width) for width in candidate.widths[:-1])
        forms = (*inner, writes)  # one for each layer's result
        columns = self.weight_columns(candidate, reads)
        weight = packed_weight(anchor, anchor.weight, columns, forms[0], tensors)
        return [weight, *operands(candidate, forms, tensors)]


def operands(
    candidate: Candidate,
    forms: tuple[Form, ...],
    tensors: Tensors,
    arranged: Callable[[np.ndarray], np.ndarray] = lambda vector: vector,
) -> list[gs.Tensor]:
    """The operands of the epilogue's steps, in their order. `forms` are those of each layer's
    result, and `arranged` makes of a vector for its channels one for the product's columns."""
    found: list[gs.Tensor] = []
    layer = 0
    for link in candidate.links:
        kind, operand = link.step.row.operand, link.operand
        if kind == "vector":
            assert operand is not None  # patterns give vector steps an operand
            values = _vector(operand, candidate.widths[layer], forms[layer])
            found.append(tensors.constant(operand.name, arranged(values)))
        elif kind == "tensor":
            found.append(tensors.get(operand, forms[layer]))
        elif kind == "rotation":
            found.append(tensors.get(operand, PLAIN))
        elif kind == "weight":
            found.append(
                packed_weight(candidate.anchor, operand, forms[layer], forms[layer + 1], tensors)
            )
            layer += 1
    return found


def packed_weight(
    anchor: Anchor, weight: gs.Constant, reads: Form, writes: Form, tensors: Tensors
) -> gs.Constant:
    """[K, *spatial, C] of a convolution, [N, K] of a GEMM, channels stored as in `reads` and
    `writes`."""

    def arrange() -> np.ndarray | Derived:
        like = _arranged(
            np.broadcast_to(np.zeros((), weight.dtype), weight.shape), anchor, reads, writes
        )
        return derived(weight, stored, like.dtype, like.shape)

    def stored(values: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(_arranged(values, anchor, reads, writes))

    key = (anchor.op, reads.channels, writes.channels, anchor.groups)
    return tensors.packed(weight, key, arrange)


def _arranged(values: np.ndarray, anchor: Anchor, reads: Form, writes: Form) -> np.ndarray:
    if anchor.grouped:
        values = grouped.widened(values, anchor.groups, anchor.kernel_groups)
    out_axis, in_axis = anchor.op.weight_axes
    if not anchor.depthwise:  # depthwise filters have one channel each
        values = take(values, reads.channels, in_axis)
    values = take(values, writes.channels, out_axis)
    return np.moveaxis(values, in_axis, -1)


def _vector(constant: gs.Constant, channels: int, writes: Form) -> np.ndarray:
    """Float32, a value for each stored channel of the output, which has `channels` in the
    original."""
    values = np.broadcast_to(constant.values.astype(np.float32).reshape(-1), (channels,))
    return np.ascontiguousarray(take(np.array(values), writes.channels, 0))
