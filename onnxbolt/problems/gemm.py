"""Matrix products."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property

from onnxbolt.archs import Arch
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import (
    BIAS,
    EPILOGUES,
    GATE_BIAS,
    MUL,
    ROTATE,
    layers,
)
from onnxbolt.integers import ceil_divide
from onnxbolt.onnxruntime_time import CUBLAS, rotation_us
from onnxbolt.problems.base import Computed, Reference
from onnxbolt.problems.product import Product


class MatrixProduct(Product):
    """D[M, N] from A[M, K], whose rows are as they lie; one layer, unless a class has several."""

    library = CUBLAS
    groups, nchw, y_nchw = 1, False, False

    m: int
    n: int
    k: int

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

    @property
    def layers(self) -> tuple[Product, ...]:
        return (self,)

    @property
    def divisors(self) -> tuple[int, int]:
        """Numbers that divide n and k at all sizes of the model's inputs."""
        return self.n, self.k


@dataclass(frozen=True)
class GemmProblem(MatrixProduct):
    """D[M, N] = epilogue(A[M, K] B[N, K]^T)."""

    operation = "gemm"
    narrow_layer_us = 0.5  # fitted to 24 narrow products on one H200

    m: int
    n: int
    k: int
    dtype: DType
    out: DType
    chain: tuple[str, ...]  # names of the epilogue's steps (onnxbolt/epilogues/)
    # columns of the layers before the last, if `chain` has further products
    inner: tuple[int, ...] = ()

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


@dataclass(frozen=True)
class MatmulProblem(MatrixProduct):
    """D[M, N] = epilogue(A[M, K] B[N, K]^T), where B is computed at run time, too.

    `divisor_of_n` and `divisor_of_k` divide n and k at all sizes of the model's inputs: they are n
    and k where these do not vary, else 1.
    """

    operation = "matmul"

    m: int
    n: int
    k: int
    dtype: DType
    out: DType
    chain: tuple[str, ...]
    divisor_of_n: int
    divisor_of_k: int

    @property
    def divisors(self) -> tuple[int, int]:
        return self.divisor_of_n, self.divisor_of_k

    @property
    def shape(self) -> str:
        """m, n and k."""
        return f"matmul {self.m}x{self.n}x{self.k}"

    @property
    def reference(self) -> Reference:
        return Reference(Computed.GEMMS, (self.m, self.n, self.k), (), self.terms)


@dataclass(frozen=True)
class BatchedGemmProblem(MatrixProduct):
    """D[batches, M, N] = epilogue(A[batches, M, K] B[batches, N, K]^T) with a product for each
    batch; B is computed at run time. The divisors are as those of MatmulProblem."""

    operation = "batched gemm"

    batches: int
    m: int
    n: int
    k: int
    dtype: DType
    out: DType
    chain: tuple[str, ...]
    divisor_of_n: int
    divisor_of_k: int

    @property
    def rows(self) -> int:
        return self.batches * self.m

    def row_tiles(self, height: int) -> int:
        return self.batches * ceil_divide(self.m, height)

    @property
    def x_elements(self) -> int:
        return self.rows * self.k

    @property
    def input_elements(self) -> int:
        return self.x_elements + self.batches * self.n * self.k

    @property
    def divisors(self) -> tuple[int, int]:
        return self.divisor_of_n, self.divisor_of_k

    @property
    def shape(self) -> str:
        """The batches, m, n and k."""
        return f"batched gemm {self.batches}x{self.m}x{self.n}x{self.k}"

    @property
    def reference(self) -> Reference:
        extents = (self.batches, self.m, self.n, self.k)
        return Reference(Computed.BATCHED_GEMMS, extents, (), self.terms)


@dataclass(frozen=True)
class GluProblem(MatrixProduct):
    """D[M, N] = epilogue(A[M, K] B[2 N, K]^T). B has two rows for each column of D: one for the
    steps in front of the gate in `chain`, and one for what the gate multiplies by."""

    operation = "glu"

    m: int
    n: int
    k: int
    dtype: DType
    out: DType
    chain: tuple[str, ...]

    @property
    def product_columns(self) -> int:
        return 2 * self.n

    @property
    def flops(self) -> int:
        return 2 * self.m * self.product_columns * self.k

    @property
    def input_elements(self) -> int:
        return self.x_elements + self.product_columns * self.k

    @property
    def shape(self) -> str:
        """m, the columns of both halves, and k."""
        return f"glu {self.m}x2x{self.n}x{self.k}"

    @property
    def apart(self) -> tuple[GemmProblem, GemmProblem]:
        """Two products that do the same: the second one multiplies by the first one's result."""
        bias = tuple(BIAS for step in self.chain if step == GATE_BIAS)
        steps = tuple(MUL if EPILOGUES[step].gates else step for step in self.chain)
        size = self.m, self.n, self.k, self.dtype
        return GemmProblem(*size, self.dtype, bias), GemmProblem(*size, self.out, steps)

    @property
    def reference(self) -> Reference:
        return Reference(Computed.GEMMS, (self.m, self.n, self.k), (), self.terms)

    def onnxruntime_us(self, arch: Arch) -> float:
        """Two products, and their activation and multiplication."""
        return sum(each.onnxruntime_us(arch) for each in self.apart)


@dataclass(frozen=True)
class RotaryProblem(MatrixProduct):
    """D[M, N] = epilogue(A[M, K] B[N, K]^T), in which a step of `chain` rotates neighbouring
    columns of the first `rotated` by a table [period, width]: element [row, column] by the table's
    [row mod period, column mod width]."""

    operation = "rotary"

    m: int
    n: int
    k: int
    dtype: DType
    out: DType
    chain: tuple[str, ...]
    rotated: int
    period: int
    width: int

    @property
    def layers(self) -> tuple[RotaryProblem, ...]:
        return (self,)

    @property
    def input_elements(self) -> int:
        return super().input_elements + self.period * self.width

    @property
    def shape(self) -> str:
        """m, n and k, the rotated columns, and the table."""
        sizes = f"{self.m}x{self.n}x{self.k}"
        return f"rotary {sizes}, {self.rotated} columns by {self.period}x{self.width}"

    @property
    def apart(self) -> GemmProblem:
        """The product and its other steps."""
        steps = tuple(step for step in self.chain if step != ROTATE)
        return GemmProblem(self.m, self.n, self.k, self.dtype, self.out, steps)

    @property
    def reference(self) -> Reference:
        table = self.rotated, self.period, self.width
        return Reference(Computed.GEMMS, (self.m, self.n, self.k, *table), (), self.terms)

    def onnxruntime_us(self, arch: Arch) -> float:
        """The product, and the rotation's elementwise kernels."""
        size = self.m * self.rotated * self.dtype.bytes
        return self.apart.onnxruntime_us(arch) + rotation_us(size, arch)
