"""GEMM on sm_90a for rows of A that TMA cannot read: back-to-back GEMMs with a single layer, whose
loader works without TMA.

A block computes all columns, at most 256. Rows of B are padded to multiples of 16 bytes, which TMA
reads.
"""

from __future__ import annotations

from dataclasses import dataclass

from onnxbolt.archs import Arch, Capability
from onnxbolt.dtypes import DType
from onnxbolt.families.base import Compiled, Family
from onnxbolt.families.blocks import b2b
from onnxbolt.families.blocks.b2b import B2bConfig
from onnxbolt.families.blocks.memory import memory_us
from onnxbolt.problems import GemmProblem


@dataclass(frozen=True, kw_only=True)
class GemmRowsSm90Config(B2bConfig):
    """See B2bConfig."""


class GemmRowsSm90(Family[GemmRowsSm90Config]):
    """Serves GEMMs with rows that TMA cannot read."""

    number, name, config = 22, "gemm_rows_sm90", GemmRowsSm90Config
    problems, kinds = (GemmProblem,), frozenset({"gemm"})
    needs = frozenset({Capability.TMA, Capability.WGMMA})

    def candidates(self, problem: GemmProblem, arch: Arch) -> tuple[GemmRowsSm90Config, ...]:
        if problem.inner or not arch.supports(problem.dtype):
            return ()
        if not serves(problem.dtype, problem.n) or problem.k % problem.dtype.alignment == 0:
            return ()
        return b2b.configs(GemmRowsSm90Config, problem, arch)

    def shared_memory(self, kernel: Compiled) -> int:
        return b2b.compiled_bytes(kernel.config, kernel)

    def predicted_us(self, problem: GemmProblem, config: GemmRowsSm90Config, arch: Arch) -> float:
        return b2b.predicted_us(problem, config, arch, memory_us(problem, arch))

    def reads_any_rows(self, dtype: DType, columns: int) -> bool:
        return serves(dtype, columns)


def serves(dtype: DType, columns: int) -> bool:
    """True if there is a kernel for this type and number of columns."""
    return dtype.bytes == 2 and columns <= b2b.COLUMNS[-1]
