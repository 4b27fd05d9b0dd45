"""Squeeze-and-excitation: channels scaled by a gate that two small products make of their means."""

from __future__ import annotations

from dataclasses import dataclass

from onnxbolt.archs import Arch
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import EPILOGUES
from onnxbolt.kernel_time import US
from onnxbolt.onnxruntime_time import elementwise_us, tensors_moved
from onnxbolt.problems.base import Problem

ACTIVATIONS = 2  # steps of the chain in front of the epilogue

# ONNX Runtime's kernels: the mean, two products, each with bias and activation, and the gating;
# microseconds of each beyond a launch; how often it moves x and y; its part of the bandwidth
_KERNELS, _KERNEL_US, _PASSES, _BANDWIDTH = 8, 1.0, 1.5, 0.6


@dataclass(frozen=True)
class SqueezeExciteProblem(Problem):
    """y[N, H, W, C] = x gate(squeeze(mean(x) W1^T) W2^T), then an epilogue; W1 [S, C], W2 [C, S],
    channels as stored (padding included)."""

    operation = "squeeze-excite"

    n: int
    h: int
    w: int
    c: int
    s: int  # squeezed channels
    dtype: DType
    out: DType
    chain: tuple[str, ...]  # both activations, then the epilogue

    @property
    def rows(self) -> int:
        return self.n * self.h * self.w

    @property
    def columns(self) -> int:
        return self.c

    @property
    def flops(self) -> int:
        return 2 * self.rows * self.c + 4 * self.n * self.s * self.c

    @property
    def bytes_moved(self) -> int:
        """Bytes of x, y and the epilogue's tensors; the weights are small."""
        tensors = sum(EPILOGUES[step].operand == "tensor" for step in self.chain)
        return (2 + tensors) * self.rows * self.c * self.dtype.bytes

    @property
    def shape(self) -> str:
        return f"squeeze-excite {self.n}x{self.h}x{self.w}x{self.c} by {self.s}"

    def onnxruntime_us(self, arch: Arch) -> float:
        size = self.rows * self.c * self.dtype.bytes
        moved = _PASSES * 2 * size / (_BANDWIDTH * arch.bandwidth) * US
        steps = (elementwise_us(tensors_moved(s) * size, arch) for s in self.chain[ACTIVATIONS:])
        return _KERNELS * (arch.launch_us + _KERNEL_US) + moved + sum(steps)
