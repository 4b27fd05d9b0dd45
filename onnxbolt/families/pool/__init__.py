"""Pooling in NHWC and NDHWC, on any architecture: one kernel for every window; each thread computes
a vector of channels of an output pixel."""

from __future__ import annotations

from dataclasses import dataclass

from onnxbolt.archs import Arch
from onnxbolt.dtypes import INTEGERS
from onnxbolt.families.base import Compiled, Family, KernelConfig, access, tile_size
from onnxbolt.families.blocks.access import alignment
from onnxbolt.families.row import at
from onnxbolt.onnxruntime_time import pool_us
from onnxbolt.problems import PoolProblem, VolumePoolProblem

_THREADS = 256


@dataclass(frozen=True, kw_only=True)
class PoolConfig(KernelConfig):
    """Threads of a block, and channels in one access."""

    threads: int = at("tile_m", default=_THREADS, sound=tile_size)
    access: int = at("align_a", "align_b", "align_c", repeated=True, default=8, sound=access)


class Pool(Family[PoolConfig]):
    """Maximum, average and global average."""

    number, name, config = 4, "pool", PoolConfig
    takes = ("element", "output")
    problems = (PoolProblem, VolumePoolProblem)
    kinds = frozenset({"max_pool", "average_pool", "global_average_pool"})
    tensor_cores = False
    codes = INTEGERS

    def candidates(
        self, problem: PoolProblem | VolumePoolProblem, arch: Arch
    ) -> tuple[PoolConfig, ...]:
        """The one configuration."""
        return (PoolConfig(arch=arch.number, access=alignment(problem.c, problem.dtype)),)

    def shared_memory(self, kernel: Compiled) -> int:
        return 0

    def predicted_us(
        self, problem: PoolProblem | VolumePoolProblem, config: PoolConfig, arch: Arch
    ) -> float:
        read, written = problem.x_elements, problem.rows * problem.columns
        return pool_us(read, written, problem.dtype, arch)
