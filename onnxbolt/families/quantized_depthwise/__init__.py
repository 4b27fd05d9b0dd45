"""Depthwise convolutions of codes of 8 bits in NHWC, on any architecture: the kernels of values,
which subtract the zero point from what they load. Sums are exact in fp32."""

from __future__ import annotations

from dataclasses import dataclass

from onnxbolt.archs import Arch
from onnxbolt.epilogues import values_of
from onnxbolt.families.base import Compiled, Family
from onnxbolt.families.blocks import channelwise
from onnxbolt.families.blocks.channelwise import ChannelwiseConfig
from onnxbolt.problems import QuantizedConvProblem

_TAPS = (1 << 24) // (255 * 128)  # products of codes whose sums fp32 has


@dataclass(frozen=True, kw_only=True)
class QuantizedDepthwiseConfig(ChannelwiseConfig):
    """See ChannelwiseConfig."""


class QuantizedDepthwise(Family[QuantizedDepthwiseConfig]):
    """Computes each channel by itself, on the CUDA cores."""

    number, name, config = 36, "quantized_depthwise", QuantizedDepthwiseConfig
    problems, kinds = (QuantizedConvProblem,), frozenset({"quantized_conv"})
    tensor_cores = False
    by_channel = True

    def candidates(
        self, problem: QuantizedConvProblem, arch: Arch
    ) -> tuple[QuantizedDepthwiseConfig, ...]:
        if problem.r * problem.s > _TAPS or values_of(problem.chain):
            return ()
        if not arch.supports(problem.dtype):  # nor has it instructions that round to such codes
            return ()
        return channelwise.candidates(QuantizedDepthwiseConfig, problem, arch)

    def shared_memory(self, kernel: Compiled) -> int:
        return channelwise.SHARED_MEMORY

    def predicted_us(
        self, problem: QuantizedConvProblem, config: QuantizedDepthwiseConfig, arch: Arch
    ) -> float:
        return channelwise.predicted_us(problem, config, arch)
