"""GEMM of codes of 8 bits on sm_90a: persistent, warp-specialized, TMA and wgmma."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from onnxbolt.archs import Arch, Capability, get
from onnxbolt.families.base import Compiled, Family
from onnxbolt.families.blocks import codes, sm90
from onnxbolt.families.blocks.codes import CodesConfig, Offsets
from onnxbolt.problems import QuantizedGemmProblem

# rows of tiles that blocks walk through together, so that they share rows of A and B in L2
_BAND = 8


@dataclass(frozen=True, kw_only=True)
class QuantizedGemmSm90Config(CodesConfig):
    """See CodesConfig."""


class QuantizedGemmSm90(Family[QuantizedGemmSm90Config]):
    """Serves GEMMs of codes whose rows TMA can read and write."""

    number, name, config = 34, "quantized_gemm_sm90", QuantizedGemmSm90Config
    problems, kinds = (QuantizedGemmProblem,), frozenset({"quantized_gemm"})
    needs = frozenset({Capability.CLUSTERS, Capability.TMA, Capability.WGMMA})
    moves_values = True

    def candidates(
        self, problem: QuantizedGemmProblem, arch: Arch
    ) -> tuple[QuantizedGemmSm90Config, ...]:
        offsets = Offsets.BY_COLUMN if problem.offsets else Offsets.NONE
        return tuple(codes.candidates(QuantizedGemmSm90Config, problem, arch, _BAND, offsets))

    def shared_memory(self, kernel: Compiled) -> int:
        return codes.shared_memory(kernel, get(kernel.config.arch))

    def predicted_us(
        self, problem: QuantizedGemmProblem, config: QuantizedGemmSm90Config, arch: Arch
    ) -> float:
        return codes.predicted_us(problem, config, arch)

    def launches(
        self, config: QuantizedGemmSm90Config
    ) -> Sequence[Sequence[QuantizedGemmSm90Config]]:
        return [sm90.launch_swizzles(config), sm90.launch_splits(config)]
