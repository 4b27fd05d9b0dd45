"""Attention by mma.sync on any architecture: tiles of keys and values pass through shared memory,
scores stay in registers."""

from __future__ import annotations

import dataclasses
import enum
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from onnxbolt.archs import Arch, Capability, Shape, get
from onnxbolt.dtypes import DType
from onnxbolt.families.base import (
    FLAG,
    Compiled,
    Family,
    KernelConfig,
    access,
    stage_count,
    tile_size,
)
from onnxbolt.families.blocks.access import alignment
from onnxbolt.families.blocks.memory import memory_us
from onnxbolt.families.row import at
from onnxbolt.integers import ceil_divide, round_up
from onnxbolt.kernel_time import US, overlapped
from onnxbolt.problems import MAX_HEAD, AttentionProblem

_UNIT, _STEP = 16, 32  # bytes of a row of an instruction's matrix, and of a step along sizes
_WARP, _MOST_THREADS = 32, 512
_MOST_TILES = 1024  # tiles of keys whose being masked out is remembered (shape.h)
# with queries in registers, a thread's fragments are at most so many: without a mask, and with one
_HELD_REGISTERS, _HELD_REGISTERS_MASKED = 176, 152
# registers of a thread beside scores, sums and queries: operands under way, addresses, the mask's
# addresses; and keys of a tile for which one more is needed
_BASE_REGISTERS, _MASK_REGISTERS, _KEYS_OF_REGISTER = 50, 27, 16
_BAND_REGISTERS, _WINDOW_REGISTERS = 12, 12  # bounds of a band; places of a window's rows
# for blocks that divide keys, without a mask, and with one, whose registers leave room
_SPLIT_REGISTERS, _SPLIT_REGISTERS_MASKED = 34, 6
# threads of an SM whose blocks take several batches, by the rows of a warp (shape.h)
_RESIDENT_THREADS = {16: 512, 32: 256}
_SAVED = 1.3  # registers as counted here, relative to those that such blocks have
_WARPS_TOGETHER = 4  # an SM's warps get registers in such groups
_ROWS = (16, 32)  # queries of a warp
_WARPS = (1, 2, 4, 8)  # warps of a block, where queries do not divide into few blocks
_FEW_BLOCKS, _FEW_QUERIES = 4, 512  # up to here blocks of about equal size are tried
_LEAST_KEYS = 32  # keys of a tile, unless an SM has room for fewer alone
_KEYS = (64, 128, 32, 16)  # keys of a usual tile
_FEW_KEYS = 1024  # up to here tiles of about equal size are tried
_LEAST_EVEN, _MOST_EVEN = 48, 128  # keys of such a tile
_MOST_WHOLE = 208  # keys that may be one tile
_MOST_CANDIDATES = 24
_SPLITS = (1, 2, 4, 8)  # blocks that divide the keys; the last number is a cluster's most

# The constants were fitted to measurements of benchmarks/attention.py on one H200.
_RATE = 0.966  # part of mma.sync's rate
# clocks of an SM for a score beside the products: the exponential and the other instructions, and
# for a value of a mask that depends on the query
_SOFTMAX_CLOCKS, _MASK_CLOCKS = 0.073, 0.037
_WARP_CLOCKS = 30.0  # clocks of an SM for a warp's tile beside its scores
# clocks of a warp by itself for a tile, and for a row of an instruction's products
_TILE_CLOCKS, _PRODUCT_CLOCKS = 100.0, 1 / 8
_WAITING = 0.72  # part of these that other warps do not hide
_BLOCK_US, _BATCH_US = 2.67, 0.51  # first loads and last store: of a block, of a further batch
_BAND = 1.4  # the longest blocks of a band are busy while others have ended
_L2 = 1.6  # part of L2's bandwidth, since L1 serves some reads
_LOSS = 0.52  # part of the shorter of (compute, memory) that is not hidden behind the longer

