"""The problem that kernels of the softmax solve."""

from __future__ import annotations

from dataclasses import dataclass

from onnxbolt.archs import Arch
from onnxbolt.dtypes import DType
from onnxbolt.kernel_time import US, bandwidth
from onnxbolt.problems import Problem


@dataclass(frozen=True)
class ScaledSoftmaxProblem(Problem):
    """y[M, C] = softmax(scale x[M, C]) of each row; the scale is given at launch."""

    operation = "scaled softmax"

    m: int
    c: int
    dtype: DType
    out: DType
    chain: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        return self.m

    @property
    def columns(self) -> int:
        return self.c

    @property
    def bytes_moved(self) -> int:
        return self.m * self.c * (self.dtype.bytes + self.out.bytes)

    @property
    def shape(self) -> str:
        return f"scaled softmax {self.m}x{self.c}"

    def onnxruntime_us(self, arch: Arch) -> float:
        """Two kernels, Mul and Softmax, each of which moves all values."""
        return 2 * (arch.launch_us + self.bytes_moved / bandwidth(arch) * US)
