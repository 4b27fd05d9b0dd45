"""Normalizations of groups of channels: GroupNormalization and InstanceNormalization."""

from __future__ import annotations

from dataclasses import dataclass

from onnxbolt.archs import Arch
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import EPILOGUES, tensor_operands
from onnxbolt.onnxruntime_time import elementwise_us, tensors_moved
from onnxbolt.problems.base import Problem


@dataclass(frozen=True)
class GroupNormProblem(Problem):
    """y[N, P, C] = epilogue((s - mean) / sqrt(variance + epsilon) * gamma[C] + beta[C]), with mean
    and variance over the P pixels of an image and the channels of one of `groups` groups.

    s = x + before[N, C] where `before`; the normalized values times 1 + scale[N, C], plus
    shift[N, C], where `modulated`.
    """

    operation = "group norm"

    n: int
    p: int
    c: int
    groups: int
    dtype: DType
    out: DType
    chain: tuple[str, ...] = ()
    before: bool = False
    modulated: bool = False

    @property
    def rows(self) -> int:
        return self.n * self.p

    @property
    def columns(self) -> int:
        return self.c

    @property
    def group(self) -> int:
        """Channels of a group."""
        return self.c // self.groups

    @property
    def bytes_moved(self) -> int:
        """x, y and the epilogue's tensors; vectors are small."""
        read = (1 + tensor_operands(self.chain)) * self.dtype.bytes
        return self.rows * self.c * (read + self.out.bytes)

    @property
    def shape(self) -> str:
        return f"group norm {self.n}x{self.p}x{self.c} in {self.groups} groups"

    def onnxruntime_us(self, arch: Arch) -> float:
        """InstanceNormalization, which reads x twice and writes it; Mul and Add for gamma and beta
        of groups; further kernels for other vectors and each step."""
        size = self.rows * self.c * self.dtype.bytes
        broadcast = 2 * (self.groups < self.c) + self.before + 2 * self.modulated
        steps = [step for step in self.chain for _ in range(EPILOGUES[step].in_ort.kernels)]
        moved = [3, *[2] * broadcast, *map(tensors_moved, steps)]
        return sum(elementwise_us(tensors * size, arch) for tensors in moved)
