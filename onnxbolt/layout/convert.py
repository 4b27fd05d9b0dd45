"""Conversions between stored forms, as standard ONNX nodes.

To channels last: Pad in channels-first order is never needed, since the Transpose comes first and the Pad then runs along the
innermost axis. A conversion that takes padding away is a Slice where padding is at the end, else a Gather.
"""
from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx_graphsurgeon as gs
from onnx import TensorProto

from onnxbolt.dtypes import DType
from onnxbolt.layout.form import FIRST_TO_LAST, LAST_TO_FIRST, PLAIN, Form

if TYPE_CHECKING:
    from onnxbolt.rewrite import Rewriter


def convert(rewriter: Rewriter, tensor: gs.Tensor, stored: gs.Tensor, have: Form, want: Form, into: gs.Tensor | None) -> gs.Tensor:
    """Nodes that bring `stored`, which holds `tensor` in form `have`, into form `want`; the result, `into` where given."""
    steps = []
    turned = have.last != want.last
    remapped = turned or have.channels != want.channels  # after turning, the map would be of another axis
    if have.channels is not None and remapped:
        steps.append(("select", Form(have.last)))
    if turned:
        steps.append(("transpose", Form(want.last)))
    if want.channels is not None and remapped:
        steps.append(("place", want))
    for i, (kind, form) in enumerate(steps):
        target = into if into is not None and i == len(steps) - 1 else rewriter.variable(tensor, form)
        if kind == "transpose":
            perms = FIRST_TO_LAST if want.last else LAST_TO_FIRST
            rewriter.add("Transpose", [stored], [target], {"perm": list(perms[len(tensor.shape)])}, tensor)
        elif kind == "select":
            _select(rewriter, tensor, stored, have, target)
        else:
            _place(rewriter, tensor, stored, form, target)
        stored = target
    return stored


def _select(rewriter: Rewriter, tensor: gs.Tensor, stored: gs.Tensor, have: Form, target: gs.Tensor) -> None:
    channels = have.channels or ()
    count = max(channels) + 1
    axis = len(tensor.shape) - 1
    if channels[:count] == tuple(range(count)):
        ends = [rewriter.constant(tensor.name, np.array([v], np.int64)) for v in (0, count, axis)]
        rewriter.add("Slice", [stored, *ends], [target], {}, tensor)
        return
    place = {c: i for i, c in enumerate(channels) if c >= 0}
    index = rewriter.constant(tensor.name, np.array([place[c] for c in range(count)], np.int64))
    rewriter.add("Gather", [stored, index], [target], {"axis": axis}, tensor)


def _place(rewriter: Rewriter, tensor: gs.Tensor, stored: gs.Tensor, want: Form, target: gs.Tensor) -> None:
    """Zeros appended; a map with holes in the middle is reached by a Gather from the appended form."""
    channels = want.channels or ()
    count = max(channels) + 1
    extra = max(len(channels) - count, 1)
    rank = len(tensor.shape)
    simple = channels == tuple(range(count)) + (-1,) * extra
    padded = target if simple else rewriter.variable(tensor, PLAIN)
    if DType.of(tensor.dtype) is DType.BF16:  # ONNX Runtime has no Pad for bf16
        wide = rewriter.scratch(tensor, np.float32)
        rewriter.add("Cast", [stored], [wide], {"to": TensorProto.FLOAT}, tensor)
        wide_padded = rewriter.scratch(tensor, np.float32)
        _pad(rewriter, tensor, wide, wide_padded, rank, extra)
        rewriter.add("Cast", [wide_padded], [padded], {"to": TensorProto.BFLOAT16}, tensor)
    else:
        _pad(rewriter, tensor, stored, padded, rank, extra)
    if not simple:
        index = rewriter.constant(tensor.name, np.array([c if c >= 0 else count for c in channels], np.int64))
        rewriter.add("Gather", [padded, index], [target], {"axis": rank - 1}, tensor)


def _pad(rewriter: Rewriter, tensor: gs.Tensor, stored: gs.Tensor, target: gs.Tensor, rank: int, extra: int) -> None:
    pads = np.zeros(2 * rank, np.int64)
    pads[-1] = extra
    rewriter.add("Pad", [stored, rewriter.constant(tensor.name, pads)], [target], {"mode": "constant"}, tensor)
