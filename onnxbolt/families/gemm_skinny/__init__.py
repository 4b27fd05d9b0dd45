"""GEMM for up to 16 rows of A by mma.sync on any architecture: the weights are read once, from
memory into registers, and the warps of a block or of a cluster divide k."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from onnxbolt.archs import Arch, Capability, Shape, get
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import gates
from onnxbolt.families.base import Compiled, Family, KernelConfig, access
from onnxbolt.families.blocks.access import alignment
from onnxbolt.families.blocks.memory import memory_us
from onnxbolt.families.blocks.tiled import access_rate
from onnxbolt.families.row import at
from onnxbolt.integers import ceil_divide
from onnxbolt.kernel_time import US, overlapped
from onnxbolt.problems import GemmProblem, GluProblem

_ROWS = (8, 16)  # rows of A that a block has; the last number is the most of a problem
_TILE = 8  # columns of an instruction
_COLUMNS = (8, 16, 32)
_WARPS = (4, 8, 16)
_STEPS = (2, 4, 8)
_SPLITS = (1, 2, 4, 8)  # blocks of a cluster; the last number is the most on every GPU
_WARP, _UNIT = 32, 16
_STEP = 64  # bytes of a row in a step: four lanes' accesses of 16 bytes
_MOST_UNITS = 20  # accesses of a thread that are under way together
_LEAST_UNITS = 4
# registers of a thread beside operands and sums, and with accesses of fewer than 16 bytes
_BASE_REGISTERS, _NARROW_REGISTERS = 56, 80
_MOST_CANDIDATES = 16

# Clusters took at least 1.6 us longer than single blocks for 11 products on an H200.
_FIXED_US, _CLUSTER_US = 1.0, 2.0  # the warps' and the blocks' sums, the epilogue
_LATENCY_US = 0.8  # from a load's begin to its products
_LOSS = 0.3  # part of the shorter of (latency, memory) that is not hidden behind the longer


@dataclass(frozen=True, kw_only=True)
class GemmSkinnyConfig(KernelConfig):
    """`rows` of A and `columns` of the product of a block, whose `warps` divide k; each loads
    `steps` of 64 bytes of a row at a time. `split`: blocks of a cluster, which divide k as well.
    `access_k` and `access_n`: elements of an access to A and B, and to D."""

    rows: int = at("tile_m", sound=lambda rows: rows in _ROWS)
    columns: int = at("tile_n", sound=lambda columns: columns in _COLUMNS)
    instruction: Shape = at("instruction_m", "instruction_n", "instruction_k")
    steps: int = at("stages", sound=lambda steps: steps in _STEPS)
    split: int = at("split_k", default=1, compiled=1, sound=lambda n: 0 < n <= _SPLITS[-1])
    warps: int = at("consumers", sound=lambda warps: warps in _WARPS)
    access_k: int = at("align_a", "align_b", repeated=True, sound=access)
    access_n: int = at("align_c", sound=lambda n: access(n) and n <= _TILE)


class GemmSkinny(Family[GemmSkinnyConfig]):
    """Serves GEMMs and gated units of few rows, of types that the tensor cores multiply."""

    number, name, config = 29, "gemm_skinny", GemmSkinnyConfig
    problems, kinds = (GemmProblem, GluProblem), frozenset({"gemm", "glu"})
    needs = frozenset({Capability.MMA_SYNC})

    def candidates(
        self, problem: GemmProblem | GluProblem, arch: Arch
    ) -> tuple[GemmSkinnyConfig, ...]:
        """The fastest predicted ones; none for more rows than a block takes."""
        if problem.inner or problem.m > _ROWS[-1] or not arch.supports(problem.dtype):
            return ()
        found = [c for c in _configs(problem, arch) if _resident(c, problem.dtype, arch) > 0]
        found.sort(key=lambda config: (self.predicted_us(problem, config, arch), config))
        return tuple(found[:_MOST_CANDIDATES])

    def launches(self, config: GemmSkinnyConfig) -> Sequence[Sequence[GemmSkinnyConfig]]:
        return [[replace(config, split=split) for split in _splits(get(config.arch))]]

    def shared_memory(self, kernel: Compiled) -> int:
        """The warps' sums."""
        config: GemmSkinnyConfig = kernel.config
        return config.warps * config.rows * config.columns * 4

    def predicted_us(
        self, problem: GemmProblem | GluProblem, config: GemmSkinnyConfig, arch: Arch
    ) -> float:
        """The weights through memory, all operands through L2, and the latency of the loads that a
        warp makes one after another."""
        tiles = ceil_divide(problem.m, config.rows)
        tiles *= ceil_divide(problem.product_columns, config.columns)
        waves = ceil_divide(
            tiles * config.split, arch.sm_count * _resident(config, problem.dtype, arch)
        )
        together = config.split * config.warps * config.steps
        turns = ceil_divide(_steps(problem), together)
        waiting = waves * turns * _LATENCY_US
        rate = access_rate(config.access_k, problem.dtype)
        rows = min(problem.m, config.rows) + config.columns
        read = tiles * rows * problem.k * problem.dtype.bytes / (rate * arch.l2_bandwidth) * US
        moving = max(memory_us(problem, arch) / rate, read)
        fixed = _FIXED_US + (_CLUSTER_US if config.split > 1 else 0)
        return arch.launch_us + fixed + overlapped(waiting, moving, _LOSS)


def _configs(problem: GemmProblem | GluProblem, arch: Arch) -> Iterator[GemmSkinnyConfig]:
    """Every combination whose warps do not load twice as many steps at a time as there are, or the
    one with the fewest."""
    rows = next(rows for rows in _ROWS if problem.m <= rows)
    least = _TILE * (1 + gates(problem.chain))
    most = max(2 * _steps(problem), _WARPS[0] * _STEPS[0] + 1)
    for columns, warps, steps, split in itertools.product(_COLUMNS, _WARPS, _STEPS, _splits(arch)):
        units = (rows + columns) // _TILE * steps
        if columns < least or not _LEAST_UNITS <= units <= _MOST_UNITS:
            continue
        if split * warps * steps >= most:
            continue
        yield GemmSkinnyConfig(
            arch=arch.number,
            rows=rows,
            columns=columns,
            instruction=arch.mma[problem.dtype],
            steps=steps,
            split=split,
            warps=warps,
            access_k=alignment(problem.k, problem.dtype),
            access_n=alignment(problem.n, problem.dtype),
        )


def _splits(arch: Arch) -> Sequence[int]:
    """Blocks of a cluster; one where an SM has no clusters."""
    return _SPLITS if arch.has(Capability.CLUSTERS) else _SPLITS[:1]


def _steps(problem: GemmProblem | GluProblem) -> int:
    """Steps along k."""
    return ceil_divide(problem.k * problem.dtype.bytes, _STEP)


def _registers(config: GemmSkinnyConfig, dtype: DType) -> int:
    """The approximate registers of a thread: operands under way, sums, addresses."""
    units = (config.rows + config.columns) // _TILE * config.steps
    wide = config.access_k * dtype.bytes == _UNIT
    others = _BASE_REGISTERS if wide else _NARROW_REGISTERS
    return 4 * units + config.columns // _TILE * 4 + others


def _resident(config: GemmSkinnyConfig, dtype: DType, arch: Arch) -> int:
    """Blocks that an SM holds; 0 for one whose registers would be spilled."""
    threads = config.warps * _WARP
    registers = _registers(config, dtype)
    if registers > arch.registers_per_thread:
        return 0
    return min(arch.registers_per_sm // (registers * threads), arch.threads_per_sm // threads)
