"""Scaled dot-product attention: two batched products with a softmax between them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from onnxbolt.archs import Arch
from onnxbolt.dtypes import DType
from onnxbolt.kernel_time import US
from onnxbolt.problems.base import Problem

# ONNX Runtime's kernels for the exporters' nodes: four transpositions, two scales, two products and
# the softmax, and one more for a mask. How often the former move q, k, v and the output, and the
# latter the scores; their parts of the bandwidth and of the products' rate.
_KERNELS, _COPIES, _PASSES = 9, 1.5, 4
_BANDWIDTH, _PRODUCTS = 0.7, 0.4


@dataclass(frozen=True)
class AttentionProblem(Problem):
    """y[B, S, H, E] = softmax(scale q[B, S, H, D] k[B, T, H, D]^T, masked) v[B, T, H, E] for each
    of B batches and H heads."""

    operation = "attention"

    batch: int
    heads: int
    queries: int
    keys: int
    size: int  # elements of a head's queries and keys
    value_size: int
    dtype: DType
    out: DType
    # the kind of mask (ops/attention/found.py: Masking), and its type if it is added; empty: none
    mask: tuple[str, ...] = ()
    mask_shape: tuple[int, ...] = ()  # broadcasts to [B, H, S, T]
    orders: tuple[str, ...] = ("bshd", "bshd", "bshd")  # the axes of q, k and v in memory
    chain: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        return self.batch * self.queries

    @property
    def columns(self) -> int:
        return self.heads * self.value_size

    @property
    def scores(self) -> int:
        """Products of a query with a key, over all heads."""
        return self.batch * self.heads * self.queries * self.keys

    @property
    def flops(self) -> int:
        return 2 * self.scores * (self.size + self.value_size)

    @property
    def bytes_moved(self) -> int:
        return self._bytes_of_operands + self.mask_bytes

    @property
    def mask_bytes(self) -> int:
        """Bytes of the mask as it is stored; a boolean takes one."""
        if not self.mask:
            return 0
        width = DType(self.mask[1]).bytes if len(self.mask) > 1 else 1
        return math.prod(self.mask_shape) * width

    @property
    def shape(self) -> str:
        sizes = str(self.size) if self.size == self.value_size else f"{self.size}:{self.value_size}"
        lengths = str(self.queries) if self.queries == self.keys else f"{self.queries}:{self.keys}"
        words = (f"attention {self.batch}x{self.heads}x{lengths}x{sizes}", *self.mask[:1])
        return ", ".join(words)

    @property
    def _bytes_of_operands(self) -> int:
        """Bytes of q, k, v and the output."""
        inputs = self.queries * self.size + self.keys * (self.size + self.value_size)
        outputs = self.queries * self.value_size * self.out.bytes
        return self.batch * self.heads * (inputs * self.dtype.bytes + outputs)

    def onnxruntime_us(self, arch: Arch) -> float:
        """The scores through memory by each of its kernels, since it does not recognize most
        exports' attention."""
        passes = _PASSES + 2 * bool(self.mask)
        moved = 2 * _COPIES * self._bytes_of_operands + passes * self.scores * self.dtype.bytes
        launches = (_KERNELS + bool(self.mask)) * arch.launch_us
        products = self.flops / (_PRODUCTS * arch.rate(self.dtype))
        return launches + (moved / (_BANDWIDTH * arch.bandwidth) + products) * US
