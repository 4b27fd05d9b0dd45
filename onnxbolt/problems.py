"""The problems that kernels solve: plain data, with the shapes as they are stored.

The names of these classes and of their fields stand in the keys of measurements and in lock files.
"""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass
from functools import cached_property

from onnxbolt.dtypes import DType
from onnxbolt.epilogues import STORE, layers

UNBOUNDED = 2**31 - 1  # rows: as many as there are


class Problem:
    """What a kernel solves; `dtype` is the element type of x."""

    dtype: DType


@dataclass(frozen=True)
class GemmProblem(Problem):
    """D[M, N] = epilogue(A[M, K] B[N, K]^T); pitches in elements."""

    m: int
    n: int
    k: int
    dtype: DType
    out: DType
    chain: tuple[str, ...]  # names of the epilogue's steps (onnxbolt/epilogues/)
    # columns of the layers before the last, where `chain` holds further products
    inner: tuple[int, ...] = ()

    @property
    def rows(self) -> int:
        return self.m

    @property
    def columns(self) -> int:
        """Of the output."""
        return self.n

    @property
    def widths(self) -> tuple[int, ...]:
        """Columns of each layer."""
        return (*self.inner, self.n)

    @property
    def depth(self) -> int:
        """Values that an output column meets in one step of k: all of them."""
        return self.k

    @property
    def is_matrix(self) -> bool:
        """True, since the activations are a matrix as they lie."""
        return True

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
class ConvProblem(Problem):
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
    nchw: bool = False  # x is NCHW: a stem convolution
    # channels of the layers before the last, where `chain` holds 1x1 convolutions
    inner: tuple[int, ...] = ()
    y_nchw: bool = False  # y is NCHW and has no padded channels
    # padded channels among `k`, where `chain` ends with a Store: y is written in NHWC with them,
    # and in NCHW without them
    padding: int = 0

    @property
    def both_forms(self) -> bool:
        """True if y is written twice: in NCHW as `out`, and in NHWC as `dtype`."""
        return self.y_nchw and STORE in self.chain

    @property
    def in_rows(self) -> ConvProblem:
        """Where y is written in both forms, the problem with the one in NHWC alone."""
        return dataclasses.replace(
            self, out=self.dtype, chain=self.chain[:-1], y_nchw=False, padding=0
        )

    @property
    def rows(self) -> int:
        """Of the implicit GEMM: output pixels."""
        return self.n * self.p * self.q

    @property
    def columns(self) -> int:
        """Of the implicit GEMM's output: channels."""
        return self.k

    @property
    def widths(self) -> tuple[int, ...]:
        """Output channels of each layer."""
        return (*self.inner, self.k)

    @property
    def is_matrix(self) -> bool:
        """True if the activations are a matrix as they lie: a 1x1 convolution over every pixel."""
        return self.r == self.s == 1 and self.strides == (1, 1) and not any(self.pads)

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
class SqueezeExciteProblem(Problem):
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

    @property
    def image_bytes(self) -> int:
        """Of x and y together."""
        return 2 * self.rows * self.c * self.dtype.bytes


@dataclass(frozen=True)
class PoolProblem(Problem):
    """y[N,P,Q,C] = max or mean over windows of x[N,H,W,C]; channels as stored."""

    n: int
    h: int
    w: int
    c: int
    p: int
    q: int
    dtype: DType
