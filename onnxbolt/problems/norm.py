"""Normalizations of rows: LayerNormalization and RMSNormalization over the last axis, with a
residual before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from onnxbolt.archs import Arch
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import EPILOGUES, ROTATE, STORE, tensor_operands
from onnxbolt.integers import ceil_divide
from onnxbolt.kernel_time import US, bandwidth
from onnxbolt.onnxruntime_time import elementwise_us, rotation_us
from onnxbolt.problems.base import Computed, Problem, Reference
from onnxbolt.problems.quantize import QuantizeProblem

# A library's kernel has a block for each row: microseconds beyond a launch, of one SM for a row,
# and for a value that it reads or writes. Fitted to PyTorch's LayerNorm on one H200, in fp16
# (tests/problems/test_norm.py holds the six shapes).
_FIXED_US, _ROW_US, _VALUE_US = 0.9, 0.12, 0.08e-3


MAX_TABLES = 3  # embeddings that one kernel adds up: words, types, positions


@dataclass(frozen=True)
class NormProblem(Problem):
    """y[M, C] = (s - mean(s)) / sqrt(var(s) + epsilon) of each row of s = x, or of x + residual;
    then times gamma[C] plus beta[C].

    `centered` is False for RMSNormalization, whose mean counts as zero. `chain` has Add for the
    residual, Store if s is a second output, Scale for gamma, Bias for beta, StoreF16 and so on if
    y's values are a second output, and Quantize if y is codes, in this order.
    """

    operation = "norm"

    m: int
    c: int
    centered: bool
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
    def flops(self) -> int:
        return 0

    @property
    def on_tensor_cores(self) -> bool:
        return False

    @property
    def of_tokens(self) -> bool:
        """True if rows are those of sequences, to each of which the same rows are added."""
        return False

    @property
    def of_heads(self) -> bool:
        """True if rows are heads of tokens."""
        return False

    @property
    def modulation(self) -> int:
        """1 if vectors of each sequence scale and shift the rows in the end, 2 if one is a gate
        besides, else 0."""
        return 0

    @property
    def tables(self) -> int:
        """Tables whose rows take the place of those of x."""
        return 0

    @property
    def tensors(self) -> int:
        """Tensors [M, C] that a kernel reads or writes: x, y, the residual, the sum, and y's values
        where y is codes."""
        stored = sum(EPILOGUES[step].stores for step in self.chain)
        return 2 + tensor_operands(self.chain) + stored

    @property
    def bytes_moved(self) -> int:
        """Bytes of these tensors; gamma and beta are small."""
        values = self.tensors - 1
        return self.m * self.c * (values * self.dtype.bytes + self.out.bytes)

    @property
    def shape(self) -> str:
        return f"{'layer' if self.centered else 'rms'} norm {self.m}x{self.c}"

    @property
    def reference(self) -> Reference | None:
        """Rows, columns, and 1 if the mean is subtracted; none for codes, of which predictions
        decide."""
        if self.out.is_code:
            return None
        return Reference(Computed.NORM, (self.m, self.c, int(self.centered)), (), (self.c,))

    def onnxruntime_us(self, arch: Arch) -> float:
        """One kernel, since its graph optimizer fuses the residual, too."""
        rows = ceil_divide(self.m, arch.sm_count)
        computing = rows * (_ROW_US + self.tensors * self.c * _VALUE_US)
        moved = self.tensors * self.m * self.c * self.dtype.bytes
        us = arch.launch_us + _FIXED_US + max(computing, moved / bandwidth(arch) * US)
        if not self.out.is_code:
            return us
        return us + QuantizeProblem(self.m, self.c, self.dtype, self.out, ()).onnxruntime_us(arch)


@dataclass(frozen=True)
class TokenNormProblem(NormProblem):
    """The same of M / tokens sequences x[.., tokens - prefix, C]: s = x + rows[tokens, C], where
    the first `prefix` rows of each sequence are those of `rows` alone. `chain` has Add for
    `rows`."""

    operation = "token norm"
    least: ClassVar[Mapping[str, int]] = {"prefix": 0}

    tokens: int = 1
    prefix: int = 0

    @property
    def of_tokens(self) -> bool:
        return True

    @property
    def bytes_moved(self) -> int:
        """Without the few rows of x that there are not, and those of `rows`, which stay in L2."""
        return super().bytes_moved - self.m * self.c * self.dtype.bytes

    @property
    def shape(self) -> str:
        return f"{super().shape}, {self.tokens} tokens"

    @property
    def reference(self) -> None:
        """None: predictions decide."""
        return None

    def onnxruntime_us(self, arch: Arch) -> float:
        """A norm, the sum in a kernel of its own, and the copy of a Concat where rows stand in
        front of x."""
        row_bytes = 2 * self.m * self.c * self.dtype.bytes
        before = (1 + (self.prefix > 0)) * elementwise_us(row_bytes, arch)
        alone = NormProblem(self.m, self.c, self.centered, self.dtype, self.out, ("Scale", "Bias"))
        return before + alone.onnxruntime_us(arch)


@dataclass(frozen=True)
class EmbeddingNormProblem(NormProblem):
    """The same of M / tokens sequences, where s is the sum of a row of each of `tables` tables
    [.., C], which indices name, plus rows[tokens, C] where `chain` has Add."""

    operation = "embedding norm"

    tokens: int = 1
    tables: int = 1

    @property
    def of_tokens(self) -> bool:
        return True

    @property
    def bytes_moved(self) -> int:
        """A row of each table, the result and the sum. Indices are few, and `rows` stay in L2."""
        return (self.tables + 1 + (STORE in self.chain)) * self.m * self.c * self.dtype.bytes

    @property
    def shape(self) -> str:
        return f"{super().shape}, {self.tokens} tokens, {self.tables} tables"

    @property
    def reference(self) -> None:
        """None: predictions decide."""
        return None

    def onnxruntime_us(self, arch: Arch) -> float:
        """A Gather for each table, their sums, and a norm, each a kernel of its own."""
        size = self.m * self.c * self.dtype.bytes
        gathers = self.tables * elementwise_us(2 * size, arch)
        sums = (self.tables - 1 + tensor_operands(self.chain)) * elementwise_us(3 * size, arch)
        alone = NormProblem(self.m, self.c, self.centered, self.dtype, self.out, ("Scale", "Bias"))
        return gathers + sums + alone.onnxruntime_us(arch)


@dataclass(frozen=True)
class HeadNormProblem(NormProblem):
    """The same of each of `heads` heads of M / heads tokens, which lie in longer rows; without
    residual. `chain` may have Rotate behind Scale and Bias, by a table [period, width] for the
    first `rotated` columns of all heads, as RotaryProblem has it."""

    operation = "head norm"
    least: ClassVar[Mapping[str, int]] = {"rotated": 0}

    heads: int = 1
    rotated: int = 0
    period: int = 1
    width: int = 1

    @property
    def of_heads(self) -> bool:
        return True

    @property
    def bytes_moved(self) -> int:
        """The table stays in L2."""
        return super().bytes_moved + self.period * self.width * self.dtype.bytes

    @property
    def shape(self) -> str:
        turned = f", rotated by {self.period}x{self.width}" if self.rotated else ""
        return f"{super().shape}, {self.heads} heads{turned}"

    @property
    def reference(self) -> None:
        """None: predictions decide."""
        return None

    def onnxruntime_us(self, arch: Arch) -> float:
        """A norm, the elementwise kernels of a rotation, and a Transpose in front of attention."""
        size = self.m * self.c * self.dtype.bytes
        rotation = rotation_us(size, arch) if ROTATE in self.chain else 0.0
        alone = NormProblem(self.m, self.c, self.centered, self.dtype, self.out, ("Scale", "Bias"))
        return alone.onnxruntime_us(arch) + rotation + elementwise_us(2 * size, arch)


@dataclass(frozen=True)
class ModulatedNormProblem(NormProblem):
    """The same of M / tokens sequences, each of which has vectors [C] of its own: behind gamma and
    beta, rows are multiplied by 1 + scale, and shift is added. s = gate * x + residual if
    `gated`."""

    operation = "modulated norm"

    tokens: int = 1
    gated: bool = False

    @property
    def modulation(self) -> int:
        return 1 + self.gated

    @property
    def shape(self) -> str:
        return f"{super().shape}, {'gated and ' if self.gated else ''}modulated by {self.tokens}"

    @property
    def reference(self) -> None:
        """None: predictions decide."""
        return None

    def onnxruntime_us(self, arch: Arch) -> float:
        """A norm, and an elementwise kernel for each vector, beside which 1 + scale is small."""
        size = self.m * self.c * self.dtype.bytes
        return super().onnxruntime_us(arch) + (2 + self.gated) * elementwise_us(2 * size, arch)
