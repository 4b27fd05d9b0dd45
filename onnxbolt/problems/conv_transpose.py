"""Transposed convolutions as convolutions of stride 1 with a phase of pixels for each group of
channels."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import ClassVar

from onnxbolt.archs import Arch
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import tensor_operands
from onnxbolt.onnxruntime_time import Library, elementwise_us, library_us, tensors_moved
from onnxbolt.problems.base import Computed, Problem, Reference
from onnxbolt.problems.conv import ConvProblem

# ONNX Runtime adds a transposed convolution's bias by a kernel of its own
_CUDNN = Library(bias=False, f32=())


@dataclass(frozen=True)
class _Phases(Problem):
    """Pixels of phases. The filter has `taps` inputs for each phase, the output begins `cut` pixels
    behind the first phase. `zeros` are those behind the filter along each axis: as many of the last
    phases meet zeros at their first tap."""

    operation = "conv transpose"
    least: ClassVar[Mapping[str, int]] = {"pads": 0, "cut": 0, "zeros": 0}

    n: int
    h: int
    w: int
    c: int
    k: int
    taps: tuple[int, int]
    p: int
    q: int
    # the convolution's pads: top, left, bottom, right
    pads: tuple[int, int, int, int]
    cut: tuple[int, int]
    strides: tuple[int, int]
    zeros: tuple[int, int]
    groups: int
    dtype: DType
    out: DType
    chain: tuple[str, ...]

    @property
    def slices_of_y(self) -> int:
        """Images of y for one of x."""
        return 1

    @property
    def phases(self) -> int:
        """Pixels of y for one of the convolution's."""
        return self.slices_of_y * math.prod(self.strides)

    @property
    def pixels(self) -> int:
        """Pixels of y."""
        return self.n * self.slices_of_y * self.p * self.q

    @property
    def filter(self) -> tuple[int, ...]:
        """The filter's extents along height and width without the zeros behind it."""
        axes = zip(self.taps, self.strides, self.zeros, strict=True)
        return tuple(taps * stride - zeros for taps, stride, zeros in axes)

    def first_tap(self, phase: int) -> tuple[int, ...]:
        """The first tap along each axis at which a phase meets no zeros, if there is another."""
        places = divmod(phase % math.prod(self.strides), self.strides[1])
        return tuple(
            int(taps > 1 and place >= stride - zeros)
            for taps, place, stride, zeros in zip(
                self.taps, places, self.strides, self.zeros, strict=True
            )
        )

    @property
    def convolution(self) -> ConvProblem:
        """The convolution whose channels are those of all phases."""
        p, q = (
            -(-(cut + size) // stride)
            for cut, size, stride in zip(self.cut, (self.p, self.q), self.strides, strict=True)
        )
        return ConvProblem(
            self.n,
            self.h,
            self.w,
            self.c,
            self.k * self.phases,
            *self.taps,
            p,
            q,
            self.pads,
            (1, 1),
            (1, 1),
            self.groups,
            self.dtype,
            self.out,
            self.chain,
        )

    @property
    def rows(self) -> int:
        return max(self.pixels // self.phases, 1)

    @property
    def columns(self) -> int:
        return self.k * self.phases

    @property
    def flops(self) -> int:
        taps = math.prod(self.filter) / math.prod(self.strides)  # the mean of all outputs
        return round(2 * self.pixels * self.k * (self.c // self.groups) * taps)

    @property
    def on_tensor_cores(self) -> bool:
        return True

    @property
    def bytes_moved(self) -> int:
        y = self.pixels * self.k
        read = self.convolution.input_elements + y * tensor_operands(self.chain)
        return read * self.dtype.bytes + y * self.out.bytes

    @property
    def shape(self) -> str:
        """Sizes of x, channels, the filter, strides and groups."""
        filter_ = "x".join(map(str, (*self._depth, *self.filter)))
        kind = "conv transpose" + (f" in {self.groups} groups" if self.groups > 1 else "")
        stride = "x".join(map(str, dict.fromkeys((*self._depth, *self.strides))))
        sizes = f"{self.n}x{self.h}x{self.w}x{self.c} to {self.k}"
        return f"{kind} {sizes}, {filter_}, stride {stride}"

    @property
    def _depth(self) -> tuple[int, ...]:
        """The filter's depth, if it is not that of images."""
        return ()

    @property
    def reference(self) -> Reference | None:
        """None where the epilogue reads tensors, which lie as the pixels do."""
        if tensor_operands(self.chain):
            return None
        rows = self.convolution.reference
        pixels = (*self.strides, *self.cut, self.p, self.q, *self.zeros, self.slices_of_y)
        extents = (*rows.extents, *pixels)
        return replace(rows, computed=Computed.CONV_TRANSPOSE, extents=extents)

    def onnxruntime_us(self, arch: Arch) -> float:
        """cuDNN's convolution backwards, as a convolution that makes products of zeros as well, and
        a kernel for each step."""
        size = self.pixels * self.k * self.dtype.bytes
        steps = _CUDNN.unfused(self.chain, self.dtype)
        behind = sum(elementwise_us(size * tensors_moved(step), arch) for step in steps)
        return library_us(replace(self.convolution, chain=()), arch) + behind


@dataclass(frozen=True)
class ConvTransposeProblem(_Phases):
    """NHWC to NPQK; channels as stored."""

    def of_volumes(self, slices: int) -> ConvTranspose3dProblem:
        """The same where each image of x is a slice of a volume that makes `slices` of y."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        return ConvTranspose3dProblem(**given, slices=slices)


@dataclass(frozen=True)
class ConvTranspose3dProblem(_Phases):
    """NDHWC to NOPQK; channels as stored. The slices of x are its n images, each of which makes
    `slices` of y: as many as the filter's depth and its stride."""

    operation = "3-D conv transpose"

    slices: int

    @property
    def slices_of_y(self) -> int:
        return self.slices

    @property
    def _depth(self) -> tuple[int, ...]:
        return (self.slices,)
