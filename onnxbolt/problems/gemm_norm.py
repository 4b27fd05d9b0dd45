"""Matrix products whose rows are normalized in the epilogue."""

from __future__ import annotations

from dataclasses import dataclass

from onnxbolt.archs import Arch
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import NORMS, split_at_norm
from onnxbolt.problems.base import Computed, Reference
from onnxbolt.problems.gemm import GemmProblem, MatrixProduct
from onnxbolt.problems.norm import NormProblem


@dataclass(frozen=True)
class GemmNormProblem(MatrixProduct):
    """D[M, N] = epilogue(A[M, K] B[N, K]^T), one of whose steps normalizes each row.

    `chain` has LayerNorm or RmsNorm behind the steps of the product, with Store before it if what
    is normalized is a second output; gamma (Scale) and beta (Bias) follow.
    The product and its norm are one layer.
    """

    operation = "gemm with norm"

    m: int
    n: int
    k: int
    dtype: DType
    out: DType
    chain: tuple[str, ...]

    @property
    def centered(self) -> bool:
        """True if the mean of each row is subtracted."""
        return any(NORMS.get(step, False) for step in self.chain)

    @property
    def product(self) -> GemmProblem:
        """The product alone, with the steps in front of the norm."""
        before, _ = split_at_norm(self.chain)
        return GemmProblem(self.m, self.n, self.k, self.dtype, self.out, before)

    @property
    def norm(self) -> NormProblem:
        """The norm alone, without a residual."""
        _, behind = split_at_norm(self.chain)
        return NormProblem(self.m, self.n, self.centered, self.dtype, self.out, behind)

    @property
    def shape(self) -> str:
        """m, n and k."""
        return f"gemm {self.m}x{self.n}x{self.k}, {self.norm.shape.partition(' norm')[0]} norm"

    @property
    def reference(self) -> Reference:
        """m, n, k, and 1 if the mean is subtracted; sums are of k products, and of a row's n
        values."""
        extents = (self.m, self.n, self.k, int(self.centered))
        return Reference(Computed.GEMM_NORM, extents, (self.n,), (self.k, self.n))

    def onnxruntime_us(self, arch: Arch) -> float:
        """Two kernels."""
        return self.product.onnxruntime_us(arch) + self.norm.onnxruntime_us(arch)
