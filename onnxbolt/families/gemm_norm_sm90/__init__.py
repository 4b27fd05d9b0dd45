"""GEMM on sm_90a whose epilogue normalizes whole rows (docs/decisions/norms-in-products.md).

The blocks of a cluster hold all columns of a tile's rows, a tile's columns each, and exchange the
rows' statistics through distributed shared memory. The main loop is that of other GEMMs there; a
warpgroup has 64 rows, and staging for all its columns.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

from onnxbolt.archs import Arch, Capability, get
from onnxbolt.epilogues import STORE, tensor_operands
from onnxbolt.families.base import Compiled, Family, Schedule, access, clusters
from onnxbolt.families.blocks import sm90
from onnxbolt.families.blocks.memory import memory_us, vector_operands
from onnxbolt.families.blocks.sm90 import Finish, ProductConfig
from onnxbolt.families.blocks.staging import BARRIER, Typed, loads_residual, stored_columns
from onnxbolt.families.row import at
from onnxbolt.integers import ceil_divide
from onnxbolt.problems import GemmNormProblem

_C, _P = Schedule.COOPERATIVE, Schedule.PINGPONG
# rows of a tile, schedule, consumer warpgroups: each of these has 64 rows
_TILES = ((64, _C, 1), (128, _C, 2), (192, _C, 3), (64, _P, 2), (64, _P, 3))
# the most columns without spilled registers, by consumer warpgroups
_MOST_COLUMNS = {1: 256, 2: 256, 3: 128}
_MOST_OF_TWO = 128  # the same where two tensors are added
_MOST_BLOCKS = 8  # the largest cluster that every GPU can place
_LEAST_COLUMNS = 64  # columns of a tile, where there are several blocks
_TURNS, _MOMENTS = 2, 8  # buffers of an exchange; bytes of a row's statistics
_LEAST_STAGES, _MOST_STAGES = 3, 16
# estimates, not measured: statistics of a tile, and their way to the other blocks of the cluster;
# bytes a clock of the second output
_STATISTICS_US, _EXCHANGE_US, _STORE = 0.2, 0.7, 33.0


@dataclass(frozen=True, kw_only=True)
class GemmNormSm90Config(ProductConfig):
    """`cluster`: 1, and the blocks that hold a row."""

    cluster: tuple[int, int] = at(  # type: ignore[misc]
        "cluster_m", "cluster_n", default=(1, 1), sound=clusters
    )
    access_in: int = at("align_a", "align_b", repeated=True, default=8, sound=access)
    access_out: int = at("align_c", default=8, sound=access)

    def mismatched(self) -> list[str]:
        """A warpgroup has 64 rows, no weights are resident, and clusters lie along the columns."""
        wrong = super().mismatched()
        if self.group_rows != 64:
            wrong.append("rows")
        if self.resident:
            wrong.append("resident")
        if self.cluster[0] != 1 or self.cluster[1] > _MOST_BLOCKS:
            wrong.append("cluster")
        if self.columns > _MOST_COLUMNS.get(self.consumers, 0) or self.columns not in sm90.COLUMNS:
            wrong.append("columns")
        if self.schedule is _P and self.consumers == 1:
            wrong.append("schedule")
        return wrong


class GemmNormSm90(Family[GemmNormSm90Config]):
    """Serves rows that TMA can read and write, of up to 2,048 columns that a cluster's blocks
    divide evenly."""

    number, name, config = 27, "gemm_norm_sm90", GemmNormSm90Config
    takes = ("element", "output", "epilogue", "stores")
    problems, kinds = (GemmNormProblem,), frozenset({"gemm"})
    needs = frozenset({Capability.CLUSTERS, Capability.TMA, Capability.WGMMA})
    measured = False

    def candidates(self, problem: GemmNormProblem, arch: Arch) -> tuple[GemmNormSm90Config, ...]:
        """None where y has another type than x."""
        alignment = problem.dtype.alignment
        if problem.out is not problem.dtype or not arch.supports(problem.dtype):
            return ()
        if problem.k % alignment or problem.n % alignment:
            return ()
        staged = (_with_stages(config, problem, arch) for config in _configs(problem, arch.number))
        return tuple(config for config in staged if config.stages >= _LEAST_STAGES)

    def shared_memory(self, kernel: Compiled) -> int:
        """The exchange lies behind the operands, its barriers behind the others."""
        config, finish = kernel.config, _finish(kernel.config, kernel)
        size, exchange = kernel.dtype.bytes, _exchange_bytes(config)
        whole = sm90.block_bytes(config, size, finish, get(config.arch), exchange)
        return whole + config.consumers * _TURNS * BARRIER

    def predicted_us(
        self, problem: GemmNormProblem, config: GemmNormSm90Config, arch: Arch
    ) -> float:
        """The product's time, and what the norm adds to each tile: nothing hides that of
        cooperative warpgroups, and of others that of the last tile."""
        stored = config.rows * config.columns * problem.dtype.bytes * (STORE in problem.chain)
        added = _STATISTICS_US + stored / _STORE / sm90.CLOCKS_PER_US
        added += _EXCHANGE_US if config.cluster[1] > 1 else 0.0
        slots = arch.sm_count // config.cluster[1]
        tiles = ceil_divide(ceil_divide(problem.m, config.rows), slots)
        product = sm90.predicted_us(problem, config, arch, memory_us(problem, arch))
        return product + added * (tiles if config.schedule is _C else 1)


def _configs(problem: GemmNormProblem, arch: int) -> Iterator[GemmNormSm90Config]:
    """All divisions of a row among blocks, in all tiles; without stages yet."""
    several = tensor_operands(problem.chain) > 1
    for blocks, tile in itertools.product(range(1, _MOST_BLOCKS + 1), _TILES):
        (rows, schedule, consumers), columns = tile, problem.n // blocks
        if columns * blocks != problem.n or columns not in sm90.COLUMNS:
            continue
        narrow = blocks > 1 and columns < _LEAST_COLUMNS
        if narrow or columns > (_MOST_OF_TWO if several else _MOST_COLUMNS[consumers]):
            continue
        yield GemmNormSm90Config(
            arch=arch,
            rows=rows,
            columns=columns,
            k=sm90.k_block(problem.k, problem.dtype),
            schedule=schedule,
            consumers=consumers,
            cluster=(1, blocks),
            access_in=problem.dtype.alignment,
            access_out=problem.dtype.alignment,
        )


def _with_stages(config: GemmNormSm90Config, kernel: Typed, arch: Arch) -> GemmNormSm90Config:
    """The configuration with as many stages as shared memory holds."""
    finish, size = _finish(config, kernel), kernel.dtype.bytes
    epilogues = config.consumers * (finish.staging + finish.vectors) + _exchange_bytes(config)
    free = arch.shared_memory_per_block - sm90.FIXED_BYTES - epilogues
    stage = (config.rows + config.columns) * config.k * size
    return replace(config, stages=min(free // stage, _MOST_STAGES))


def _finish(config: GemmNormSm90Config, kernel: Typed) -> Finish:
    """Each unit of a warpgroup's 64 rows has a buffer."""
    columns, size = config.columns, kernel.dtype.bytes
    units = columns // stored_columns(columns, kernel.dtype, loads_residual(kernel))
    return Finish(64 * columns * size, vector_operands(kernel.chain) * columns * 4, units)


def _exchange_bytes(config: GemmNormSm90Config) -> int:
    """The statistics that a block receives, of each warpgroup's rows from each block."""
    blocks = config.cluster[1]
    return config.consumers * _TURNS * blocks * 64 * _MOMENTS if blocks > 1 else 0
