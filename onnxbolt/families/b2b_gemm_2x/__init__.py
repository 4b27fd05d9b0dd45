"""Back-to-back GEMMs in one kernel with mma.sync, sm_75 and later."""

from __future__ import annotations

from dataclasses import dataclass

from onnxbolt.archs import Arch, Capability
from onnxbolt.families.base import Compiled, Family, Layers
from onnxbolt.families.blocks import b2b, b2b_mma
from onnxbolt.families.blocks.b2b_mma import B2bMmaConfig
from onnxbolt.families.blocks.memory import memory_us
from onnxbolt.problems import GemmProblem


@dataclass(frozen=True, kw_only=True)
class B2bGemm2xConfig(B2bMmaConfig):
    """See B2bMmaConfig."""


class B2bGemm2x(Family[B2bGemm2xConfig]):
    """Serves layers of up to 256 columns."""

    number, name, config = 18, "b2b_gemm_2x", B2bGemm2xConfig
    takes = ("element", "output", "layers")
    problems, kinds = (GemmProblem,), frozenset({"gemm", "gemm_chain"})
    needs = frozenset({Capability.MMA_SYNC})
    fixed = b2b_mma.FIXED_SLOTS
    waits = False

    def candidates(self, problem: GemmProblem, arch: Arch) -> tuple[B2bGemm2xConfig, ...]:
        return b2b_mma.candidates(B2bGemm2xConfig, problem, arch) if problem.inner else ()

    def shared_memory(self, kernel: Compiled) -> int:
        return b2b_mma.shared_memory(kernel.config, kernel)

    def predicted_us(self, problem: GemmProblem, config: B2bGemm2xConfig, arch: Arch) -> float:
        return b2b_mma.predicted_us(problem, config, arch, memory_us(problem, arch))

    def shortage(self, problem: GemmProblem, arch: Arch) -> str | None:
        return b2b_mma.shortage(B2bGemm2xConfig, problem, arch)

    def joins(self, layers: Layers) -> bool:
        return b2b.serves(layers.dtype, layers.widths, layers.steps)
