"""Deformable attention: weighted sums of samples of several images (Zhu et al. 2020)."""

from __future__ import annotations

from dataclasses import dataclass

from onnxbolt.archs import Arch
from onnxbolt.dtypes import DType
from onnxbolt.onnxruntime_time import elementwise_us
from onnxbolt.problems.base import Problem

# ONNX Runtime's kernels for the exporters' nodes of each level: a Slice, a transposition and two
# conversions of the image, three of the grid, GridSample, a conversion of the samples; and behind
# them a Concat, a transposition of the weights, a product, a sum and a transposition
_LEVEL_KERNELS, _KERNELS = 9, 5
_CORNERS = 4  # pixels of a sample


@dataclass(frozen=True)
class DeformableAttentionProblem(Problem):
    """y[N, Q, H D] = for each head the sum over L levels and P points of weights[N, Q, H, L P]
    times the sample of an image of x[N, rows, H D] at grid[N, Q, H, L, P, 2]."""

    operation = "deformable-attention"

    n: int
    queries: int
    heads: int
    size: int  # channels of a head
    levels: tuple[int, ...]  # height and width of each level's image
    points: int  # in each level
    dtype: DType
    out: DType
    chain: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        return self.n * self.queries

    @property
    def columns(self) -> int:
        return self.heads * self.size

    @property
    def pixels(self) -> int:
        """Rows of x."""
        return sum(h * w for h, w in zip(self.levels[::2], self.levels[1::2], strict=True))

    @property
    def samples(self) -> int:
        """Samples of a head's channels, over all queries and heads."""
        return self.rows * self.heads * len(self.levels) // 2 * self.points

    @property
    def bytes_moved(self) -> int:
        places = self.samples * 3  # x and y, and a weight
        image = self.n * self.pixels * self.columns
        return (image + places) * self.dtype.bytes + self.rows * self.columns * self.out.bytes

    @property
    def bytes_sampled(self) -> int:
        """Bytes that kernels read of caches: a sample's pixels."""
        return self.samples * _CORNERS * self.size * self.dtype.bytes

    @property
    def shape(self) -> str:
        count = len(self.levels) // 2
        heads = f"{self.n}x{self.queries}x{self.heads}x{self.size}"
        return f"deformable attention {heads}, {count} levels, {self.points} points"

    def onnxruntime_us(self, arch: Arch) -> float:
        levels = len(self.levels) // 2
        image = self.n * self.pixels * self.columns * self.dtype.bytes
        sampled = self.samples * self.size * self.dtype.bytes
        kernels = (_LEVEL_KERNELS * levels + _KERNELS) * elementwise_us(0, arch)
        # float32 is twice as long, and is what GridSample reads and writes
        moved = elementwise_us(9 * image + 13 * sampled, arch) - elementwise_us(0, arch)
        return kernels + moved
