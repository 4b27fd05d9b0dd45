"""Poolings, which are not tuned: one kernel serves each."""

from __future__ import annotations

import math
from dataclasses import dataclass

from onnxbolt.archs import Arch
from onnxbolt.dtypes import DType
from onnxbolt.onnxruntime_time import pool_us
from onnxbolt.problems.base import Problem


@dataclass(frozen=True)
class PoolProblem(Problem):
    """y[N,P,Q,C] = max or mean over windows of x[N,H,W,C]; channels as stored."""

    operation = "pool"

    n: int
    h: int
    w: int
    c: int
    p: int
    q: int
    dtype: DType
    out: DType
    chain: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        return self.n * self.p * self.q

    @property
    def columns(self) -> int:
        return self.c

    @property
    def bytes_moved(self) -> int:
        return self.x_elements * self.dtype.bytes + self.rows * self.c * self.out.bytes

    @property
    def shape(self) -> str:
        return f"pool {self.n}x{self.h}x{self.w}x{self.c} to {self.p}x{self.q}"

    @property
    def x_elements(self) -> int:
        """Values of x."""
        return self.n * self.h * self.w * self.c

    def onnxruntime_us(self, arch: Arch) -> float:
        return pool_us(self.x_elements, self.rows * self.c, self.dtype, arch)


@dataclass(frozen=True)
class VolumePoolProblem(Problem):
    """y[N,O,P,Q,C] = max or mean over windows of several slices of x[N,D,H,W,C]; channels as
    stored. `x` and `y` are sizes of depth, height and width."""

    operation = "pool"

    n: int
    x: tuple[int, int, int]
    c: int
    y: tuple[int, int, int]
    dtype: DType
    out: DType
    chain: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        return self.n * math.prod(self.y)

    @property
    def columns(self) -> int:
        return self.c

    @property
    def x_elements(self) -> int:
        """Values of x."""
        return self.n * math.prod(self.x) * self.c

    @property
    def bytes_moved(self) -> int:
        return self.x_elements * self.dtype.bytes + self.rows * self.c * self.out.bytes

    @property
    def shape(self) -> str:
        sizes = ("x".join(map(str, sizes)) for sizes in ((self.n, *self.x, self.c), self.y))
        return f"pool {' to '.join(sizes)}"

    def onnxruntime_us(self, arch: Arch) -> float:
        return pool_us(self.x_elements, self.rows * self.c, self.dtype, arch)
