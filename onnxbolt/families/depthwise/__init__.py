"""Depthwise convolutions in NHWC, on any architecture."""

from __future__ import annotations

from dataclasses import dataclass

from onnxbolt.archs import Arch
from onnxbolt.epilogues import MEAN
from onnxbolt.families.base import Compiled, Family
from onnxbolt.families.blocks import channelwise
from onnxbolt.families.blocks.channelwise import ChannelwiseConfig
from onnxbolt.problems import ConvProblem


@dataclass(frozen=True, kw_only=True)
class DepthwiseConfig(ChannelwiseConfig):
    """See ChannelwiseConfig."""


class Depthwise(Family[DepthwiseConfig]):
    """Computes each channel by itself, on the CUDA cores."""

    number, name, config = 9, "depthwise", DepthwiseConfig
    problems, kinds = (ConvProblem,), frozenset({"conv", "conv1d"})
    tensor_cores = False

    def candidates(self, problem: ConvProblem, arch: Arch) -> tuple[DepthwiseConfig, ...]:
        plain = not (problem.inner or problem.nchw or problem.y_nchw or MEAN in problem.chain)
        return channelwise.candidates(DepthwiseConfig, problem, arch) if plain else ()

    def shared_memory(self, kernel: Compiled) -> int:
        return channelwise.SHARED_MEMORY

    def predicted_us(self, problem: ConvProblem, config: DepthwiseConfig, arch: Arch) -> float:
        return channelwise.predicted_us(problem, config, arch)