# Estimates for keys that blocks divide: the barriers of a cluster, and the clocks in which a block
# writes, or reads in others' shared memory, a sum of values.
_SPLIT_US, _SUM_CLOCKS = 1.0, 0.06


class MaskKind(enum.IntEnum):
    """The masks that a kernel is compiled for."""

    NONE = 0
    FLOATS = 1  # fp32 numbers are added
    ELEMENTS = 2  # numbers of the operands' type, of 16 bits, are added
    BOOLEANS = 3


_MASK_KINDS = {kind: int(kind) for kind in MaskKind}


@dataclass(frozen=True, kw_only=True)
class AttentionConfig(KernelConfig):
    """`queries` of a block, `rows` of them of each warp; `keys` of a tile. `size` and `value_size`
    are a head's, as the kernel pads them. One of `stages` alone: all keys are expected in one
    tile. `banded`: the kernel knows of bands. `windows`: it reads and writes windows of images.
    `resident`: a block takes several batches with the same mask, which stays in registers; the next
    batch is loaded while it works on this one. `splits`: blocks of a cluster, which divide the keys
    of the same queries. `access`: elements of an access to q, k, v and y."""

    queries: int = at("tile_m", sound=tile_size)
    keys: int = at("tile_n", sound=lambda keys: tile_size(keys) and keys % 8 == 0)
    size: int = at("tile_k", sound=lambda size: 0 < size <= MAX_HEAD)
    value_size: int = at("warp_k", sound=lambda size: 0 < size <= MAX_HEAD)
    rows: int = at("warp_m", sound=lambda rows: rows in _ROWS)
    instruction: Shape = at("instruction_m", "instruction_n", "instruction_k")
    stages: int = at("stages", sound=lambda stages: stages > 0 and stage_count(stages))
    mask: MaskKind = at("schedule", default=MaskKind.NONE, numbers=_MASK_KINDS)
    banded: bool = at("iterator", default=False, numbers=FLAG)
    windows: bool = at("consumers", default=False, numbers=FLAG)
    resident: bool = at("resident", default=False, numbers=FLAG)
    splits: int = at("split_k", default=1, sound=lambda splits: splits in _SPLITS)
    access: int = at("align_a", "align_b", "align_c", repeated=True, sound=access)

    def mismatched(self) -> list[str]:
        """A block has whole warps, and as many as its queries need; two batches share a mask;
        blocks divide keys in clusters."""
        wrong = super().mismatched()
        if self.queries % self.rows or self.threads > _MOST_THREADS:
            wrong.append("queries")
        if self.resident and (self.stages != 2 or self.mask is MaskKind.NONE):
            wrong.append("resident")
        if self.splits > 1 and (self.resident or self.windows or not _has_clusters(self)):
            wrong.append("splits")
        return wrong

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.queries // self.rows * _WARP


