"""Convolutions of volumes on sm_90a: an implicit GEMM whose pixels TMA's im2col gathers along three
axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from onnxbolt.archs import Arch, Capability, get
from onnxbolt.families.base import Compiled, Family
from onnxbolt.families.blocks import sm90
from onnxbolt.families.blocks.memory import memory_us
from onnxbolt.families.blocks.sm90 import Sm90Config
from onnxbolt.problems import Conv3dProblem


@dataclass(frozen=True, kw_only=True)
class Conv3dSm90Config(Sm90Config):
    """See Sm90Config."""


class Conv3dSm90(Family[Conv3dSm90Config]):
    """Serves convolutions of volumes whose rows TMA can read and write."""

    number, name, config = 31, "conv3d_sm90", Conv3dSm90Config
    problems, kinds = (Conv3dProblem,), frozenset({"conv3d"})
    needs = frozenset({Capability.CLUSTERS, Capability.TMA, Capability.WGMMA})

    def candidates(self, problem: Conv3dProblem, arch: Arch) -> tuple[Conv3dSm90Config, ...]:
        if problem.depthwise or not sm90.im2col_reaches(problem):
            return ()
        return sm90.candidates(Conv3dSm90Config, problem, arch, swizzle=1)

    def shared_memory(self, kernel: Compiled) -> int:
        arch = get(kernel.config.arch)
        return sm90.shared_memory(kernel.config, kernel, arch, staged_in_rows=True)

    def predicted_us(self, problem: Conv3dProblem, config: Conv3dSm90Config, arch: Arch) -> float:
        return sm90.predicted_us(problem, config, arch, memory_us(problem, arch))

    def launches(self, config: Conv3dSm90Config) -> Sequence[Sequence[Conv3dSm90Config]]:
        return [sm90.launch_swizzles(config), sm90.launch_splits(config)]
