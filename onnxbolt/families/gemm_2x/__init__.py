"""GEMM by CUTLASS 2.x: mma.sync, sm_75 and later."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from onnxbolt.archs import Arch, Capability
from onnxbolt.families.base import Compiled, Family
from onnxbolt.families.blocks import mma_sync
from onnxbolt.families.blocks.access import alignment
from onnxbolt.families.blocks.mma_sync import MAX_PREDICATES, MmaConfig
from onnxbolt.problems import BatchedGemmProblem, GemmProblem, MatmulProblem, RotaryProblem

_Served: TypeAlias = BatchedGemmProblem | GemmProblem | MatmulProblem | RotaryProblem


@dataclass(frozen=True, kw_only=True)
class Gemm2xConfig(MmaConfig):
    """See MmaConfig."""


class Gemm2x(Family[Gemm2xConfig]):
    """Runs on every architecture whose tensor cores multiply the type."""

    number, name, config = 1, "gemm_2x", Gemm2xConfig
    problems = (BatchedGemmProblem, GemmProblem, MatmulProblem, RotaryProblem)
    kinds = frozenset({"batched_gemm", "gemm", "rotary"})
    needs = frozenset({Capability.MMA_SYNC})
    heuristics_target = "CUTLASS"
    waits, compile_seconds, generation = False, 3.0, 0

    def candidates(self, problem: _Served, arch: Arch) -> tuple[Gemm2xConfig, ...]:
        if problem.inner or not arch.supports(problem.dtype):
            return ()
        dtype, (columns, depth) = problem.dtype, problem.divisors
        found = mma_sync.configs(
            Gemm2xConfig, dtype, alignment(depth, dtype), alignment(columns, dtype), arch
        )
        return tuple(
            config
            for config in dict.fromkeys(found)
            if mma_sync.is_feasible(config, dtype, arch) and predicates(config) <= MAX_PREDICATES
        )

    def shared_memory(self, kernel: Compiled) -> int:
        return mma_sync.shared_memory(kernel.config, kernel.dtype)

    def predicted_us(self, problem: _Served, config: Gemm2xConfig, arch: Arch) -> float:
        return mma_sync.predicted_us(problem, config, arch)


def predicates(config: Gemm2xConfig) -> int:
    """Guarded accesses that one thread makes to load the larger of its two tiles."""
    m, n, k = config.tile
    return max(m, n) // config.access_k * k // config.threads
