"""Scaled dot-product attention: two batched products with a softmax between them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from onnxbolt.archs import Arch
from onnxbolt.dtypes import DType
from onnxbolt.onnxruntime_time import attention_us
from onnxbolt.problems.base import Computed, Problem, Reference
from onnxbolt.problems.quantize import QuantizeProblem

MAX_HEAD = 256  # elements of a head that kernels have
BAND_LEAST, BAND_MOST = -(2**31), 2**31 - 1  # INT_MIN and INT_MAX of C++: no bound


@dataclass(frozen=True)
class AttentionProblem(Problem):
    """y[B, S, H, E] = softmax(scale q[B, S, H, D] k[B, T, G, D]^T, masked) v[B, T, G, E] for each
    of B batches and H heads, of which H / G share the keys and values of one of G. `chain` has the
    step Quantize where y is codes, else nothing."""

    operation = "attention"
    least: ClassVar[Mapping[str, int]] = {"band": BAND_LEAST, "windows": 0}

    batch: int
    heads: int
    key_heads: int  # divides `heads`
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
    # first, last and shift: query i reads key j only if first <= j - i - shift <= last, where
    # BAND_LEAST and BAND_MOST are no bound; empty: no band. A kernel takes them at run time.
    band: tuple[int, ...] = ()
    # the numbers of graph/windows.py: q, k, v and y are images, whose windows are the batches
    windows: tuple[int, ...] = ()
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
    def pairs(self) -> int:
        """The queries' keys within the band, over all queries of a head."""
        if not self.band:
            return self.queries * self.keys
        first, last, shift = self.band
        query = np.arange(self.queries, dtype=np.int64) + shift
        begin, end = np.maximum(query + first, 0), np.minimum(query + last, self.keys - 1)
        return int(np.maximum(end - begin + 1, 0).sum())

    @property
    def periodic(self) -> bool:
        """True if the mask has several batches, but not all, and begins again behind them."""
        return len(self.mask_shape) == 4 and self.mask_shape[0] not in (1, self.batch)

    @property
    def flops(self) -> int:
        return 2 * self.batch * self.heads * self.pairs * (self.size + self.value_size)

    @property
    def on_tensor_cores(self) -> bool:
        return True

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
        heads, lengths, sizes = (
            str(one) if one == other else f"{one}:{other}"
            for one, other in (
                (self.heads, self.key_heads),
                (self.queries, self.keys),
                (self.size, self.value_size),
            )
        )
        words = (f"attention {self.batch}x{heads}x{lengths}x{sizes}", *self.mask[:1])
        further = {"banded": self.band, "windows": self.windows}
        return ", ".join([*words, *(word for word, given in further.items() if given)])

    @property
    def _bytes_of_operands(self) -> int:
        """Bytes of q, k, v and the output."""
        keys = self.key_heads * self.keys * (self.size + self.value_size)
        inputs = self.heads * self.queries * self.size + keys
        outputs = self.heads * self.queries * self.value_size
        return self.batch * (inputs * self.dtype.bytes + outputs * self.out.bytes)

    @property
    def reference(self) -> Reference | None:
        """Sizes; 1 for each of q, k and v that lies by heads; the mask; the band. None for windows,
        for a mask that begins again, and for codes."""
        if self.windows or self.periodic or self.out.is_code:
            return None
        kinds = ("", "added", "kept", "dropped")  # by the numbers of C++
        kind, *types = self.mask or ("",)
        shape = (1,) * (4 - len(self.mask_shape)) + self.mask_shape
        sizes = (self.batch, self.heads, self.key_heads, self.queries, self.keys)
        extents = (
            *(*sizes, self.size, self.value_size),
            *(int(order == "bhsd") for order in self.orders),
            *(kinds.index(kind), int("f32" in types), *shape),
            *(self.band or (BAND_LEAST, BAND_MOST, 0)),
        )
        return Reference(Computed.ATTENTION, extents, (), (self.keys,), scored=self.size)

    def onnxruntime_us(self, arch: Arch) -> float:
        """The scores through memory by each of its kernels, since it does not recognize most
        exports' attention."""
        flops = 2 * self.scores * (self.size + self.value_size)  # a band saves it nothing
        masked = bool(self.mask)
        if self.out.is_code:
            codes = QuantizeProblem(self.rows, self.columns, self.dtype, self.out, self.chain)
            values = replace(self, out=self.dtype, chain=())
            return values.onnxruntime_us(arch) + codes.onnxruntime_us(arch)
        return attention_us(self._bytes_of_operands, self.scores, flops, masked, self.dtype, arch)
