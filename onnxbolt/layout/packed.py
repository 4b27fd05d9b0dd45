"""What fused products read besides activations, as their kernels store it: weights and vectors,
channels in the stored forms."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt import grouped
from onnxbolt.candidates import Anchor, Candidate
from onnxbolt.families import reads_any_rows
from onnxbolt.graph.edit import Derived, derived
from onnxbolt.layout.form import PLAIN, Form, padded_channels, take


def weight(
    anchor: Anchor, constant: gs.Constant, reads: Form, writes: Form
) -> np.ndarray | Derived:
    """[K, *spatial, C] for Conv, [N, K] for Gemm, channels stored as the activations are."""

    def stored(values: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(_arranged(values, anchor, reads, writes))

    like = _arranged(
        np.broadcast_to(np.zeros((), constant.dtype), constant.shape), anchor, reads, writes
    )
    return derived(constant, stored, like.dtype, like.shape)


def _arranged(values: np.ndarray, anchor: Anchor, reads: Form, writes: Form) -> np.ndarray:
    if anchor.grouped:
        values = grouped.widened(values, anchor.groups, anchor.kernel_groups)
    out_axis, in_axis = (0, 1) if anchor.kind == "conv" else (1, 0)
    if not anchor.depthwise:  # whose filters have one channel each
        values = take(values, reads.channels, in_axis)
    values = take(values, writes.channels, out_axis)
    return np.moveaxis(values, in_axis, -1)


def vector(constant: gs.Constant, channels: int, writes: Form) -> np.ndarray:
    """Float32, a value for each stored channel of the output, which has `channels` in the
    original."""
    values = np.broadcast_to(constant.values.astype(np.float32).reshape(-1), (channels,))
    return np.ascontiguousarray(take(np.array(values), writes.channels, 0))


def inner_form(candidate: Candidate, width: int) -> Form:
    """What lies between the products of one kernel is padded: TMA reads rows of 16 bytes of the
    weights behind it."""
    return Form(
        candidate.anchor.kind == "conv", padded_channels(width, candidate.anchor.dtype.alignment)
    )


def weight_columns(candidate: Candidate, reads: Form) -> Form:
    """How the first weight's columns are stored: as x, but that kernels that read rows of x of
    any length want rows of 16 bytes of it."""
    if candidate.anchor.kind != "gemm" or reads != PLAIN:
        return reads
    any_length = len(candidate.widths) > 1 or reads_any_rows(
        candidate.anchor.dtype, candidate.widths[0]
    )
    return inner_form(candidate, int(candidate.anchor.weight.shape[0])) if any_length else reads
