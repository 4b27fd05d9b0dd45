"""Names for symbolic dimensions that are equal only if the sizes are equal for all sizes of the
inputs.

onnx's inference gives each dimension that it does not know a name of its own ("unk__7"), even the
height of a convolution's result, and starts counting again in each run. Here a window that keeps a
size keeps its name, windows that reduce a size in the same way give it the same name, and any other
unknown size is named after its tensor, so that no name has two meanings.

    a window's output = floor((size + pads - reach) / stride) + 1
    that of a transposed one = (size - 1) * stride + reach + output_padding - pads
    reach = (kernel - 1) * dilation + 1

(ONNX, Conv and MaxPool, ConvTranspose). A Reshape's only unknown size is the quotient of the other
sizes.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Sequence

import onnx_graphsurgeon as gs

from onnxbolt.graph.computed_sizes import size_at
from onnxbolt.graph.edit import auto_pad, constant_integers, constant_values, optional
from onnxbolt.graph.sizes import Size

_GENERATED = "unk__"
_MOVED = re.compile(r"\((.+)([+-]\d+)\)")
_WINDOWS = frozenset({"AveragePool", "Conv", "LpPool", "MaxPool"})
_BROADCASTING = frozenset(
    {
        "Add",
        "And",
        "Div",
        "Equal",
        "Greater",
        "GreaterOrEqual",
        "Less",
        "LessOrEqual",
        "Max",
        "Mean",
        "Min",
        "Mod",
        "Mul",
        "Or",
        "PRelu",
        "Pow",
        "Sub",
        "Sum",
        "Where",
        "Xor",
    }
)


def is_generated(size: Size) -> bool:
    """True if the name is one that inference made up for an unknown size."""
    return isinstance(size, str) and size.startswith(_GENERATED)


def in_words(shape: Sequence[Size] | None) -> str:
    """The shape as messages show it: [batch, 8, ?], with ? for sizes that nobody named."""
    sizes = ("?" if size is None or is_generated(size) else str(size) for size in shape or ())
    return "of unknown shape" if shape is None else f"[{', '.join(sizes)}]"


class Meanings:
    """The meanings of the names of one run of inference. `shape` has to be called for a node's
    outputs after those of the nodes that it reads from."""

    def __init__(self) -> None:
        self._known: dict[str, int | str] = {}

    def shape(self, node: gs.Node, output: gs.Tensor, inferred: Sequence[Size]) -> list[Size]:
        """The shape of `output`; a dimension that inference lost keeps its previous value."""
        if node.op == "Reshape" and not node.domain:
            self._divide(node.inputs[0].shape, inferred)
        before = (
            output.shape
            if output.shape is not None and len(output.shape) == len(inferred)
            else [None] * len(inferred)
        )
        return [
            self._size(node, output.name, axis - len(before), *sizes)
            for axis, sizes in enumerate(zip(inferred, before, strict=True))
        ]

    def _divide(self, x: Sequence[Size] | None, reshaped: Sequence[Size]) -> None:
        """Learn the only unknown size of a Reshape of `x`."""
        sizes = [
            self._known.get(size, size) if isinstance(size, str) else size for size in reshaped
        ]
        unknown = [
            size for size in sizes if size is None or (is_generated(size) and size in reshaped)
        ]
        name = unknown[0] if len(unknown) == 1 else None
        if isinstance(name, str) and x is not None:
            found = _quotient(x, [size for size in sizes if size != name])
            if found is not None:
                self._known[name] = found

    def _size(self, node: gs.Node, name: str, axis: int, new: Size, old: Size) -> Size:
        """The size of an axis, which is counted from the end."""
        if not isinstance(new, str) or not is_generated(new):
            return (
                old if new is None or (isinstance(old, int) and not isinstance(new, int)) else new
            )
        # a size that follows from an unknown one may be known by now
        certain = None if isinstance(old, str) and _GENERATED in old else old
        if new not in self._known:
            found = certain if certain is not None else derived(node, axis)
            self._known[new] = found if found is not None else old or f"{_GENERATED}{name}.{axis}"
        return certain if certain is not None else self._known[new]


def derived(node: gs.Node, axis: int) -> int | str | None:
    """The size of an output's axis, which is counted from the end, as it follows from the sizes of
    the inputs."""
    if node.domain:
        return None
    if node.op in _WINDOWS:
        return _window(node, axis)
    if node.op == "ConvTranspose":
        return _transposed(node, axis)
    if node.op == "Pad":
        return _pad(node, axis)
    if node.op == "Resize":
        return _resized(node, axis)
    if node.op == "Slice":
        return _sliced(node, axis)
    return _broadcast(node, axis) if node.op in _BROADCASTING else None


def _window(node: gs.Node, axis: int) -> int | str | None:
    x, attributes = node.inputs[0].shape, node.attrs
    kernel = attributes.get("kernel_shape") or (
        list(node.inputs[1].shape or ())[2:] if node.op == "Conv" else []
    )
    size = x[axis] if x is not None and len(x) == len(kernel) + 2 and len(kernel) >= -axis else None
    if size is None or not isinstance(kernel[axis], int):
        return None
    stride, dilation = (
        (attributes.get(name) or [1] * len(kernel))[axis] for name in ("strides", "dilations")
    )
    if stride > 1 and attributes.get("ceil_mode", 0):
        return None
    return _stepped(
        size, _margin(node, axis, (kernel[axis] - 1) * dilation + 1, len(kernel)), stride
    )


def _transposed(node: gs.Node, axis: int) -> int | str | None:
    x, weight, attributes = node.inputs[0].shape, node.inputs[1].shape, node.attrs
    kernel = list(weight or ())[2:]
    size = x[axis] if x is not None and len(x) == len(kernel) + 2 and len(kernel) >= -axis else None
    if size is None or not isinstance(kernel[axis], int) or attributes.get("output_shape"):
        return None
    stride, dilation, more = (
        (attributes.get(name) or [default] * len(kernel))[axis]
        for name, default in (("strides", 1), ("dilations", 1), ("output_padding", 0))
    )
    scaled = _multiplied(size, stride)
    if auto_pad(node) in ("SAME_UPPER", "SAME_LOWER"):
        return scaled
    reach = (kernel[axis] - 1) * dilation + 1
    return _moved(scaled, more - stride - _margin(node, axis, reach, len(kernel)))


def _margin(node: gs.Node, axis: int, reach: int, count: int) -> int:
    """Pads minus reach for a window along an axis; -1 for SAME padding, with which only the stride
    changes the size."""
    mode, pads = auto_pad(node), node.attrs.get("pads") or [0] * 2 * count
    if mode in ("SAME_UPPER", "SAME_LOWER"):
        return -1  # the size, divided by the stride and rounded up
    return int(0 if mode == "VALID" else pads[axis] + pads[axis - count]) - reach


def _stepped(size: int | str, margin: int, stride: int) -> int | str:
    if isinstance(size, int):
        return (size + margin) // stride + 1
    return _moved(size, margin + 1) if stride == 1 else f"({_moved(size, margin)}//{stride}+1)"


def _pad(node: gs.Node, axis: int) -> int | str | None:
    x = node.inputs[0].shape
    if x is None or x[axis] is None or len(node.inputs) not in (2, 3):  # else axes of their own
        return None
    pads = [size_at(node.inputs[1], place) for place in (len(x) + axis, 2 * len(x) + axis)]
    known = [size for size in pads if isinstance(size, int)]
    return _moved(x[axis], sum(known)) if len(known) == len(pads) else None


def _sliced(node: gs.Node, axis: int) -> Size:
    """The size of an axis that a Slice of others leaves as it is."""
    x, axes = node.inputs[0].shape, constant_integers(node, 3)
    if x is None or axes is None or any(each % len(x) == axis + len(x) for each in axes):
        return None
    size: Size = x[axis]
    return size


def _resized(node: gs.Node, axis: int) -> Size:
    """A size that is given, or the input's times a whole number."""
    x, sizes = node.inputs[0].shape, optional(node.inputs, 3)
    if x is None or "axes" in node.attrs:
        return None
    if node.attrs.get("keep_aspect_ratio_policy", "stretch") != "stretch":
        return None
    if sizes is not None:
        return size_at(sizes, len(x) + axis)
    scales = optional(node.inputs, 2)
    values = None if scales is None else constant_values(scales)
    size = x[axis]
    if values is None or len(values) != len(x) or size is None or isinstance(size, int):
        return None
    scale = float(values[axis])
    if (
        not scale.is_integer()
        or node.attrs.get("coordinate_transformation_mode") == "tf_crop_and_resize"
    ):
        return None
    return _multiplied(size, int(scale))


