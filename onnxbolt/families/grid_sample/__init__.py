"""Images sampled at given positions, and weighted sums of samples: each thread computes a vector of
channels of one position or query."""

from __future__ import annotations

from dataclasses import dataclass

from onnxbolt.archs import Arch
from onnxbolt.families.base import Compiled, Family
from onnxbolt.families.blocks.one_kernel import ANY_ACCESS, OneKernelConfig
from onnxbolt.kernel_time import US, bandwidth
from onnxbolt.problems import DeformableAttentionProblem

_L2_SHARE = 0.5  # part of L2's bandwidth that gathered pixels reach
_WAITING_US = 3.0  # positions, then pixels, for all points of a thread


@dataclass(frozen=True, kw_only=True)
class GridSampleConfig(OneKernelConfig):
    """See OneKernelConfig."""


class GridSample(Family[GridSampleConfig]):
    """One kernel for every mode and shape."""

    number, name, config = 33, "grid_sample", GridSampleConfig
    takes = ("element", "output")
    problems = (DeformableAttentionProblem,)
    kinds, fixed = frozenset({"grid_sample", "deformable_attention"}), ANY_ACCESS
    tensor_cores = False

    def candidates(
        self, problem: DeformableAttentionProblem, arch: Arch
    ) -> tuple[GridSampleConfig, ...]:
        """The one configuration."""
        return (GridSampleConfig(arch=arch.number),)

    def shared_memory(self, kernel: Compiled) -> int:
        return 0

    def predicted_us(
        self, problem: DeformableAttentionProblem, config: GridSampleConfig, arch: Arch
    ) -> float:
        """Samples are read of L2, and a thread waits for one batch of them after the other."""
        sampled = problem.bytes_sampled / (_L2_SHARE * arch.l2_bandwidth) * US
        memory = problem.bytes_moved / bandwidth(arch) * US
        return arch.launch_us + _WAITING_US + max(sampled, memory)