class Attention(Family[AttentionConfig]):
    """Every attention of a type that the tensor cores multiply, heads of up to 256 elements."""

    number, name, config = 25, "attention", AttentionConfig
    takes = ("element",)
    problems, kinds = (AttentionProblem,), frozenset({"attention"})
    needs = frozenset({Capability.MMA_SYNC})
    compile_seconds = 2.0

    def candidates(self, problem: AttentionProblem, arch: Arch) -> tuple[AttentionConfig, ...]:
        """The fastest predicted ones of all that fit an SM; none for results of another type than
        the operands."""
        return self.fastest(problem, arch, _SPLITS if arch.has(Capability.CLUSTERS) else (1,))

    def fastest(
        self, problem: AttentionProblem, arch: Arch, splits: tuple[int, ...]
    ) -> tuple[AttentionConfig, ...]:
        """The candidates with these numbers of blocks that divide the keys."""
        largest = max(problem.size, problem.value_size)
        if not arch.supports(problem.dtype) or problem.out is not problem.dtype:
            return ()
        if largest > MAX_HEAD or min(problem.keys, problem.queries) < 1:
            return ()
        found = feasible(problem, arch, splits)
        least = min(_LEAST_KEYS, max((config.keys for config in found), default=0))
        found = [config for config in found if config.keys >= min(least, problem.keys)]
        found.sort(key=lambda config: (self.predicted_us(problem, config, arch), config))
        return tuple(found[:_MOST_CANDIDATES])

    def shared_memory(self, kernel: Compiled) -> int:
        """Queries, the stages' keys and values or a part's sums, and what is known of masks."""
        return _shared_memory(kernel.config, kernel.dtype)

    def predicted_us(self, problem: AttentionProblem, config: AttentionConfig, arch: Arch) -> float:
        """Blocks in waves, and the memory's time."""
        blocks = _blocks_of(problem, config) * config.splits
        most = max(_resident(config, problem.dtype, arch), 1)
        resident = min(most, ceil_divide(blocks, arch.sm_count))
        tiles = _tiles(problem, config)
        if config.splits > 1:
            tiles = max(math.ceil(tiles / config.splits), 1)
        working = tiles * config.queries * config.keys * _score_clocks(problem, config, arch)
        working += tiles * config.queries / config.rows * _WARP_CLOCKS
        waiting = tiles * _tile_clocks(config) * _WAITING
        # blocks that an SM holds share its units, and wait at the same time
        full, rest = divmod(blocks, arch.sm_count * resident)
        waves = full + bool(rest)
        shared = full * resident + ceil_divide(rest, arch.sm_count)
        clocks = shared * working + waves * waiting
        begun = _BLOCK_US + (waves - 1) * (_BATCH_US if config.resident else _BLOCK_US)
        if config.splits > 1:
            clocks += waves * resident * 2 * config.queries * config.value_size * _SUM_CLOCKS
            begun += waves * _SPLIT_US
        computing = clocks / arch.clock * US + begun
        loaded = tiles * config.keys * (config.size + config.value_size) * problem.dtype.bytes
        reading = blocks * loaded / (_L2 * arch.l2_bandwidth) * US
        moving = max(reading, memory_us(problem, arch))
        return arch.launch_us + overlapped(computing, moving, _LOSS)


def feasible(
    problem: AttentionProblem, arch: Arch, splits: tuple[int, ...]
) -> list[AttentionConfig]:
    """Every configuration that fits an SM, with those numbers of `splits` that may win."""
    return [c for c in _configs(problem, arch, splits) if _fits(c, problem.dtype, arch)]


def _configs(
    problem: AttentionProblem, arch: Arch, splits: tuple[int, ...]
) -> Iterator[AttentionConfig]:
    """All combinations of tiles, whether they fit an SM or not; `splits` that may win alone."""
    for split in splits:
        for config in _undivided(problem, ceil_divide(problem.keys, split), arch):
            divided = dataclasses.replace(config, splits=split)
            if split == 1 or _may_win(divided, problem, arch):
                yield divided


def _undivided(problem: AttentionProblem, keys: int, arch: Arch) -> Iterator[AttentionConfig]:
    """All combinations of tiles for a block that has so many keys."""
    dtype = problem.dtype
    size, value_size = (_padded(size, dtype) for size in (problem.size, problem.value_size))
    for (rows, queries), (tile, stages, resident) in itertools.product(
        _blocks(problem.queries), _rings(problem, keys, arch)
    ):
        yield AttentionConfig(
            arch=arch.number,
            queries=queries,
            keys=tile,
            size=size,
            value_size=value_size,
            rows=rows,
            instruction=arch.mma[dtype],
            stages=stages,
            mask=mask_kind(problem),
            banded=bool(problem.band),
            windows=bool(problem.windows),
            resident=resident,
            access=alignment(math.gcd(problem.size, problem.value_size), dtype),
        )


def _blocks_of(problem: AttentionProblem, config: AttentionConfig) -> int:
    """Blocks that have different queries."""
    return problem.batch * problem.heads * ceil_divide(problem.queries, config.queries)


