"""Elementwise operations that follow no product, as an epilogue by itself."""

from __future__ import annotations

from dataclasses import dataclass

from onnxbolt.dtypes import CODES
from onnxbolt.families.base import Compiled, Family
from onnxbolt.families.blocks.one_kernel import ANY_ACCESS, OneKernelConfig


@dataclass(frozen=True, kw_only=True)
class ElementwiseConfig(OneKernelConfig):
    """See OneKernelConfig."""


class Elementwise(Family[ElementwiseConfig]):
    """One kernel for each epilogue and element type, whatever the shape."""

    number, name, config = 11, "elementwise", ElementwiseConfig
    takes = ("element", "epilogue")
    kinds, fixed = frozenset({"elementwise", "quantized_elementwise"}), ANY_ACCESS
    tensor_cores = False
    codes = CODES

    def shared_memory(self, kernel: Compiled) -> int:
        return 0
