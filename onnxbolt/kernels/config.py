"""Problems, configurations and launch limits: the data that planning, code generation and the C++
library share.

A `KernelConfig` is written to a fused node as one row of int64 numbers (`row`), in the order of its
fields; custom_ops/kernel.h declares the same order. Names are derived from it and never parsed
back.
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
from dataclasses import dataclass
from functools import cached_property

from onnxbolt.dtypes import DType
from onnxbolt.epilogues import STORE, layers

UNBOUNDED = 2**31 - 1


class Family(enum.IntEnum):
    """Kernel family; the number is what nodes carry."""

    GEMM_2X = 1  # CUTLASS 2.x, mma.sync, sm_75 and later
    GEMM_3X = 2  # CUTLASS 3.x, TMA and wgmma, sm_90a
    CONV_2X = 3  # CUTLASS 2.x implicit GEMM, sm_75 and later
    POOL = 4  # our NHWC pooling kernels, any architecture
    # our own kernels for sm_90a: persistent, warp-specialized, TMA and wgmma
    GEMM_SM90 = 5  # GEMM
    CONV_SM90 = 6  # implicit GEMM: TMA im2col, or tiled TMA where a convolution is a GEMM
    HALO_SM90 = 7  # convolution from spatial tiles with their border, without im2col traffic
    STEM_SM90 = 8  # a model's first convolution: few channels, read from NCHW as they are
    DEPTHWISE = 9  # NHWC depthwise convolution, any architecture
    SQUEEZE_EXCITE = 10  # NHWC squeeze-and-excitation, any architecture
    ELEMENTWISE = 11  # an epilogue chain by itself, any architecture
    LAYOUT = 12  # NCHW to NHWC and back, any architecture
    B2B_GEMM_SM90 = 13  # several GEMMs in one kernel, what lies between them in registers; sm_90a
    # a convolution and 1x1 convolutions behind it in one kernel; sm_90a
    B2B_CONV_SM90 = 14  # the first one as CONV_SM90 has it
    B2B_HALO_SM90 = 15  # as HALO_SM90
    B2B_STEM_SM90 = 16  # as STEM_SM90
    B2B_GEMM_SMALL = 17  # several GEMMs too narrow for tensor cores in one kernel, any architecture
    B2B_GEMM_2X = 18  # several GEMMs in one kernel with mma.sync, sm_75 and later
    RESIZE = 19  # our NHWC resizing kernels, any architecture
    # several GEMMs of up to 512 columns in one kernel, what lies between them in shared memory;
    # sm_90a
    B2B_GEMM_WIDE_SM90 = 20
    # two GEMMs, or 1x1 convolutions, the first one's result stored as well, or with residuals;
    # sm_90a
    B2B_STORED_SM90 = 21
    GEMM_ROWS_SM90 = 22  # GEMM whose rows TMA cannot read: B2B_GEMM_SM90 of one layer
    # a convolution, as CONV_2X has it, and 1x1 convolutions behind it in one kernel, sm_75 and
    # later
    B2B_CONV_2X = 23


class Schedule(enum.IntEnum):
    """How the consumer warpgroups of an sm_90a kernel share the tiles."""

    NONE = 0
    COOPERATIVE = 1
    PINGPONG = 2


class Iterator(enum.IntEnum):
    """2.x implicit GEMM: how the activation tensor is walked."""

    NONE = 0
    ANALYTIC = 1
    OPTIMIZED = 2
    FIXED_CHANNELS = 3  # input channels == align_a (4 or 8): filter positions are packed along k


@dataclass(frozen=True, order=True)
class KernelConfig:
    """One row of a node's configuration table. Shapes in elements; m counts rows of the
    (implicit) GEMM."""

    arch: int  # 75, 80, 86, 89, 90 (90 means sm_90a)
    min_m: int  # the row serves min_m <= m <= max_m
    max_m: int
    family: Family
    threadblock: tuple[int, int, int]
    warp: tuple[int, int, int] = (0, 0, 0)
    instruction: tuple[int, int, int] = (0, 0, 0)
    stages: int = 0  # 0: as many as shared memory holds (families of sm_90a)
    swizzle: int = 1
    cluster: tuple[int, int] = (1, 1)
    schedule: Schedule = Schedule.NONE
    align_a: int = 8
    align_b: int = 8
    align_c: int = 8
    iterator: Iterator = Iterator.NONE
    split_k: int = 1
    consumers: int = 0  # consumer warpgroups of a block (our sm_90a families)
    # 1: the weights of a block's output channels stay in shared memory (our sm_90a families)
    resident: int = 0

    def row(self) -> list[int]:
        """The configuration as numbers, in field order."""
        numbers: list[int] = []
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            (
                numbers.extend(int(v) for v in value)
                if isinstance(value, tuple)
                else numbers.append(int(value))
            )
        return numbers

    @classmethod
    def from_row(cls, numbers: list[int]) -> KernelConfig:
        """The inverse of `row`."""
        n = [int(v) for v in numbers]
        if len(n) != ROW_WIDTH:
            raise ValueError(f"a configuration row has {ROW_WIDTH} numbers, not {len(n)}")
        return cls(
            n[0],
            n[1],
            n[2],
            Family(n[3]),
            (n[4], n[5], n[6]),
            (n[7], n[8], n[9]),
            (n[10], n[11], n[12]),
            n[13],
            n[14],
            (n[15], n[16]),
            Schedule(n[17]),
            n[18],
            n[19],
            n[20],
            Iterator(n[21]),
            n[22],
            n[23],
            n[24],
        )

    def instance(self) -> KernelConfig:
        """What has to be compiled: the row without what a launch decides."""
        swizzle = 1 if self.family in SWIZZLED_AT_LAUNCH else self.swizzle
        # how a tile lies in the image
        warp = (0, 0, 0) if self.family in TILED_AT_LAUNCH else self.warp
        return dataclasses.replace(
            self, min_m=0, max_m=UNBOUNDED, split_k=1, swizzle=swizzle, warp=warp
        )


ROW_WIDTH = 25
SWIZZLED_AT_LAUNCH = (Family.GEMM_3X, Family.GEMM_SM90, Family.CONV_SM90)
SPLIT_AT_LAUNCH = (Family.GEMM_SM90, Family.CONV_SM90)
TILED_AT_LAUNCH = (Family.HALO_SM90, Family.B2B_HALO_SM90)


@dataclass(frozen=True)
class GemmProblem:
    """D[M, N] = epilogue(A[M, K] B[N, K]^T); pitches in elements."""

    m: int
    n: int
    k: int
    dtype: DType
    out: DType
    chain: tuple[str, ...]  # epilogue step names, see epilogues/
    # columns of the layers before the last, where `chain` holds further products; the last has `n`
    inner: tuple[int, ...] = ()

    @property
    def rows(self) -> int:
        return self.m

    @property
    def flops(self) -> int:
        widths = (self.k, *self.inner, self.n)
        return 2 * self.m * sum(k * n for k, n in itertools.pairwise(widths))

    @cached_property
    def layers(self) -> tuple[GemmProblem, ...]:
        """Each product with its epilogue as a problem of its own."""
        widths, chains = (self.k, *self.inner, self.n), layers(self.chain)
        last = len(chains) - 1
        return tuple(
            GemmProblem(self.m, n, k, self.dtype, self.out if i == last else self.dtype, chains[i])
            for i, (k, n) in enumerate(itertools.pairwise(widths))
        )


@dataclass(frozen=True)
class ConvProblem:
    """NHWC x KRSC -> NPQK; channels as stored (padding included)."""

    n: int
    h: int
    w: int
    c: int
    k: int
    r: int
    s: int
    p: int
    q: int
    pads: tuple[int, int, int, int]  # top, left, bottom, right
    strides: tuple[int, int]
    dilations: tuple[int, int]
    groups: int
    dtype: DType
    out: DType
    chain: tuple[str, ...]
    nchw: bool = False  # x is read as ONNX has it: a model's first convolution
    # channels of the layers before the last, where `chain` holds 1x1 convolutions; the last has `k`
    inner: tuple[int, ...] = ()
    y_nchw: bool = False  # y is written as ONNX has it, without padding: what leaves channels last
    # of `k`, where `chain` ends with a Store: then y is written in both forms, and these channels
    # are not ONNX's
    padding: int = 0

    @property
    def both_forms(self) -> bool:
        """Whether y is written as ONNX has it, in `out`, and with its channels last, in `dtype`."""
        return self.y_nchw and STORE in self.chain

    @property
    def in_rows(self) -> ConvProblem:
        """Where y is written in both forms, the problem without the one that ONNX has."""
        return dataclasses.replace(
            self, out=self.dtype, chain=self.chain[:-1], y_nchw=False, padding=0
        )

    @property
    def rows(self) -> int:
        """Of the implicit GEMM: output pixels."""
        return self.n * self.p * self.q

    @property
    def depth(self) -> int:
        """Input channels that an output channel meets."""
        return self.c // self.groups

    @property
    def depthwise(self) -> bool:
        """Each channel by itself."""
        return self.groups == self.c == self.k > 1

    @property
    def flops(self) -> int:
        depths = (self.r * self.s * self.c // self.groups, *self.inner)
        return (
            2
            * self.rows
            * sum(n * depth for n, depth in zip((*self.inner, self.k), depths, strict=True))
        )

    @cached_property
    def layers(self) -> tuple[ConvProblem, ...]:
        """Each convolution with its epilogue as a problem of its own."""
        chains, widths = layers(self.chain), (*self.inner, self.k)
        last = len(chains) - 1
        outs = [self.out if i == last else self.dtype for i in range(len(chains))]
        behind = [
            ConvProblem(
                self.n,
                self.p,
                self.q,
                c,
                k,
                1,
                1,
                self.p,
                self.q,
                (0, 0, 0, 0),
                (1, 1),
                (1, 1),
                1,
                self.dtype,
                out,
                chain,
            )
            for c, k, out, chain in zip(widths, widths[1:], outs[1:], chains[1:], strict=False)
        ]
        return (
            dataclasses.replace(self, k=widths[0], out=outs[0], chain=chains[0], inner=()),
            *behind,
        )


@dataclass(frozen=True)
class SqueezeExciteProblem:
    """y[N, H, W, C] = x gate(squeeze(mean(x) W1^T) W2^T), W1 [S, C], W2 [C, S]; channels as
    stored (padding included)."""

    n: int
    h: int
    w: int
    c: int
    s: int  # squeezed channels
    dtype: DType
    out: DType
    chain: tuple[str, ...]  # both activations

    @property
    def rows(self) -> int:
        return self.n * self.h * self.w

    @property
    def flops(self) -> int:
        return 2 * self.rows * self.c + 4 * self.n * self.s * self.c
