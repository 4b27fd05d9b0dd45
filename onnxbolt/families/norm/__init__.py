"""Normalization of rows on any architecture: x and a residual are read once, and stay in registers
for the statistics and the result."""

from __future__ import annotations

import enum
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from onnxbolt.archs import Arch
from onnxbolt.dtypes import CODES
from onnxbolt.epilogues import rotates
from onnxbolt.families.base import FLAG, Compiled, Family, KernelConfig, access
from onnxbolt.families.blocks.memory import memory_us, vector_operands
from onnxbolt.families.row import at
from onnxbolt.integers import ceil_divide, round_up
from onnxbolt.kernel_time import US
from onnxbolt.problems import (
    MAX_TABLES,
    EmbeddingNormProblem,
    HeadNormProblem,
    ModulatedNormProblem,
    NormProblem,
    TokenNormProblem,
)

_MOST_COLUMNS = 16384
_WARP, _MOST_THREADS = 32, 1024
_MOST_VALUES = 64  # a thread holds so many, of all its rows under way, in registers
_VALUES = 32  # the most worth trying in a row: with more, few threads fit an SM
# The same of heads, for which a thread holds gamma, beta, cos and sin as well.
_HEAD_VALUES = 16
_LANES = 3  # numbers of lanes worth trying, the fewest first
_BLOCKS = (128, 256)  # threads of a block whose rows are shorter than it

_RESIDENT_THREADS = 1024  # an SM's, if blocks stay (custom_ops/families/norm/kernel.h)
_MOST_BLOCKS = 32  # blocks of an SM
_BASE_REGISTERS, _VALUE_REGISTERS = 11.0, 0.66  # a thread's, and for each of its values

# The constants were fitted to 255 measurements of 22 problems on one H200, from 32x768 to
# 100352x96, with operands beyond the L2 cache (tests/families/test_norm.py holds the fastest).
_LAUNCH_SHARE = 0.62  # part of a launch's usual time: there is nothing to prepare
_ROUND_US = 0.27  # latencies of the rows that are under way together
_BARRIER_US = 0.29  # further ones where several warps share a row
# Loads of gamma and beta that follow the row's statistics, for each access of a thread: the next
# ones wait for the stores, since these may change them.
_FACTOR_US = 0.45
_START_US = 0.073  # an SM's time for starting a block
_VALUE_CLOCKS = 5.6  # instructions of a thread for a value
_THREADS_PER_CLOCK = 128  # threads of an SM that take an instruction in one clock


class Caching(enum.IntEnum):
    """The hints that accesses give the caches. None is a candidate but USUAL: others win by at most
    2%, and lose up to 20%."""

    USUAL = 0
    PAST_L1 = 1  # loads leave nothing in L1
    EVICTED_FIRST = 2  # and what is stored leaves L2 first


_CACHING = {caching: int(caching) for caching in Caching}


def _power_of_two(value: int) -> bool:
    return 1 <= value <= _MOST_THREADS and value & (value - 1) == 0


@dataclass(frozen=True, kw_only=True)
class NormConfig(KernelConfig):
    """`rows` of a block at a time, each of `lanes` threads, which make `vectors` accesses of
    `access` elements each; a row longer than a warp has a block of its own. A thread has `batch`
    rows under way together. `resident`: a block keeps gamma and beta in registers, and takes
    further rows until none is left. `tokens`: rows are those of sequences. `tables`: those of so
    many tables take the place of x. `heads`: rows are heads of tokens. `modulation`: sequences
    have vectors that scale and shift (1), and a gate (2)."""

    rows: int = at("tile_m", sound=_power_of_two)
    lanes: int = at("tile_n", sound=_power_of_two)
    vectors: int = at("tile_k", sound=lambda vectors: 1 <= vectors <= _MOST_VALUES)
    batch: int = at("stages", default=1, sound=lambda batch: 1 <= batch <= 8)
    access: int = at("align_a", "align_b", "align_c", repeated=True, sound=access)
    resident: bool = at("resident", default=False, numbers=FLAG)
    caching: Caching = at("schedule", default=Caching.USUAL, numbers=_CACHING)
    tokens: bool = at("iterator", default=False, numbers=FLAG)
    tables: int = at("consumers", default=0, sound=lambda tables: 0 <= tables <= MAX_TABLES)
    heads: bool = at("warp_n", default=False, numbers=FLAG)
    modulation: int = at("warp_k", default=0, sound=lambda modulation: 0 <= modulation <= 2)

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.rows * self.lanes

    @property
    def values(self) -> int:
        """Values of its rows under way that a thread holds."""
        return self.batch * self.vectors * self.access

    def mismatched(self) -> list[str]:
        """A block has whole warps, several of them for one row alone; registers hold the values;
        indices are those of sequences; gamma and beta of heads differ from row to row."""
        wrong = super().mismatched()
        if self.threads % _WARP or self.threads > _MOST_THREADS:
            wrong.append("rows")
        if self.lanes > _WARP and self.rows > 1:
            wrong.append("lanes")
        if self.values > _MOST_VALUES:
            wrong.append("batch")
        if self.tables and not self.tokens:
            wrong.append("tables")
        if self.heads and (self.tokens or self.resident):
            wrong.append("heads")
        if self.modulation and (self.heads or self.tokens):
            wrong.append("modulation")
        return wrong


