"""Transposed convolutions as convolutions of stride 1 with a phase of pixels for each group of
channels."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from onnxbolt.archs import Arch
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import tensor_operands
from onnxbolt.onnxruntime_time import Library, elementwise_us, library_us, tensors_moved
from onnxbolt.problems.base import Computed, Problem, Reference
from onnxbolt.problems.conv import ConvProblem

# ONNX Runtime adds a transposed convolution's bias by a kernel of its own
_CUDNN = Library(bias=False, f32=())


@dataclass(frozen=True)
class ConvTransposeProblem(Problem):
    """NHWC to NPQK; channels as stored. The filter has `taps` inputs for each phase, the output
    begins `cut` pixels behind the first phase. `zeros` are those behind the filter along each axis:
    as many of the last phases meet zeros at their first tap."""

    operation = "conv transpose"
    from_zero = frozenset({"pads", "cut", "zeros"})

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
    def phases(self) -> int:
        """Pixels of y for one of the convolution's."""
        return math.prod(self.strides)

    @property
    def filter(self) -> tuple[int, ...]:
        """The filter's extents without the zeros behind it."""
        axes = zip(self.taps, self.strides, self.zeros, strict=True)
        return tuple(taps * stride - zeros for taps, stride, zeros in axes)

    def first_tap(self, phase: int) -> tuple[int, ...]:
        """The first tap along each axis at which a phase meets no zeros, if there is another."""
        places = divmod(phase, self.strides[1])
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
        return max(self.n * self.p * self.q // self.phases, 1)

    @property
    def columns(self) -> int:
        return self.k * self.phases

    @property
    def flops(self) -> int:
        outputs = self.n * self.p * self.q * self.k
        return 2 * outputs * (self.c // self.groups) * math.prod(self.filter) // self.phases

    @property
    def on_tensor_cores(self) -> bool:
        return True

    @property
    def bytes_moved(self) -> int:
        y = self.n * self.p * self.q * self.k
        read = self.convolution.input_elements + y * tensor_operands(self.chain)
        return read * self.dtype.bytes + y * self.out.bytes

    @property
    def shape(self) -> str:
        """Sizes of x, channels, the filter, strides and groups."""
        filter_ = "x".join(map(str, self.filter))
        kind = "conv transpose" + (f" in {self.groups} groups" if self.groups > 1 else "")
        stride = "x".join(map(str, dict.fromkeys(self.strides)))
        sizes = f"{self.n}x{self.h}x{self.w}x{self.c} to {self.k}"
        return f"{kind} {sizes}, {filter_}, stride {stride}"

    @property
    def reference(self) -> Reference | None:
        """None where the epilogue reads tensors, which lie as the pixels do."""
        if tensor_operands(self.chain):
            return None
        rows = self.convolution.reference
        extents = (*rows.extents, *self.strides, *self.cut, self.p, self.q, *self.zeros)
        return replace(rows, computed=Computed.CONV_TRANSPOSE, extents=extents)

    def onnxruntime_us(self, arch: Arch) -> float:
        """cuDNN's convolution backwards, as a convolution that makes products of zeros as well, and
        a kernel for each step."""
        size = self.n * self.p * self.q * self.k * self.dtype.bytes
        steps = _CUDNN.unfused(self.chain, self.dtype)
        behind = sum(elementwise_us(size * tensors_moved(step), arch) for step in steps)
        return library_us(replace(self.convolution, chain=()), arch) + behind
