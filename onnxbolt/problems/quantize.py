"""Codes of 8 bits made of values."""

from __future__ import annotations

from dataclasses import dataclass

from onnxbolt.archs import Arch
from onnxbolt.dtypes import DType
from onnxbolt.onnxruntime_time import elementwise_us
from onnxbolt.problems.base import Problem


@dataclass(frozen=True)
class QuantizeProblem(Problem):
    """y[M, C] = the codes of x[M, C]. `chain` has the step Quantize alone."""

    operation = "quantize"

    m: int
    c: int
    dtype: DType
    out: DType
    chain: tuple[str, ...]

    @property
    def rows(self) -> int:
        return self.m

    @property
    def columns(self) -> int:
        return self.c

    @property
    def bytes_moved(self) -> int:
        """Bytes of x and y."""
        return self.m * self.c * (self.dtype.bytes + self.out.bytes)

    @property
    def shape(self) -> str:
        return f"quantize {self.m}x{self.c}"

    @property
    def reference(self) -> None:
        """None: predictions decide."""
        return None

    def onnxruntime_us(self, arch: Arch) -> float:
        """QuantizeLinear of fp32, behind a Cast of 16 bits."""
        size, wide = self.m * self.c, DType.F32.bytes
        casts = elementwise_us(size * (self.dtype.bytes + wide), arch)
        alone = elementwise_us(size * (wide + self.out.bytes), arch)
        return alone if self.dtype is DType.F32 else casts + alone
