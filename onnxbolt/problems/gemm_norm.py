"""Matrix products whose rows are normalized in the epilogue."""

from __future__ import annotations

from dataclasses import dataclass

from onnxbolt.archs import Arch
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import NORMS, split_at_norm
from onnxbolt.onnxruntime_time import CUBLAS
from onnxbolt.problems.base import Computed, Reference
from onnxbolt.problems.gemm import GemmProblem
from onnxbolt.problems.norm import NormProblem
from onnxbolt.problems.product import Product


@dataclass(frozen=True)
class GemmNormProblem(Product):
    """D[M, N] = epilogue(A[M, K] B[N, K]^T), one of whose steps normalizes each row.

    `chain` has LayerNorm or RmsNorm behind the steps of the product, with Store before it if what
    is normalized is a second output; gamma (Scale) and beta (Bias) follow.
    """

    operation, library = "gemm with norm", CUBLAS
    groups, nchw, y_nchw = 1, False, False

    m: int
    n: int
    k: int
    dtype: DType
    out: DType
    chain: tuple[str, ...]

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
    def layers(self) -> tuple[GemmNormProblem, ...]:
        """Itself: the product and the norm are no layers that kernels could divide."""
        return (self,)

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
