"""The tiles worth compiling, as tables: CUTLASS 2.x threadblock and warp shapes, 3.x tile, cluster
and schedule.

The choice follows Bolt (section 3.2.2): within the register file the largest warp tile, since a
warp tile of WM x WN does WM*WN/(WM+WN) products per element read from shared memory; four or eight
warps to a threadblock; small threadblocks where the problem is small, so that every SM has one. K
is given for 2-byte types; types of 4 bytes take half of it, so that a tile's row has the same
bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

from onnxbolt.archs import Arch, Shape
from onnxbolt.dtypes import DType
from onnxbolt.kernels.config import Schedule


@dataclass(frozen=True)
class Tile2x:
    """A 2.x tile with the pipeline depths worth trying; a warp tile spans the whole K of its
    threadblock."""

    m: int
    n: int
    k: int
    warp: tuple[int, int]
    stages: tuple[int, ...]

    def threadblock(self, dtype: DType) -> Shape:
        return self.m, self.n, self.k * 2 // dtype.bytes

    def warp_shape(self, dtype: DType) -> Shape:
        return *self.warp, self.k * 2 // dtype.bytes


@dataclass(frozen=True)
class Tile3x:
    """A 3.x tile with the clusters worth trying; stages are what shared memory holds."""

    m: int
    n: int
    k: int
    schedule: Schedule
    clusters: tuple[tuple[int, int], ...]

    def threadblock(self, dtype: DType) -> Shape:
        return self.m, self.n, self.k * 2 // dtype.bytes


_TURING = (
    Tile2x(256, 128, 32, (64, 64), (2,)),
    Tile2x(128, 256, 32, (64, 64), (2,)),
    Tile2x(128, 128, 32, (64, 64), (2,)),
    Tile2x(256, 64, 32, (64, 64), (2,)),
    Tile2x(64, 256, 32, (64, 64), (2,)),
    Tile2x(128, 64, 32, (64, 32), (2,)),
    Tile2x(64, 128, 32, (32, 64), (2,)),
    Tile2x(64, 64, 32, (32, 32), (2,)),
)

_AMPERE = (
    Tile2x(256, 128, 32, (64, 64), (3,)),
    Tile2x(128, 256, 32, (64, 64), (3,)),
    Tile2x(256, 128, 64, (64, 64), (3,)),
    Tile2x(128, 256, 64, (64, 64), (3,)),
    Tile2x(128, 128, 32, (64, 64), (3, 4, 5)),
    Tile2x(128, 128, 64, (64, 64), (3, 4)),
    Tile2x(256, 64, 32, (64, 64), (4,)),
    Tile2x(64, 256, 32, (64, 64), (4,)),
    Tile2x(256, 64, 64, (64, 64), (3, 4)),
    Tile2x(64, 256, 64, (64, 64), (3, 4)),
    Tile2x(128, 64, 32, (64, 32), (6,)),
    Tile2x(64, 128, 32, (32, 64), (6,)),
    Tile2x(128, 64, 64, (64, 32), (3,)),
    Tile2x(64, 128, 64, (32, 64), (3,)),
    Tile2x(64, 64, 32, (32, 32), (10,)),
    Tile2x(64, 64, 64, (32, 32), (5,)),
    # few rows or few columns
    Tile2x(128, 32, 64, (32, 32), (4,)),
    Tile2x(32, 64, 64, (16, 32), (5,)),
    # not 64x16 (warp 16x16): CUTLASS 4.2 compiles it, and it computes wrong numbers on an H200, in
    # GEMM and in Conv
)

HOPPER = (
    Tile3x(128, 256, 64, Schedule.COOPERATIVE, ((2, 1),)),
    Tile3x(256, 128, 64, Schedule.COOPERATIVE, ((1, 2), (1, 4))),
    Tile3x(128, 192, 64, Schedule.COOPERATIVE, ((2, 1),)),
    Tile3x(128, 128, 64, Schedule.COOPERATIVE, ((2, 1), (1, 1))),
    Tile3x(128, 128, 128, Schedule.COOPERATIVE, ((2, 1),)),
    Tile3x(256, 64, 64, Schedule.COOPERATIVE, ((2, 1),)),
    Tile3x(64, 256, 64, Schedule.PINGPONG, ((1, 1),)),
    Tile3x(64, 128, 64, Schedule.PINGPONG, ((1, 2), (2, 1))),
    Tile3x(64, 128, 128, Schedule.PINGPONG, ((1, 1),)),
    Tile3x(128, 64, 64, Schedule.PINGPONG, ((1, 1),)),
    Tile3x(64, 64, 128, Schedule.PINGPONG, ((1, 1), (2, 1))),
    Tile3x(64, 32, 128, Schedule.PINGPONG, ((1, 1),)),
    Tile3x(64, 16, 128, Schedule.PINGPONG, ((1, 1),)),
)


def tiles_2x(arch: Arch) -> tuple[Tile2x, ...]:
    """The 2.x table of `arch`: two stages before cp.async, deep pipelines since; shared memory
    limits are checked elsewhere."""
    return _AMPERE if arch.cp_async else _TURING
