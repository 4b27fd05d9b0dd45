"""Depth to space and space to depth in NHWC: each thread moves a vector of elements, and computes
their epilogue."""

from __future__ import annotations

from dataclasses import dataclass

from onnxbolt.families.base import Compiled, Family
from onnxbolt.families.blocks.one_kernel import ANY_ACCESS, OneKernelConfig


@dataclass(frozen=True, kw_only=True)
class PixelShuffleConfig(OneKernelConfig):
    """See OneKernelConfig."""


class PixelShuffle(Family[PixelShuffleConfig]):
    """One kernel for each epilogue, whatever the direction, the block and the shape."""

    number, name, config = 32, "pixel_shuffle", PixelShuffleConfig
    takes = ("element", "output", "epilogue")
    kinds, fixed = frozenset({"depth_to_space", "space_to_depth"}), ANY_ACCESS
    tensor_cores = False

    def shared_memory(self, kernel: Compiled) -> int:
        return 0
