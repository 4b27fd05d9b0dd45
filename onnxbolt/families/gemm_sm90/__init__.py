"""GEMM on sm_90a: persistent, warp-specialized, TMA and wgmma."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from onnxbolt.archs import Arch, Capability, get
from onnxbolt.families.base import Compiled, Family
from onnxbolt.families.blocks import sm90
from onnxbolt.families.blocks.memory import memory_us
from onnxbolt.families.blocks.sm90 import Sm90Config
from onnxbolt.problems import GemmProblem, GluProblem, RotaryProblem

_Served: TypeAlias = GemmProblem | GluProblem | RotaryProblem
# rows of tiles that blocks walk through together, so that they share rows of A and B in L2
_BAND = 8


@dataclass(frozen=True, kw_only=True)
class GemmSm90Config(Sm90Config):
    """See Sm90Config."""


class GemmSm90(Family[GemmSm90Config]):
    """Serves GEMMs whose rows TMA can read and write, also those of gated units and of rotary
    embeddings."""

    number, name, config = 5, "gemm_sm90", GemmSm90Config
    problems = (GemmProblem, GluProblem, RotaryProblem)
    kinds = frozenset({"gemm", "glu", "rotary"})
    needs = frozenset({Capability.CLUSTERS, Capability.TMA, Capability.WGMMA})

    def candidates(self, problem: _Served, arch: Arch) -> tuple[GemmSm90Config, ...]:
        if problem.inner:
            return ()
        return sm90.candidates(GemmSm90Config, problem, arch, _BAND)

    def shared_memory(self, kernel: Compiled) -> int:
        return sm90.shared_memory(
            kernel.config, kernel, get(kernel.config.arch), staged_in_rows=True
        )

    def predicted_us(self, problem: _Served, config: GemmSm90Config, arch: Arch) -> float:
        return sm90.predicted_us(problem, config, arch, memory_us(problem, arch))

    def terms(self, problem: _Served, config: GemmSm90Config, arch: Arch) -> Mapping[str, float]:
        return sm90.terms(problem, config, arch)

    def launches(self, config: GemmSm90Config) -> Sequence[Sequence[GemmSm90Config]]:
        return [sm90.launch_swizzles(config), sm90.launch_splits(config)]
