"""Convolutions of codes of 8 bits on sm_90a as implicit GEMM: TMA's im2col, or tiled TMA where a
convolution is a GEMM."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from onnxbolt.archs import Arch, Capability, get
from onnxbolt.families.base import Compiled, Family
from onnxbolt.families.blocks import codes, sm90
from onnxbolt.families.blocks.codes import CodesConfig, Offsets
from onnxbolt.problems import QuantizedConvProblem


@dataclass(frozen=True, kw_only=True)
class QuantizedConvSm90Config(CodesConfig):
    """See CodesConfig."""


class QuantizedConvSm90(Family[QuantizedConvSm90Config]):
    """Serves convolutions of codes, in one group, whose rows TMA can read and write."""

    number, name, config = 35, "quantized_conv_sm90", QuantizedConvSm90Config
    problems, kinds = (QuantizedConvProblem,), frozenset({"quantized_conv"})
    needs = frozenset({Capability.CLUSTERS, Capability.TMA, Capability.WGMMA})
    moves_values = True

    def candidates(
        self, problem: QuantizedConvProblem, arch: Arch
    ) -> tuple[QuantizedConvSm90Config, ...]:
        if problem.groups > 1 or not sm90.im2col_reaches(problem):
            return ()
        if problem.border:
            offsets = Offsets.BY_PIXEL
        else:
            offsets = Offsets.BY_COLUMN if problem.offsets else Offsets.NONE
        return tuple(codes.candidates(QuantizedConvSm90Config, problem, arch, 1, offsets))

    def shared_memory(self, kernel: Compiled) -> int:
        return codes.shared_memory(kernel, get(kernel.config.arch))

    def predicted_us(
        self, problem: QuantizedConvProblem, config: QuantizedConvSm90Config, arch: Arch
    ) -> float:
        return codes.predicted_us(problem, config, arch)

    def launches(
        self, config: QuantizedConvSm90Config
    ) -> Sequence[Sequence[QuantizedConvSm90Config]]:
        return [sm90.launch_swizzles(config), sm90.launch_splits(config)]
