"""A kernel family: GEMM on the CUDA cores.

Its products of fp32 are exact where tensor cores round them to TF32, and it serves types that an
architecture's tensor cores lack, as fp32 on sm_75.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from onnxbolt.archs import Arch
from onnxbolt.extensions import Extension
from onnxbolt.families.base import Compiled, Family, KernelConfig, positive, tile_size
from onnxbolt.families.blocks.tiled import Step, k_steps, kernel_us
from onnxbolt.families.row import at
from onnxbolt.problems import GemmProblem

_EFFICIENCY = 0.5  # share of the CUDA cores' rate
_WIDE_STORE = 0.5  # part of the rate of stores of 16 bytes
_RESIDENT = 2.0  # blocks of one SM
_FLOAT = 4  # bytes
_SHAPES = (((64, 64, 16), (4, 4)), ((128, 64, 16), (8, 4)), ((32, 32, 32), (2, 2)))


@dataclass(frozen=True, kw_only=True)
class GemmFmaConfig(KernelConfig):
    """A block's tile (m, n, k), and the rectangle of it (m, n) that one thread adds up."""

    tile: tuple[int, int, int] = at(
        "tile_m", "tile_n", "tile_k", sound=lambda tile: all(map(tile_size, tile))
    )
    thread: tuple[int, int] = at("warp_m", "warp_n", sound=positive)

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.tile[0] // self.thread[0] * (self.tile[1] // self.thread[1])

    def mismatched(self) -> list[str]:
        """Threads share a tile evenly, a block has at most 1024, and 48 KiB of shared memory."""
        m, n, k = self.tile
        uneven = any(size % part for size, part in zip((m, n), self.thread, strict=True))
        return (
            super().mismatched()
            + (["thread"] if uneven or self.threads > 1024 else [])
            + (["tile"] if (m + n) * k * _FLOAT > 48 * 1024 else [])
        )


class GemmFma(Family[GemmFmaConfig]):
    """On every architecture, for every type."""

    number, name, config = 1000, "gemm_fma", GemmFmaConfig
    problems, kinds = (GemmProblem,), frozenset({"gemm"})
    tensor_cores, waits = False, False

    def candidates(self, problem: GemmProblem, arch: Arch) -> tuple[GemmFmaConfig, ...]:
        if problem.inner:
            return ()
        return tuple(
            GemmFmaConfig(arch=arch.number, tile=tile, thread=thread) for tile, thread in _SHAPES
        )

    def shared_memory(self, kernel: Compiled) -> int:
        """None beside the kernel's own arrays."""
        return 0

    def predicted_us(self, problem: GemmProblem, config: GemmFmaConfig, arch: Arch) -> float:
        m, n, k = config.tile
        rate = arch.fp32_flops * _EFFICIENCY / arch.sm_count
        read = config.threads * sum(config.thread) * k * _FLOAT
        step = Step(config.tile, rate, read, (m + n) * k * problem.dtype.bytes)
        steps = k_steps(problem, k)
        return kernel_us(
            problem, config.tile, steps, step.us(1.0, arch), _WIDE_STORE, _RESIDENT, arch
        )


GEMM_FMA = GemmFma()
EXTENSION = Extension(
    name="gemm_fma", families=(GEMM_FMA,), include_dirs=(Path(__file__).with_name("include"),)
)
