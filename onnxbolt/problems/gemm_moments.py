"""Matrix products that hand statistics of rows to one another, so that the norm between two of them
takes no kernel."""

from __future__ import annotations

from dataclasses import dataclass

from onnxbolt.archs import Arch
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import EPILOGUES, FOLDED_NORMS
from onnxbolt.problems.gemm import GemmProblem, MatrixProduct
from onnxbolt.problems.norm import NormProblem

PART = 64  # columns of a row that one entry of its statistics is of
_ENTRY = 8  # bytes of one: mean, and sum of squared differences from it


@dataclass(frozen=True)
class GemmMomentsProblem(MatrixProduct):
    """D[M, N] = epilogue(A[M, K] B[N, K]^T), where statistics of A's rows are read, those of D's
    rows are written, or both.

    `chain` begins with a folded norm if A's rows are normalized, and ends in Moments if another
    such product reads D's statistics.
    """

    operation = "gemm with statistics"

    m: int
    n: int
    k: int
    dtype: DType
    out: DType
    chain: tuple[str, ...]

    @property
    def product(self) -> GemmProblem:
        """The product alone. The bias of a product whose input is normalized is always there."""
        steps = tuple(step for step in self.chain if not EPILOGUES[step].statistics)
        return GemmProblem(self.m, self.n, self.k, self.dtype, self.out, steps)

    @property
    def norm(self) -> NormProblem | None:
        """The norm of A's rows alone, with gamma and, if it is a LayerNorm, beta; None if A is read
        as it is."""
        if not self.reads:
            return None
        centered = FOLDED_NORMS[self.chain[0]]
        factors = ("Scale", "Bias") if centered else ("Scale",)
        return NormProblem(self.m, self.k, centered, self.dtype, self.dtype, factors)

    @property
    def bytes_moved(self) -> int:
        """Those of the product, and the statistics."""
        columns = self.k * self.reads + self.n * self.writes
        return super().bytes_moved + self.m * (columns // PART) * _ENTRY

    @property
    def shape(self) -> str:
        """m, n and k."""
        return self.product.shape

    def onnxruntime_us(self, arch: Arch) -> float:
        """The product, and the norm's kernel."""
        norm = self.norm
        return self.product.onnxruntime_us(arch) + (norm.onnxruntime_us(arch) if norm else 0.0)