class Norm(Family[NormConfig]):
    """LayerNorm and RmsNorm, of rows, of tokens, of embeddings and of heads, and modulated ones, on
    every architecture, for every type."""

    number, name, config = 24, "norm", NormConfig
    takes = ("element", "output", "epilogue", "stores")
    problems = (
        NormProblem,
        TokenNormProblem,
        EmbeddingNormProblem,
        HeadNormProblem,
        ModulatedNormProblem,
    )
    kinds = frozenset(
        f"{source}{norm}"
        for source in ("", "token_", "embedding_", "head_", "modulated_")
        for norm in ("layer_norm", "rms_norm")
    )
    tensor_cores = False
    codes = CODES
    moves_values = True

    def candidates(self, problem: NormProblem, arch: Arch) -> tuple[NormConfig, ...]:
        """None for rows of more than 16,384 values, and for pairs that no access has whole."""
        if problem.c > _MOST_COLUMNS:
            return ()
        configs = (c for c in _configs(problem, arch.number) if not c.mismatched())
        return tuple(c for c in configs if c.access > 1 or not rotates(problem.chain))

    def words(self, config: NormConfig) -> list[str]:
        """Heads and modulation are named where there are such."""
        return [w for w in super().words(config) if w not in ("heads_0", "modulation_0")]

    def shared_memory(self, kernel: Compiled) -> int:
        """None beside the kernel's own arrays."""
        return 0

    def predicted_us(self, problem: NormProblem, config: NormConfig, arch: Arch) -> float:
        """The memory's time, and rounds of rows: little of the one hides behind the other, since a
        thread's loads, statistics and stores follow one another."""
        blocks = ceil_divide(problem.m, config.rows * config.batch)
        most = _blocks_of_sm(config, arch)
        rounds = blocks / (most * arch.sm_count)
        rounds = math.ceil(rounds) if config.resident else max(rounds, 1.0)
        threads = min(most, ceil_divide(blocks, arch.sm_count)) * config.threads
        clocks = threads * config.values * _VALUE_CLOCKS / _THREADS_PER_CLOCK
        working = rounds * (_round_us(problem, config) + clocks / arch.clock * US)
        starting = 0.0 if config.resident else blocks / arch.sm_count * _START_US
        launch = _LAUNCH_SHARE * arch.launch_us
        return launch + memory_us(problem, arch) + max(working, starting)


def _round_us(problem: NormProblem, config: NormConfig) -> float:
    """Latencies of the rows that a block has at a time."""
    latency = _ROUND_US + (_BARRIER_US if config.lanes > _WARP else 0.0)
    if not config.resident and vector_operands(problem.chain):
        latency += _FACTOR_US * config.vectors
    if config.tables:
        latency += _ROUND_US  # indices are read before the rows that they name; not measured
    return latency


def _blocks_of_sm(config: NormConfig, arch: Arch) -> int:
    """Blocks that an SM has at a time."""
    if config.resident:
        return max(_RESIDENT_THREADS // config.threads, 1)
    registers = round_up(math.ceil(_BASE_REGISTERS + config.values * _VALUE_REGISTERS), 8)
    by_registers = arch.registers_per_sm // (registers * config.threads)
    return max(min(by_registers, arch.threads_per_sm // config.threads, _MOST_BLOCKS), 1)


def _configs(problem: NormProblem, arch: int) -> Iterator[NormConfig]:
    width = next(n for n in (problem.dtype.alignment, 4, 2, 1) if problem.c % n == 0)
    most = _HEAD_VALUES if problem.of_heads else _VALUES
    ways = itertools.product(_lanes(problem.c // width, width, most), (1, 2), (False, True))
    for (lanes, vectors), batch, resident in ways:
        if problem.of_heads and batch * vectors * width > most:
            continue
        for rows in dict.fromkeys(block // lanes for block in _blocks(lanes)):
            yield NormConfig(
                arch=arch,
                rows=rows,
                lanes=lanes,
                vectors=vectors,
                batch=batch,
                access=width,
                resident=resident,
                tokens=problem.of_tokens,
                tables=problem.tables,
                heads=problem.of_heads,
                modulation=problem.modulation,
            )


def _blocks(lanes: int) -> tuple[int, ...]:
    """Threads of a block."""
    return _BLOCKS if lanes <= _WARP else (lanes,)


def _lanes(accesses: int, width: int, most: int) -> list[tuple[int, int]]:
    """Threads of a row of so many accesses, and accesses of each thread, which holds at most `most`
    values."""
    found = ((1 << n, ceil_divide(accesses, 1 << n)) for n in range(_MOST_THREADS.bit_length()))
    fitting = [(lanes, each) for lanes, each in found if each * width <= most]
    return fitting[:_LANES]
