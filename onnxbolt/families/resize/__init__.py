"""Resizing in NHWC: each thread computes a vector of channels of an output pixel, and its
epilogue."""

from __future__ import annotations

from dataclasses import dataclass

from onnxbolt.dtypes import INTEGERS
from onnxbolt.families.base import Compiled, Family
from onnxbolt.families.blocks.one_kernel import ANY_ACCESS, OneKernelConfig


@dataclass(frozen=True, kw_only=True)
class ResizeConfig(OneKernelConfig):
    """See OneKernelConfig."""


class Resize(Family[ResizeConfig]):
    """One kernel for each epilogue, whatever the mode and the shape."""

    number, name, config = 19, "resize", ResizeConfig
    takes = ("element", "output", "epilogue")
    kinds, fixed = frozenset({"resize", "quantized_gate"}), ANY_ACCESS
    tensor_cores = False
    codes = INTEGERS

    def shared_memory(self, kernel: Compiled) -> int:
        return 0