def _quotient(sizes: Sequence[Size], by: Sequence[Size]) -> int | str | None:
    """The product of some sizes, divided by that of others; None where that is no whole number for
    all sizes of the inputs, or is not known."""
    if None in (*sizes, *by):
        return None
    above, below = (
        math.prod(size for size in side if isinstance(size, int)) for side in (sizes, by)
    )
    names, divisors = (Counter(s for s in side if isinstance(s, str)) for side in (sizes, by))
    if not above or not below or above % below or not divisors <= names:
        return None
    left = sorted((names - divisors).elements())
    if not left:
        return above // below
    name = left[0] if len(left) == 1 else f"({'*'.join(left)})"
    return _multiplied(name, above // below)


def _multiplied(size: int | str, by: int) -> int | str:
    if isinstance(size, int):
        return size * by
    return size if by == 1 else f"({size}*{by})"


def _moved(size: int | str, by: int) -> int | str:
    """The size plus `by`. A symbol becomes "(name+2)" and so on, and becomes the plain name again
    when the numbers cancel, as those of a Pad and of the window behind it."""
    if isinstance(size, int):
        return size + by
    before = _MOVED.fullmatch(size)
    if before is not None and _is_whole(before[1]):
        size, by = before[1], int(before[2]) + by
        size = f"({size})" if not by and "//" in size else size
    return f"({size}{by:+d})" if by else size


def _is_whole(text: str) -> bool:
    """True if each parenthesis that `text` opens or closes has its other one in it."""
    depths = list(itertools.accumulate((c == "(") - (c == ")") for c in text))
    return min(depths) >= 0 and depths[-1] == 0


def _broadcast(node: gs.Node, axis: int) -> int | str | None:
    """The size of an axis, which is counted from the end, after broadcasting."""
    shapes = [tensor.shape for tensor in node.inputs]
    if any(shape is None for shape in shapes):
        return None
    sizes = {shape[axis] for shape in shapes if len(shape) >= -axis} - {1}
    return sizes.pop() if len(sizes) == 1 else None
