"""Elementwise operations that follow no product, as an epilogue by itself."""

from __future__ import annotations

from dataclasses import dataclass

from onnxbolt.archs import Arch
from onnxbolt.dtypes import CODES
from onnxbolt.families.base import Compiled, Family
from onnxbolt.families.blocks.memory import memory_us
from onnxbolt.families.blocks.one_kernel import ANY_ACCESS, OneKernelConfig
from onnxbolt.problems import QuantizeProblem


@dataclass(frozen=True, kw_only=True)
class ElementwiseConfig(OneKernelConfig):
    """See OneKernelConfig."""


class Elementwise(Family[ElementwiseConfig]):
    """One kernel for each epilogue and element type, whatever the shape."""

    number, name, config = 11, "elementwise", ElementwiseConfig
    problems = (QuantizeProblem,)
    kinds, fixed = frozenset({"elementwise", "quantized_elementwise", "quantize"}), ANY_ACCESS
    tensor_cores = False
    codes = CODES

    def candidates(self, problem: QuantizeProblem, arch: Arch) -> tuple[ElementwiseConfig, ...]:
        """The one configuration."""
        return (ElementwiseConfig(arch=arch.number),)

    def predicted_us(
        self, problem: QuantizeProblem, config: ElementwiseConfig, arch: Arch
    ) -> float:
        """The memory's time."""
        return arch.launch_us + memory_us(problem, arch)

    def shared_memory(self, kernel: Compiled) -> int:
        return 0
