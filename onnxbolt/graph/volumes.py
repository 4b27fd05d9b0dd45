"""Convolutions of volumes, and which of them are convolutions of images.

Where an output reads one slice, with a filter of 1xRxS, the slices of all volumes are the images.
Where it reads one column of pixels, Tx1x1, these are the pixels of an image of T's axis as its
height and of all others as its width. Kernels for images then compute them, of any architecture;
custom_ops/ops/shared/convolution.cc has the same rule.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx_graphsurgeon as gs

from onnxbolt.graph.edit import conv_attributes


@dataclass(frozen=True)
class Axis:
    """A spatial axis of a convolution."""

    filter: int
    pads: tuple[int, int]  # begin, end
    stride: int
    dilation: int

    @property
    def is_point(self) -> bool:
        """True if an output reads the one input at its own place."""
        return self.filter == self.stride == 1 and not any(self.pads)

    def output(self, size: int) -> int:
        """The output's extent, at least 1."""
        span = size + sum(self.pads) - self.dilation * (self.filter - 1) - 1
        return max(span // self.stride + 1, 1)


_FLAT = Axis(1, (0, 0), 1, 1)


def axes_of(conv: gs.Node) -> tuple[Axis, ...]:
    """The spatial axes of a Conv."""
    attributes: Mapping[str, Sequence[int]] = conv_attributes(conv)  # type: ignore[assignment]
    filters = [int(size) for size in conv.inputs[1].shape[2:]]
    pads, rank = attributes["pads"], len(filters)
    return tuple(
        Axis(size, (pads[i], pads[rank + i]), attributes["strides"][i], attributes["dilations"][i])
        for i, size in enumerate(filters)
    )


def is_of_images(axes: Sequence[Axis]) -> bool:
    """True for a convolution of images, or one that is such a convolution."""
    return len(axes) < 3 or axes[0].is_point or all(axis.is_point for axis in axes[1:])


def as_images(
    n: int, sizes: Sequence[int], axes: Sequence[Axis]
) -> tuple[int, tuple[int, ...], tuple[Axis, ...]]:
    """The images, their sizes and the axes of a convolution over volumes, images or lines, for
    which `is_of_images` is true."""
    if len(sizes) == 1:
        return n, (1, *sizes), (_FLAT, *axes)
    if len(sizes) == 2:
        return n, tuple(sizes), tuple(axes)
    if axes[0].is_point:
        return n * sizes[0], tuple(sizes[1:]), tuple(axes[1:])
    return n, (sizes[0], math.prod(sizes[1:])), (axes[0], _FLAT)
