"""Layout conversion: NCHW to NHWC and back."""

from __future__ import annotations

from dataclasses import dataclass

from onnxbolt.dtypes import INTEGERS
from onnxbolt.families.base import Compiled, Family
from onnxbolt.families.blocks.one_kernel import ANY_ACCESS, OneKernelConfig


@dataclass(frozen=True, kw_only=True)
class LayoutConfig(OneKernelConfig):
    """See OneKernelConfig."""


class Layout(Family[LayoutConfig]):
    """One kernel for each pair of element types, whatever the direction and the shape."""

    number, name, config = 12, "layout", LayoutConfig
    takes = ("element", "output")
    kinds, fixed = frozenset({"to_nhwc", "to_nchw"}), ANY_ACCESS
    tensor_cores = False
    codes = INTEGERS

    def shared_memory(self, kernel: Compiled) -> int:
        return 0
