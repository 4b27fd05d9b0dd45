"""Pooling kernels in NHWC: one kernel for every window, a thread to each vector of channels of
an output pixel."""

from __future__ import annotations

from dataclasses import dataclass

from onnxbolt.archs import Arch
from onnxbolt.dtypes import DType
from onnxbolt.kernels.config import UNBOUNDED, Family, KernelConfig
from onnxbolt.kernels.feasibility import alignment

_THREADS = 256


@dataclass(frozen=True)
class PoolProblem:
    """y[N,P,Q,C] = max or mean over windows of x[N,H,W,C]; channels as stored."""

    n: int
    h: int
    w: int
    c: int
    p: int
    q: int
    dtype: DType


def candidates(problem: PoolProblem, arch: Arch) -> tuple[KernelConfig, ...]:
    """The one configuration: `threadblock` = (threads, 1, 1), `align_a` = `align_c` = channels
    in one access."""
    width = alignment(problem.c, problem.dtype)
    return (
        KernelConfig(
            arch.number,
            0,
            UNBOUNDED,
            Family.POOL,
            (_THREADS, 1, 1),
            align_a=width,
            align_b=width,
            align_c=width,
        ),
    )
