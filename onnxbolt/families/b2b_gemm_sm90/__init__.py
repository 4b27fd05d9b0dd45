"""Back-to-back GEMMs in one kernel on sm_90a; intermediate results stay in registers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from onnxbolt.archs import Arch, Capability
from onnxbolt.families.base import Compiled, Family, Layers
from onnxbolt.families.blocks import b2b
from onnxbolt.families.blocks.b2b import B2bConfig
from onnxbolt.families.blocks.memory import memory_us
from onnxbolt.families.row import at
from onnxbolt.problems import GemmProblem


@dataclass(frozen=True, kw_only=True)
class B2bGemmSm90Config(B2bConfig):
    """Beside a `B2bConfig`: the columns of the layers behind the first, zero where there is
    none."""

    later: tuple[int, ...] = at("warp_m", "warp_n", "warp_k")  # type: ignore[misc]


class B2bGemmSm90(Family[B2bGemmSm90Config]):
    """Serves layers of up to 256 columns."""

    number, name, config = 13, "b2b_gemm_sm90", B2bGemmSm90Config
    takes = ("element", "output", "layers")
    problems, kinds = (GemmProblem,), frozenset({"gemm", "gemm_chain"})
    needs = frozenset({Capability.TMA, Capability.WGMMA})

    def candidates(self, problem: GemmProblem, arch: Arch) -> tuple[B2bGemmSm90Config, ...]:
        served = problem.inner and arch.supports(problem.dtype)
        if not served or not b2b.serves(problem.dtype, problem.widths, problem.chain):
            return ()
        return b2b.configs(B2bGemmSm90Config, problem, arch)

    def shared_memory(self, kernel: Compiled) -> int:
        return b2b.compiled_bytes(kernel.config, kernel)

    def predicted_us(self, problem: GemmProblem, config: B2bGemmSm90Config, arch: Arch) -> float:
        return b2b.predicted_us(problem, config, arch, memory_us(problem, arch))

    def terms(
        self, problem: GemmProblem, config: B2bGemmSm90Config, arch: Arch
    ) -> Mapping[str, float]:
        return b2b.terms(problem, config, arch)

    def joins(self, layers: Layers) -> bool:
        return b2b.serves(layers.dtype, layers.widths, layers.steps)
