"""Layout conversions: from one stored form of a tensor to another.

Between NCHW and NHWC one node of ours does it, with padding at the end and with a Cast before it.
Standard nodes do everything else: another order of channels, padding of a GEMM's columns, element
types that our kernels lack. A Transpose to NHWC then comes before the Pad, which so runs along the
innermost axis. Padding is removed by a Slice if it is at the end, otherwise by a Gather.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_graphsurgeon as gs
from onnx import TensorProto

from onnxbolt import families, ops
from onnxbolt.canonicalize.quantized.scaling import is_dequantize, new_tensor
from onnxbolt.dtypes import INTEGERS, DType
from onnxbolt.epilogues import CASTS, Step
from onnxbolt.families import only
from onnxbolt.forms import PLAIN, Form
from onnxbolt.graph.edit import producer
from onnxbolt.layout.carry import Kernels, Origin, Result, Writer
from onnxbolt.ops.base import Operation, Signature


def convert(
    writer: Writer,
    tensor: gs.Tensor,
    stored: gs.Tensor,
    have: Form,
    want: Form,
    into: gs.Tensor | None,
) -> gs.Tensor:
    """Write nodes that bring `stored`, which holds `tensor` in form `have`, into form `want`.
    Returns the result, which is `into` if that is given."""
    if DType.stored(tensor.dtype) is DType.E4M3:
        return _between_casts(writer, tensor, stored, have, want, into)
    turned = have.last != want.last
    if turned and not have.grouped and have.channels is want.channels is None:
        if all(size == 1 for size in tensor.shape[2:]):
            return _relabel(writer, tensor, stored, want, into)
        if tensor.shape[1] == 1:
            return _moved_axis(writer, tensor, stored, want, into)
    if turned and not have.grouped and (padding := appended(tensor, have, want)) is not None:
        return _one_kernel(writer, tensor, stored, want, padding)
    return _standard(writer, tensor, stored, have, want, into)


def _between_casts(
    writer: Writer,
    tensor: gs.Tensor,
    stored: gs.Tensor,
    have: Form,
    want: Form,
    into: gs.Tensor | None,
) -> gs.Tensor:
    """Convert codes of fp8, which ONNX Runtime only casts, as numbers in fp32."""
    numbers = new_tensor(writer.graph, f"{tensor.name}_numbers", np.dtype(np.float32), tensor.shape)
    given = writer.variable(numbers, have)
    writer.add("Cast", [stored], [given], {"to": TensorProto.FLOAT}, tensor)
    converted = _standard(writer, numbers, given, have, want, None)
    target = into if into is not None else writer.variable(tensor, want)
    writer.add("Cast", [converted], [target], {"to": TensorProto.FLOAT8E4M3FN}, tensor)
    return target


def appended(tensor: gs.Tensor, have: Form, want: Form) -> int | None:
    """How many padded channels the NHWC form has at its end; None if its channels are not the
    original ones followed by padding, so that no kernel of ours converts it."""
    first, last = (have, want) if want.last else (want, have)
    channels = last.channels or ()
    padding = channels.count(-1)
    count = len(channels) - padding
    simple = first.channels is None and channels == tuple(range(count)) + (-1,) * padding
    return padding if simple and _has_kernel(tensor, want) else None


def _has_kernel(tensor: gs.Tensor, want: Form) -> bool:
    """True if one kernel brings the tensor into the form `want`."""
    dtype = DType.stored(tensor.dtype)
    if dtype is None or not dtype.is_code:
        return dtype is not None
    return families.takes_codes(ops.conversion(want.last).name, dtype)


def _one_kernel(
    writer: Writer, tensor: gs.Tensor, stored: gs.Tensor, want: Form, padding: int
) -> gs.Tensor:
    """Write our layout conversion, which includes the Cast that computes its input, if any."""
    made = DType.stored(tensor.dtype)
    assert made is not None  # `appended` has looked
    source = stored if made.is_code else writer.before_cast(stored)
    read = DType.stored(source.dtype)
    assert read is not None  # `before_cast` has looked
    steps = () if read is made else (Step(CASTS[made]),)
    op = ops.conversion(want.last)
    signature = Signature(op, read, len(tensor.shape), steps, padding)
    rule = "NCHW to NHWC" if want.last else "NHWC to NCHW"
    configs = [only(op.name, arch) for arch in writer.archs]
    node = writer.own(
        Operation(signature, [source], {"padding": padding}),
        Result(tensor, want),
        Origin(rule, producer(source)),
        Kernels(configs),
    )
    return node.outputs[0]


def _relabel(
    writer: Writer, tensor: gs.Tensor, stored: gs.Tensor, want: Form, into: gs.Tensor | None
) -> gs.Tensor:
    """Write a Reshape: with one pixel per channel, NCHW and NHWC are the same bytes.

    It is one of codes where the values are made of these: behind a Reshape of values ONNX Runtime
    writes a QuantizeLinear, in opset 21 and later with a zero point that int8 does not have.
    """
    ones = [1] * (len(tensor.shape) - 2)
    sizes = [0, *ones, int(tensor.shape[1])] if want.last else [0, int(tensor.shape[1]), *ones]
    shape = writer.constant(tensor.name + ".shape", np.array(sizes, np.int64))
    target = into if into is not None else writer.variable(tensor, want)
    maker = producer(stored)
    if maker is not None and _makes_values_of_codes(maker):
        codes, *numbers = maker.inputs
        moved = writer.scratch(tensor, codes.dtype)
        writer.add("Reshape", [codes, shape], [moved], {}, tensor)
        writer.add(maker.op, [moved, *numbers], [target], dict(maker.attrs), tensor, maker)
    else:
        writer.add("Reshape", [stored, shape], [target], {}, tensor)
    return target


def _makes_values_of_codes(node: gs.Node) -> bool:
    """True for a DequantizeLinear of integers with one scale for the whole tensor."""
    if not is_dequantize(node) or DType.of_codes(node.inputs[0].dtype) not in INTEGERS:
        return False
    shape = node.inputs[1].shape
    return shape is not None and math.prod(shape) == 1


def _moved_axis(
    writer: Writer, tensor: gs.Tensor, stored: gs.Tensor, want: Form, into: gs.Tensor | None
) -> gs.Tensor:
    """Write a Squeeze and an Unsqueeze: with one channel, NCHW and NHWC are the same bytes."""
    last = len(tensor.shape) - 1
    before, behind = (1, last) if want.last else (last, 1)
    axes = [writer.constant(tensor.name + ".axes", np.array([a])) for a in (before, behind)]
    pixels = writer.scratch(tensor, tensor.dtype)
    writer.add("Squeeze", [stored, axes[0]], [pixels], {}, tensor)
    target = into if into is not None else writer.variable(tensor, want)
    writer.add("Unsqueeze", [pixels, axes[1]], [target], {}, tensor)
    return target


def _standard(
    writer: Writer,
    tensor: gs.Tensor,
    stored: gs.Tensor,
    have: Form,
    want: Form,
    into: gs.Tensor | None,
) -> gs.Tensor:
    steps = []
    turned = have.last != want.last
    # a map of channels applies to the last axis, which a Transpose changes
    remapped = turned or have.channels != want.channels
    if have.channels is not None and remapped:
        steps.append(("select", Form(have.last)))
    if turned:
        steps.append(("transpose", Form(want.last)))
    if want.channels is not None and remapped:
        steps.append(("place", want))
    for i, (kind, form) in enumerate(steps):
        target = into if into is not None and i == len(steps) - 1 else writer.variable(tensor, form)
        if kind == "transpose":
            perm = _turn(tensor, have, want)
            writer.add("Transpose", [stored], [target], {"perm": perm}, tensor)
        elif kind == "select":
            _select(writer, tensor, stored, have, target)
        else:
            _place(writer, tensor, stored, form, target)
        stored = target
    return stored


def _turn(tensor: gs.Tensor, have: Form, want: Form) -> list[int]:
    """The permutation that brings the channels to where they are in `want`."""
    order = (want if want.last else have).order(len(tensor.shape))
    return list(order) if want.last else [order.index(axis) for axis in range(len(order))]


def _select(
    writer: Writer, tensor: gs.Tensor, stored: gs.Tensor, have: Form, target: gs.Tensor
) -> None:
    channels = have.channels or ()
    count = max(channels) + 1
    axis = len(tensor.shape) - 1
    if channels[:count] == tuple(range(count)):
        ends = [writer.constant(tensor.name, np.array([v], np.int64)) for v in (0, count, axis)]
        writer.add("Slice", [stored, *ends], [target], {}, tensor)
        return
    place = {c: i for i, c in enumerate(channels) if c >= 0}
    index = writer.constant(tensor.name, np.array([place[c] for c in range(count)], np.int64))
    writer.add("Gather", [stored, index], [target], {"axis": axis}, tensor)


def _place(
    writer: Writer, tensor: gs.Tensor, stored: gs.Tensor, want: Form, target: gs.Tensor
) -> None:
    """Write a Pad that appends zeros; if the map has padding in the middle, also a Gather that
    puts the zeros there."""
    channels = want.channels or ()
    count = max(channels) + 1
    extra = max(len(channels) - count, 1)
    rank = len(tensor.shape)
    simple = channels == tuple(range(count)) + (-1,) * extra
    padded = target if simple else writer.variable(tensor, PLAIN)
    if DType.of(tensor.dtype) is DType.BF16:  # ONNX Runtime has no Pad for bf16
        wide = writer.scratch(tensor, np.float32)
        writer.add("Cast", [stored], [wide], {"to": TensorProto.FLOAT}, tensor)
        wide_padded = writer.scratch(tensor, np.float32)
        _pad(writer, tensor, wide, wide_padded, rank, extra)
        writer.add("Cast", [wide_padded], [padded], {"to": TensorProto.BFLOAT16}, tensor)
    else:
        _pad(writer, tensor, stored, padded, rank, extra)
    if not simple:
        index = writer.constant(
            tensor.name, np.array([c if c >= 0 else count for c in channels], np.int64)
        )
        writer.add("Gather", [padded, index], [target], {"axis": rank - 1}, tensor)


def _pad(
    writer: Writer,
    tensor: gs.Tensor,
    stored: gs.Tensor,
    target: gs.Tensor,
    rank: int,
    extra: int,
) -> None:
    pads = np.zeros(2 * rank, np.int64)
    pads[-1] = extra
    writer.add(
        "Pad",
        [stored, writer.constant(tensor.name, pads)],
        [target],
        {"mode": "constant"},
        tensor,
    )
