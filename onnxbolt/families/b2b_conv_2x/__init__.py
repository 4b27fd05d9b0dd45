"""A convolution and 1x1 convolutions behind it in one kernel with mma.sync, sm_75 and later: the
tiles of back-to-back GEMMs with an implicit GEMM as the first product."""

from __future__ import annotations

from dataclasses import dataclass

from onnxbolt.archs import Arch, Capability
from onnxbolt.epilogues import MEAN, fits_several
from onnxbolt.families.base import Compiled, Family, Layers
from onnxbolt.families.blocks import b2b, b2b_mma
from onnxbolt.families.blocks.b2b_mma import B2bMmaConfig
from onnxbolt.families.blocks.memory import memory_us
from onnxbolt.families.blocks.mma_sync import MASK_BITS, MAX_IMAGE_ROWS, WALKS, Walk
from onnxbolt.families.row import at
from onnxbolt.integers import ceil_divide
from onnxbolt.problems import ConvProblem, GemmProblem

_ACCESS = 16  # bytes
_WALK_REGISTERS = 8  # registers of a thread, beyond those of a GEMM


@dataclass(frozen=True, kw_only=True)
class B2bConv2xConfig(B2bMmaConfig):
    """See B2bMmaConfig."""

    walk: Walk = at("iterator", numbers=WALKS)


class B2bConv2x(Family[B2bConv2xConfig]):
    """Serves convolutions without groups."""

    number, name, config = 23, "b2b_conv_2x", B2bConv2xConfig
    takes = ("element", "output", "layers")
    problems, kinds = (ConvProblem,), frozenset({"conv", "conv1d", "conv_chain"})
    needs = frozenset({Capability.MMA_SYNC})
    fixed = b2b_mma.FIXED_SLOTS
    waits = False

    def candidates(self, problem: ConvProblem, arch: Arch) -> tuple[B2bConv2xConfig, ...]:
        if not problem.inner or problem.nchw or problem.y_nchw or MEAN in problem.chain:
            return ()
        if problem.groups != 1 or not fits_several(problem.chain):
            return ()
        small = max(problem.r, problem.s) <= MASK_BITS
        gemm = as_gemm(problem, problem.c)
        walk = Walk.OPTIMIZED if small else Walk.ANALYTIC
        found = b2b_mma.candidates(B2bConv2xConfig, gemm, arch, walk=walk)
        most = arch.registers_per_thread - _WALK_REGISTERS
        return tuple(
            config
            for config in found
            if _image_rows(config, problem) <= MAX_IMAGE_ROWS
            and b2b_mma.registers(config, gemm) <= most
        )

    def shared_memory(self, kernel: Compiled) -> int:
        return b2b_mma.shared_memory(kernel.config, kernel)

    def predicted_us(self, problem: ConvProblem, config: B2bConv2xConfig, arch: Arch) -> float:
        """Each k-block belongs to one filter position."""
        k = problem.r * problem.s * ceil_divide(problem.c, config.depth) * config.depth
        moved = memory_us(problem, arch)
        return b2b_mma.predicted_us(as_gemm(problem, k), config, arch, moved)

    def shortage(self, problem: ConvProblem, arch: Arch) -> str | None:
        gemm = as_gemm(problem, problem.c)
        return b2b_mma.shortage(B2bConv2xConfig, gemm, arch, walk=Walk.OPTIMIZED)

    def joins(self, layers: Layers) -> bool:
        return b2b.joins_convs(layers)


def as_gemm(problem: ConvProblem, k: int) -> GemmProblem:
    """The implicit GEMM with `k` values in a row."""
    dtype, out = problem.dtype, problem.out
    return GemmProblem(problem.rows, problem.k, k, dtype, out, problem.chain, problem.inner)


def _image_rows(config: B2bConv2xConfig, problem: ConvProblem) -> int:
    """Pixels of the tile that one thread loads."""
    return config.rows * config.depth * problem.dtype.bytes // (_ACCESS * config.threads)
