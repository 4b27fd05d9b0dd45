"""Images sampled at given positions, and weighted sums of samples: each thread computes a vector of
channels of one position or query."""

from __future__ import annotations

from dataclasses import dataclass

from onnxbolt.families.base import Compiled, Family
from onnxbolt.families.blocks.one_kernel import ANY_ACCESS, OneKernelConfig


@dataclass(frozen=True, kw_only=True)
class GridSampleConfig(OneKernelConfig):
    """See OneKernelConfig."""


class GridSample(Family[GridSampleConfig]):
    """One kernel for every mode and shape."""

    number, name, config = 33, "grid_sample", GridSampleConfig
    takes = ("element", "output")
    kinds, fixed = frozenset({"grid_sample", "deformable_attention"}), ANY_ACCESS
    tensor_cores = False
    measured = False

    def shared_memory(self, kernel: Compiled) -> int:
        return 0
