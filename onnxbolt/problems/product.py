"""The interface that GEMMs share with convolutions, which are implicit matrix products."""

from __future__ import annotations

import abc
from typing import ClassVar

from onnxbolt.archs import Arch
from onnxbolt.epilogues import STORE, epilogue_bytes, has_inner_residual
from onnxbolt.integers import ceil_divide
from onnxbolt.onnxruntime_time import Library, elementwise_us, library_us, tensors_moved
from onnxbolt.problems.base import Problem


class Product(Problem):
    """D[rows, columns] = epilogue(A[rows, taps * depth] B[columns, taps * depth]^T).

    With `groups`, each group of columns reads its own `depth` values of x. Further products of D's
    rows may follow in the same kernel: `inner` has the columns of all layers but the last one, and
    `chain` the steps of all.
    """

    library: ClassVar[Library]  # the library by which ONNX Runtime computes it

    groups: int
    nchw: bool  # x is NCHW
    y_nchw: bool  # y is NCHW

    @property
    @abc.abstractmethod
    def depth(self) -> int:
        """Values of x that an output meets at one position of the filter."""

    @property
    @abc.abstractmethod
    def taps(self) -> int:
        """Positions of the filter; 1 for a GEMM."""

    @property
    @abc.abstractmethod
    def is_matrix(self) -> bool:
        """True if x's rows, as they lie, are A's."""

    @property
    @abc.abstractmethod
    def x_elements(self) -> int:
        """Values of x."""

    @property
    @abc.abstractmethod
    def layers(self) -> tuple[Product, ...]:
        """Each product with its epilogue as a problem of its own."""

    @property
    def writes_rows(self) -> bool:
        """True if y is D as it lies: neither NCHW nor averaged."""
        return not self.y_nchw

    @property
    def depthwise(self) -> bool:
        """True if each column of y reads one channel of x, which no other column reads."""
        return False

    def row_tiles(self, height: int) -> int:
        """Tiles of so many rows that cover all rows."""
        return ceil_divide(self.rows, height)

    @property
    def written_rows(self) -> int:
        """Rows of y; fewer than `rows` where the epilogue averages."""
        return self.rows

    @property
    def on_tensor_cores(self) -> bool:
        return not self.depthwise

    @property
    def product_columns(self) -> int:
        """Columns of the product of a single layer: more than y's where the epilogue has a gate."""
        return self.columns

    @property
    def widths(self) -> tuple[int, ...]:
        """Columns of each layer."""
        return (*self.inner, self.columns)

    @property
    def terms(self) -> tuple[int, ...]:
        """Products that are summed up for one output of each layer."""
        return (self.taps * self.depth, *self.inner)

    @property
    def flops(self) -> int:
        columns = sum(n * terms for n, terms in zip(self.widths, self.terms, strict=True))
        return 2 * self.rows * columns

    @property
    def input_elements(self) -> int:
        """Values of x and of all weights."""
        weights = sum(layer.columns * layer.taps * layer.depth for layer in self.layers)
        return self.x_elements + weights

    @property
    def bytes_moved(self) -> int:
        inside = STORE in self.chain or has_inner_residual(self.chain)
        moved = self.rows * (self.widths[0] if inside else self.columns)
        written = self.written_rows * self.columns * self.out.bytes
        beside = moved * epilogue_bytes(self.chain, self.dtype)
        return self.input_elements * self.dtype.bytes + beside + written

    def onnxruntime_us(self, arch: Arch) -> float:
        """The product, and a kernel for each step that its library does not fuse."""
        if self.inner:
            return sum(layer.onnxruntime_us(arch) for layer in self.layers)
        size = self.rows * self.columns * self.dtype.bytes
        steps = self.library.unfused(self.chain, self.dtype)
        behind = sum(elementwise_us(size * tensors_moved(step), arch) for step in steps)
        return library_us(self, arch) + behind
