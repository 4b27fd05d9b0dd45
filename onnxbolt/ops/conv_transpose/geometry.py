"""A transposed convolution as a convolution of stride 1 whose output has pixels of all phases.

Along an axis, output o + begin = stride * j + f has phase f of `stride`, and reads inputs i = j - t
by the filter's elements stride * t + f: as many taps t for each phase as `stride` goes into the
filter. So one convolution with `taps` positions and stride times the channels makes all phases; its
output j, f is pixel stride * j + f - begin, and `begin` pixels in front of the first one are none
(docs/decisions/transposed-convolutions.md).

Filters are brought to a whole number of taps by zeros at their ends. Zeros at their beginnings make
`begin` a multiple of the stride: then no phase is cut, and the pixels of one output j lie behind
one another.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import onnx_graphsurgeon as gs

from onnxbolt.integers import ceil_divide


@dataclass(frozen=True)
class Axis:
    """One axis of a transposed convolution. `pads` and `padding` are ONNX's pads and
    output_padding, `size` the filter's elements, and `front` zeros in front of these."""

    stride: int
    dilation: int
    size: int
    pads: tuple[int, int]
    padding: int
    front: int = 0

    @property
    def reach(self) -> int:
        """Positions that the filter spans, zeros in front and dilation included."""
        return self.front + (self.size - 1) * self.dilation + 1

    @property
    def taps(self) -> int:
        """Inputs that an output of each phase meets."""
        return ceil_divide(self.reach, self.stride)

    @property
    def behind(self) -> int:
        """Zeros behind the filter."""
        return self.taps * self.stride - self.reach

    @property
    def begin(self) -> int:
        """The first pad of the filter with its zeros."""
        return self.pads[0] + self.front

    @property
    def end(self) -> int:
        """The last pad of the filter with its zeros."""
        return self.pads[1] + self.behind

    @property
    def cut(self) -> int:
        """Phases in front of the output's first pixel."""
        return self.begin % self.stride

    @property
    def whole(self) -> bool:
        """True if the output begins and ends with a whole turn of phases, whatever the input's
        size."""
        return self.cut == (self.padding - self.end) % self.stride == 0

    @property
    def apart(self) -> bool:
        """True if each input makes outputs of its own, and the output has no others."""
        return self.taps == 1 and self.begin == 0 and self.end == self.padding

    def output(self, size: int) -> int:
        """Pixels of the output."""
        return (size - 1 + self.taps) * self.stride - self.begin - self.end + self.padding

    def convolution_pads(self, size: int) -> tuple[int, int]:
        """Pads of the convolution of stride 1; the second one may be negative."""
        first = self.taps - 1 - self.begin // self.stride
        positions = ceil_divide(self.cut + self.output(size), self.stride)
        return first, positions + self.taps - 1 - size - first


def axes_of(node: gs.Node) -> tuple[Axis, ...]:
    """The spatial axes of a ConvTranspose with complete attributes, as its kernels compute them."""
    *others, last = as_in_onnx(node)
    if int(node.attrs["group"]) > 1 or any(axis.stride > 1 for axis in others):
        return (*others, last)
    in_rows = replace(last, front=-last.pads[0] % last.stride)
    return (*others, in_rows if in_rows.whole else last)


def lies_in_rows(node: gs.Node) -> bool:
    """True if the pixels of all phases lie behind one another as the convolution's channels do, so
    that kernels of convolutions store them."""
    *others, last = axes_of(node)
    one = int(node.attrs["group"]) == 1 and all(axis.stride == 1 for axis in others)
    return one and last.whole


def as_in_onnx(node: gs.Node) -> tuple[Axis, ...]:
    """The same without zeros in front of filters."""
    attrs, kernel = node.attrs, node.inputs[1].shape[2:]
    rank = len(kernel)
    return tuple(
        Axis(
            attrs["strides"][i],
            attrs["dilations"][i],
            int(kernel[i]),
            (attrs["pads"][i], attrs["pads"][rank + i]),
            attrs["output_padding"][i],
        )
        for i in range(rank)
    )
