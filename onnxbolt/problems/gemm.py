"""Matrix products."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property

from onnxbolt.dtypes import DType
from onnxbolt.epilogues import layers
from onnxbolt.onnxruntime_time import CUBLAS
from onnxbolt.problems.base import Computed, Reference
from onnxbolt.problems.product import Product


@dataclass(frozen=True)
class GemmProblem(Product):
    """D[M, N] = epilogue(A[M, K] B[N, K]^T); pitches in elements."""

    operation, library = "gemm", CUBLAS
    narrow_layer_us = 0.5  # fitted to 24 narrow products on one H200
    groups, nchw, y_nchw = 1, False, False

    m: int
    n: int
    k: int
    dtype: DType
    out: DType
    chain: tuple[str, ...]  # names of the epilogue's steps (onnxbolt/epilogues/)
    # columns of the layers before the last, if `chain` has further products
    inner: tuple[int, ...] = ()

    @property
    def rows(self) -> int:
        return self.m

    @property
    def columns(self) -> int:
        return self.n

    @property
    def depth(self) -> int:
        return self.k

    @property
    def taps(self) -> int:
        return 1

    @property
    def is_matrix(self) -> bool:
        return True

    @property
    def x_elements(self) -> int:
        return self.m * self.k

    @cached_property
    def layers(self) -> tuple[GemmProblem, ...]:
        widths, chains = (self.k, *self.inner, self.n), layers(self.chain)
        last = len(chains) - 1
        return tuple(
            GemmProblem(self.m, n, k, self.dtype, self.out if i == last else self.dtype, chains[i])
            for i, (k, n) in enumerate(itertools.pairwise(widths))
        )

    @property
    def shape(self) -> str:
        """m, n (of each layer) and k."""
        return f"gemm {self.m}x{'-'.join(map(str, self.widths))}x{self.k}"

    @property
    def gemm_shape(self) -> tuple[int, int, int] | None:
        return None if self.inner else (self.m, self.n, self.k)

    @property
    def reference(self) -> Reference:
        first = self.layers[0]
        return Reference(Computed.GEMMS, (first.m, first.n, first.k), self.widths[1:], self.terms)
