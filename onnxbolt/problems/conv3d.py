"""Convolutions of volumes as implicit matrix products."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from onnxbolt.dtypes import DType
from onnxbolt.onnxruntime_time import CUDNN
from onnxbolt.problems.product import Product


@dataclass(frozen=True)
class Conv3dProblem(Product):
    """NDHWC x KTRSC -> NOPQK; channels as stored (padding included). Sizes are those of depth,
    height and width. Those that are convolutions of images are a ConvProblem
    (onnxbolt/graph/volumes.py)."""

    operation, library = "3-D convolution", CUDNN
    least: ClassVar[Mapping[str, int]] = {"pads": 0}
    nchw, y_nchw = False, False

    n: int
    x: tuple[int, int, int]
    c: int
    k: int
    filter: tuple[int, int, int]
    y: tuple[int, int, int]
    pads: tuple[int, int, int, int, int, int]  # front, top, left, back, bottom, right
    strides: tuple[int, int, int]
    dilations: tuple[int, int, int]
    groups: int
    dtype: DType
    out: DType
    chain: tuple[str, ...]

    @property
    def rows(self) -> int:
        """Rows of the implicit GEMM: output pixels."""
        return self.n * math.prod(self.y)

    @property
    def columns(self) -> int:
        """Columns of the implicit GEMM: output channels."""
        return self.k

    @property
    def depth(self) -> int:
        """Input channels that an output channel reads."""
        return self.c // self.groups

    @property
    def taps(self) -> int:
        return math.prod(self.filter)

    @property
    def is_matrix(self) -> bool:
        return False

    @property
    def x_elements(self) -> int:
        return self.n * math.prod(self.x) * self.c

    @property
    def depthwise(self) -> bool:
        return self.groups == self.c == self.k > 1

    @property
    def layers(self) -> tuple[Conv3dProblem, ...]:
        return (self,)

    @property
    def shape(self) -> str:
        """Sizes of x, channels, the filter, groups, and unusual strides and dilations."""
        kind = "conv" if self.groups == 1 else f"conv in {self.groups} groups"
        parts = [f"{kind} {_by(self.n, *self.x, self.c)} to {self.k}", _by(*self.filter)]
        for name, steps in (("stride", self.strides), ("dilation", self.dilations)):
            if set(steps) != {1}:
                parts.append(f"{name} {_by(*(steps if len(set(steps)) > 1 else steps[:1]))}")
        return ", ".join(parts)


def _by(*sizes: int) -> str:
    return "x".join(map(str, sizes))
