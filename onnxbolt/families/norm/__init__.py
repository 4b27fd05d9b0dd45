"""Normalization of rows on any architecture: x and a residual are read once, and stay in registers
for the statistics and the result."""

from __future__ import annotations

import enum
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from onnxbolt.archs import Arch
from onnxbolt.families.base import FLAG, Compiled, Family, KernelConfig, access
from onnxbolt.families.row import at
from onnxbolt.integers import ceil_divide
from onnxbolt.kernel_time import US, bandwidth
from onnxbolt.problems import NormProblem

_MOST_COLUMNS = 16384
_WARP, _MOST_THREADS = 32, 1024
_MOST_VALUES = 64  # a thread holds so many, of all its rows under way, in registers
_VALUES = 32  # the most worth trying in a row: with more, few threads fit an SM
_LANES = 3  # numbers of lanes worth trying, the fewest first
_BLOCKS = (128, 256)  # threads of a block whose rows are shorter than it

_FIXED_US = 0.4  # first access to memory, statistics, last store
_VALUE_CLOCKS, _SUM_CLOCKS = 6, 4  # instructions of a thread for a value, and for one exchange
_THREADS_PER_CLOCK = 128  # threads of an SM that take an instruction in one clock


class Caching(enum.IntEnum):
    """The hints that accesses give the caches."""

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
    further rows until none is left."""

    rows: int = at("tile_m", sound=_power_of_two)
    lanes: int = at("tile_n", sound=_power_of_two)
    vectors: int = at("tile_k", sound=lambda vectors: 1 <= vectors <= _MOST_VALUES)
    batch: int = at("stages", default=1, sound=lambda batch: 1 <= batch <= 8)
    access: int = at("align_a", "align_b", "align_c", repeated=True, sound=access)
    resident: bool = at("resident", default=False, numbers=FLAG)
    caching: Caching = at("schedule", default=Caching.USUAL, numbers=_CACHING)

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.rows * self.lanes

    @property
    def values(self) -> int:
        """Values of its rows under way that a thread holds."""
        return self.batch * self.vectors * self.access

    def mismatched(self) -> list[str]:
        """A block has whole warps, several of them for one row alone; registers hold the values."""
        wrong = super().mismatched()
        if self.threads % _WARP or self.threads > _MOST_THREADS:
            wrong.append("rows")
        if self.lanes > _WARP and self.rows > 1:
            wrong.append("lanes")
        if self.values > _MOST_VALUES:
            wrong.append("batch")
        return wrong


class Norm(Family[NormConfig]):
    """LayerNorm and RmsNorm on every architecture, for every type."""

    number, name, config = 24, "norm", NormConfig
    takes = ("element", "epilogue", "stores")
    problems, kinds = (NormProblem,), frozenset({"layer_norm", "rms_norm"})
    tensor_cores = False

    def candidates(self, problem: NormProblem, arch: Arch) -> tuple[NormConfig, ...]:
        """None for rows of more than 16,384 values."""
        if problem.c > _MOST_COLUMNS:
            return ()
        return tuple(config for config in _configs(problem, arch.number) if not config.mismatched())

    def shared_memory(self, kernel: Compiled) -> int:
        """None beside the kernel's own arrays."""
        return 0

    def predicted_us(self, problem: NormProblem, config: NormConfig, arch: Arch) -> float:
        """The memory's time, or that of the instructions, lanes without work included."""
        lane = config.vectors * config.access * _VALUE_CLOCKS
        lane += 2 * _SUM_CLOCKS * config.lanes.bit_length()
        threads = ceil_divide(problem.m, config.rows * config.batch) * config.rows * config.batch
        clocks = threads * config.lanes * lane / (_THREADS_PER_CLOCK * arch.sm_count)
        moving = problem.bytes_moved / bandwidth(arch) * US
        return arch.launch_us + _FIXED_US + max(moving, clocks / arch.clock * US)


def _configs(problem: NormProblem, arch: int) -> Iterator[NormConfig]:
    width = next(n for n in (problem.dtype.alignment, 4, 2, 1) if problem.c % n == 0)
    ways = itertools.product(_lanes(problem.c // width, width), (1, 2), (False, True))
    for (lanes, vectors), batch, resident in ways:
        for rows in dict.fromkeys(block // lanes for block in _blocks(lanes)):
            for caching in (Caching.USUAL, Caching.PAST_L1):
                yield NormConfig(
                    arch=arch,
                    rows=rows,
                    lanes=lanes,
                    vectors=vectors,
                    batch=batch,
                    access=width,
                    resident=resident,
                    caching=caching,
                )


def _blocks(lanes: int) -> tuple[int, ...]:
    """Threads of a block."""
    return _BLOCKS if lanes <= _WARP else (lanes,)


def _lanes(accesses: int, width: int) -> list[tuple[int, int]]:
    """Threads of a row of so many accesses, and accesses of each thread."""
    found = ((1 << n, ceil_divide(accesses, 1 << n)) for n in range(_MOST_THREADS.bit_length()))
    fitting = [(lanes, each) for lanes, each in found if each * width <= _VALUES]
    return fitting[:_LANES]