def _may_win(config: AttentionConfig, problem: AttentionProblem, arch: Arch) -> bool:
    """True if blocks that divide the keys find SMs that have no other work, and a tile each."""
    blocks = _blocks_of(problem, config)
    free = 2 * blocks <= arch.sm_count and blocks * config.splits <= 2 * arch.sm_count
    tiles = ceil_divide(problem.keys, config.keys)
    return free and config.splits <= tiles and not (config.resident or config.windows)


def _has_clusters(config: AttentionConfig) -> bool:
    return get(config.arch).has(Capability.CLUSTERS)


def _blocks(queries: int) -> Iterator[tuple[int, int]]:
    """Queries of a warp and of a block: some warps, or blocks of about equal size."""
    for rows in _ROWS:
        all_warps = ceil_divide(queries, rows)
        blocks = range(1, _FEW_BLOCKS + 1) if queries <= _FEW_QUERIES else ()
        even = {ceil_divide(all_warps, n) for n in blocks}
        most = max(all_warps, 64 // rows)  # more would be idle
        for warps in sorted(even | set(_WARPS)):
            if warps <= most:
                yield rows, rows * warps


def _padded(size: int, dtype: DType) -> int:
    return round_up(size, _STEP // dtype.bytes)


def mask_kind(problem: AttentionProblem) -> MaskKind:
    """The kind of kernels for the problem's mask."""
    if not problem.mask:
        return MaskKind.NONE
    kind, *added = problem.mask
    if kind != "added":
        return MaskKind.BOOLEANS
    return MaskKind.FLOATS if DType.F32.value in added else MaskKind.ELEMENTS


def _rings(problem: AttentionProblem, keys: int, arch: Arch) -> list[tuple[int, int, bool]]:
    """Keys of a tile, stages, and whether the mask stays, for a block that has so many `keys`: all
    at once, tiles of equal size, usual tiles."""
    depths = (2, 3) if arch.has(Capability.CP_ASYNC) else (1, 2)
    rings = [(tile, stages) for tile in _KEYS for stages in depths]
    if keys <= _FEW_KEYS:
        even = (round_up(ceil_divide(keys, n), 16) for n in range(2, 16))
        rings += [(tile, 2) for tile in even if _LEAST_EVEN <= tile <= _MOST_EVEN]
    if keys <= _MOST_WHOLE:
        rings = [(tile, stages) for tile, stages in rings if tile < keys]
        rings.append((round_up(keys, 8), 1))
    rings.append((16, 1))  # heads of 256 elements on an SM with little shared memory
    found = [(tile, stages, False) for tile, stages in dict.fromkeys(rings)]
    several = len(problem.mask_shape) == 4 and problem.mask_shape[0] == problem.batch
    shares_mask = problem.mask and not several  # by all batches, or by those of a period
    if shares_mask and problem.batch > 1 and problem.keys <= _MOST_WHOLE:
        found.append((round_up(problem.keys, 8), 2, True))
    return found


def _tiles(problem: AttentionProblem, config: AttentionConfig) -> float:
    """Tiles of keys that a block visits; in a band the mean of all blocks, and more for the longest
    ones."""
    tiles = ceil_divide(problem.keys, config.keys)
    if not problem.band:
        return tiles
    share = problem.pairs / (problem.queries * problem.keys)
    return min(tiles, _BAND * (tiles * share + (config.queries / config.keys + 1) / 2))


def _row(size: int, dtype: DType) -> int:
    """Bytes from one row to the next in shared memory (custom_ops/mma/copy_rows.h)."""
    return size * dtype.bytes + _UNIT


def _shared_memory(config: AttentionConfig, dtype: DType) -> int:
    """Bytes of a block, as in custom_ops/families/attention/shape.h."""
    row, value_row = (_row(size, dtype) for size in (config.size, config.value_size))
    ring = config.stages * round_up(config.keys, 16) * (row + value_row)
    flags = _MOST_TILES if config.mask is not MaskKind.NONE else 0
    batches = config.stages if config.resident else 1
    sums = tops = 0
    if config.splits > 1:
        sums, tops = config.queries * (config.value_size + 8 + 2) * 4, config.queries * 4
    return batches * config.queries * max(row, value_row) + max(ring, sums) + tops + flags


def _registers(config: AttentionConfig, dtype: DType) -> int:
    """The approximate registers of a thread: scores, sums, statistics, and queries where these are
    held."""
    tiles = config.rows // 16
    fragments = (config.keys + config.value_size) // 8 * 4 + 4
    queries = config.size * dtype.bytes // _STEP * 4
    masked = config.mask is not MaskKind.NONE
    most = _HELD_REGISTERS_MASKED if masked else _HELD_REGISTERS
    held = tiles * (fragments + queries) <= most
    others = _BASE_REGISTERS + config.keys // _KEYS_OF_REGISTER
    if masked:  # its addresses, and later its values
        others += tiles * max(_MASK_REGISTERS, config.keys // (2 if config.resident else 4))
    others += config.banded * _BAND_REGISTERS + config.windows * _WINDOW_REGISTERS
    if config.splits > 1:
        others += _SPLIT_REGISTERS_MASKED if masked else _SPLIT_REGISTERS
    return tiles * (fragments + (queries if held else 0)) + others


def _fits(config: AttentionConfig, dtype: DType, arch: Arch) -> bool:
    """True if the kernel compiles well, and its block fits an SM."""
    units = max(config.size, config.value_size) * dtype.bytes // _UNIT
    return (
        not config.mismatched()
        and units <= config.threads  # which copy at least a row at a time
        and compiles_well(config, dtype, arch)
        and _shared_memory(config, dtype) <= arch.shared_memory_per_block
        and _resident(config, dtype, arch) >= 1
    )


def compiles_well(config: AttentionConfig, dtype: DType, arch: Arch) -> bool:
    """True if ptxas spills no more than a few bytes (tests/families/attention_spills.jsonl). Where
    a launch has to leave room for further blocks, ptxas finds ways to take fewer registers. A warp
    of 16 queries that has to load all keys by itself spills whatever their number."""
    if config.queries == min(_ROWS):
        return False
    most: float = arch.registers_per_thread
    if config.resident:
        threads = max(_RESIDENT_THREADS[config.rows], config.threads)
        most = min(_SAVED * arch.registers_per_sm / threads, most)
    return _registers(config, dtype) <= most


def _resident(config: AttentionConfig, dtype: DType, arch: Arch) -> int:
    """Blocks that an SM holds."""
    reserved = arch.shared_memory_per_sm - arch.shared_memory_per_block
    by_memory = arch.shared_memory_per_sm // (_shared_memory(config, dtype) + reserved)
    groups = arch.registers_per_sm // (_registers(config, dtype) * _WARP * _WARPS_TOGETHER)
    by_registers = groups * _WARPS_TOGETHER * _WARP // config.threads
    if config.resident:
        by_registers = max(_RESIDENT_THREADS[config.rows] // config.threads, 1)
    return min(by_memory, by_registers, arch.threads_per_sm // config.threads, 32)


def _score_clocks(problem: AttentionProblem, config: AttentionConfig, arch: Arch) -> float:
    """Clocks of an SM for a score: its products, and its part of the softmax."""
    rate = _RATE * arch.rate(problem.dtype) * arch.mma_sync_share / arch.sm_count / arch.clock
    products = 2 * (config.size + config.value_size) / rate
    reads_mask = len(problem.mask_shape) > 1 and problem.mask_shape[-2] != 1 and not config.resident
    return products + _SOFTMAX_CLOCKS + (_MASK_CLOCKS if reads_mask else 0)


def _tile_clocks(config: AttentionConfig) -> float:
    """Clocks of a warp for a tile, if it has an SM by itself."""
    scores = config.rows // 16 * config.keys
    return _TILE_CLOCKS + scores * (config.size + config.value_size) * _PRODUCT_CLOCKS
