"""Attention on sm_90a with wgmma and TMA (custom_ops/families/attention_sm90; shape.h has the same
formulas for registers and shared memory).

A work item is 64 queries of one head for each consumer warpgroup of a block. Its keys and values
come in blocks through rings in shared memory. Few long blocks are better than many, since each one
has a softmax with its reductions; registers bound their length.

Times: the constants were fitted to the fastest kernels of both families on one H200, for 18 shapes
from 40 to 4,096 keys with heads of 32 to 128 elements (root mean square of the logarithm of the
error 8%; the predicted choice takes 1.05 times the best, geometric mean).
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

from onnxbolt.archs import Arch, Capability, get
from onnxbolt.dtypes import CODES, DType
from onnxbolt.families.base import (
    FLAG,
    SCHEDULES,
    Compiled,
    Family,
    KernelConfig,
    Schedule,
    stage_count,
    warpgroups,
)
from onnxbolt.families.blocks.memory import memory_us
from onnxbolt.families.blocks.sm90 import CLOCKS_PER_US
from onnxbolt.families.row import at
from onnxbolt.integers import ceil_divide, round_up
from onnxbolt.problems import MAX_HEAD, AttentionProblem

ROWS = 64  # queries of a warpgroup
_MOST_KEYS = 256  # keys of a block
# columns of the second product that custom_ops/sm90/wgmma_registers.h declares
VALUE_SIZES = (8, 16, 24, 32, 40, 48, 56, 64, 72, 80, 96, 112, 128, 160, 192, 256)
_MOST_CONSUMERS, _MOST_BLOCKS = 4, 6
_MOST_STAGES, _QUERY_STAGES = 4, 2
_WASTE = 0.03  # part of the keys that may be multiplied for nothing
_SHORTEST = 48  # keys of a block, unless there are fewer
_MOST_CANDIDATES = 20
_USUAL_KEYS = 128  # keys of a block that is tried besides the best lengths
_WIDTHS = 2  # lengths of a block that are tried with each division of the queries
_BLOCK_COLUMNS = 20  # a block takes as long as so many further keys
_ORDERS = (  # overlap, and whether warpgroups take turns
    (False, Schedule.COOPERATIVE),
    (True, Schedule.COOPERATIVE),
    (True, Schedule.PINGPONG),
)
_SPARE_GROUPS = 0.5  # the part of the warpgroups that may have no queries

# --- registers ------------------------------------------------------------------------------------

_WARP_GRANULARITY = 4  # an SM's registers lie in four parts, each of which has every fourth warp
_PRODUCER_REGISTERS = 32  # at least, if setmaxnreg moves registers
_MOST_REGISTERS = 240

# --- shared memory --------------------------------------------------------------------------------

_BARRIER, _WORK = 8, 28  # bytes of a barrier, and of an item's description
_RESERVED = 1024  # bytes of each block that the system reserves

# --- time -----------------------------------------------------------------------------------------

_LAUNCH_US = 1.55
# an item's latencies (copies, first product, store), and the part that other warpgroups do not hide
_ITEM_CLOCKS, _ITEM_SHARE = 1400.0, 0.15
_GROUP_CLOCKS = 960.0  # further clocks of each warpgroup for an item, whatever the others do
# latencies of a warpgroup's block of keys by itself, with overlap less
_BLOCK_CLOCKS, _UNDER_CLOCKS = 215.0, 30.0
_PRODUCTS = 1.48  # relative to the tensor cores' peak
_SCORE_CLOCKS = 6.7  # clocks of an SM for a column of 64 scores
_REDUCE_CLOCKS = 23.0  # for a block of keys
_SOLO = 1.8  # the factor of a softmax's clocks if no other warpgroup has one
_LOADED = 52.0  # bytes a clock that one SM loads
_LEAST_COLUMNS = 64  # narrower products take the time of these
# parts of the shorter of (products, softmax) that are not hidden behind the longer: plain order,
# overlap, turns
_LOSS, _OVERLAP_LOSS, _TURN_LOSS = 0.39, 0.3, 0.02
_KEYS_LOSS = 0.25  # in any order, where biases are added to scores


class MaskForm(enum.IntEnum):
    """The masks that kernels are compiled for."""

    NONE = 0
    KEYS = 1  # any mask whose values are the same for all queries
    ADDED = 2  # values of the operands' type that are added
    ADDED_F32 = 3
    BOOLEAN = 4


_FORMS = {form: int(form) for form in MaskForm}
# Registers beside scores, weights and sums, without which ptxas spills: without overlap; with
# overlap, by how warpgroups begin products: one by itself, in turns, at any time. As compiled
# (tests/families/attention_spills.jsonl).
_OTHER_REGISTERS = {
    MaskForm.NONE: (32, 32, 32, 36),
    MaskForm.KEYS: (32, 44, 52, 60),
    MaskForm.ADDED: (64, 76, 84, 84),
    MaskForm.ADDED_F32: (64, 88, 88, 88),
    MaskForm.BOOLEAN: (64, 64, 64, 64),
}
# bytes of a value of a mask that differs among queries; the most of an item's part that is copied
_MASK_VALUES = {MaskForm.ADDED: 2, MaskForm.ADDED_F32: 4, MaskForm.BOOLEAN: 1}
_MOST_MASK_BYTES = 16384
# further clocks for a column of 64 scores
_MASK_CLOCKS = {
    MaskForm.NONE: 0.0,
    MaskForm.KEYS: 2.5,
    MaskForm.ADDED: 3.9,
    MaskForm.ADDED_F32: 3.9,
    MaskForm.BOOLEAN: 3.9,
}


def _block_length(keys: int) -> bool:
    return 0 < keys <= _MOST_KEYS and keys % 16 == 0


@dataclass(frozen=True, kw_only=True)
class AttentionSm90Config(KernelConfig):
    """Blocks of `keys` keys; the last block has `last_keys` if so many suffice for the remaining
    keys. `size` and `value_size` are a head's elements in the products, zeros included.
    `query_stages` is the depth of the queries' ring, `stages` that of the keys' and values'.
    `blocks`: blocks of an SM. `overlap`: a block's softmax runs under the products of its
    neighbours. PINGPONG: warpgroups take turns in starting products."""

    keys: int = at("tile_n", sound=_block_length)
    last_keys: int = at("warp_n", sound=_block_length)
    size: int = at("tile_k", sound=lambda size: 0 < size <= MAX_HEAD and size % 16 == 0)
    value_size: int = at("instruction_n", sound=lambda size: size in VALUE_SIZES)
    consumers: int = at("consumers", sound=warpgroups)  # consumer warpgroups
    blocks: int = at("warp_m", default=1, sound=lambda blocks: 1 <= blocks <= _MOST_BLOCKS)
    stages: int = at("stages", sound=lambda stages: stages > 0 and stage_count(stages))
    query_stages: int = at("warp_k", default=1, sound=lambda stages: 1 <= stages <= 2)
    schedule: Schedule = at("schedule", default=Schedule.COOPERATIVE, numbers=SCHEDULES)
    overlap: bool = at("resident", default=False, numbers=FLAG)
    mask: MaskForm = at("iterator", default=MaskForm.NONE, numbers=_FORMS)
    banded: bool = at("instruction_k", default=False, numbers=FLAG)

    @property
    def has_equal_blocks(self) -> bool:
        """True if the last block that is visited may be any, so that none is shorter."""
        return self.banded or self.mask is MaskForm.KEYS

    def mismatched(self) -> list[str]:
        """Turns need two warpgroups; a block fits an SM as often as it has to."""
        wrong = super().mismatched()
        if self.last_keys > self.keys or (self.has_equal_blocks and self.last_keys < self.keys):
            wrong.append("last keys")
        if self.consumers > _MOST_CONSUMERS or (self.consumers > 1 and self.blocks > 1):
            wrong.append("consumers")
        if (self.schedule is Schedule.PINGPONG) > (self.consumers > 1) or not self.schedule:
            wrong.append("schedule")
        if held_registers(self) > registers(self):
            wrong.append("keys")
        arch = get(self.arch)
        per_block = arch.shared_memory_per_sm // self.blocks - _RESERVED
        if shared_memory(self) > min(per_block, arch.shared_memory_per_block):
            wrong.append("stages")
        return wrong


class AttentionSm90(Family[AttentionSm90Config]):
    """Serves fp16 and bf16, heads of up to 256 elements, every mask whose values lie side by side
    along keys, and bands. Results have the operands' type, or are codes of 8 bits."""

    number, name, config = 26, "attention_sm90", AttentionSm90Config
    problems, kinds = (AttentionProblem,), frozenset({"attention"})
    needs = frozenset({Capability.TMA, Capability.WGMMA})
    compile_seconds = 3.0
    codes = CODES

    def candidates(self, problem: AttentionProblem, arch: Arch) -> tuple[AttentionSm90Config, ...]:
        """The fastest predicted ones; none for heads whose rows TMA cannot copy, windows of images,
        or a mask that has a period or is broadcast along keys."""
        form = mask_form(problem)
        if form is None or not _serves(problem):
            return ()
        found = list(dict.fromkeys(_configs(problem, arch.number, form)))
        found.sort(key=lambda config: (self.predicted_us(problem, config, arch), config))
        return tuple(found[:_MOST_CANDIDATES])

    def shared_memory(self, kernel: Compiled) -> int:
        return shared_memory(kernel.config)

    def predicted_us(
        self, problem: AttentionProblem, config: AttentionSm90Config, arch: Arch
    ) -> float:
        """Rounds of items, each bound by the products, the softmax or the copies of all warpgroups
        of an SM, or by the latencies of one."""
        tiles = ceil_divide(problem.queries, ROWS)
        groups = ceil_divide(tiles, config.consumers)
        items = problem.batch * problem.heads * groups
        rounds = ceil_divide(items, arch.sm_count * config.blocks)
        blocks, columns = _visited(problem, config)
        multiplied = max(columns, blocks * min(_LEAST_COLUMNS, config.keys * 2))
        row = config.size + config.value_size
        products = (multiplied * config.size + columns * config.value_size) / 32 * _PRODUCTS
        softmax = columns * (_SCORE_CLOCKS + _MASK_CLOCKS[config.mask]) + blocks * _REDUCE_CLOCKS
        latency = _UNDER_CLOCKS if config.overlap else _BLOCK_CLOCKS
        alone = products + softmax * _SOLO + blocks * latency + _ITEM_CLOCKS
        resident = min(config.blocks, ceil_divide(items, arch.sm_count))
        sharing = resident * tiles / groups  # warpgroups of an SM that have queries
        shorter, longer = sorted((sharing * products, sharing * softmax))
        together = longer + shorter * _loss(config) + resident * _ITEM_CLOCKS * _ITEM_SHARE
        together += sharing * _GROUP_CLOCKS
        loads = resident * (columns + config.consumers * ROWS) * row * 2 / _LOADED
        if config.stages == 1 and blocks > 1:  # nothing hides the copies' latencies
            loads += blocks * _ITEM_CLOCKS / 4
        clocks = max(alone, together, loads)
        return _LAUNCH_US + max(rounds * clocks / CLOCKS_PER_US, memory_us(problem, arch))


def _loss(config: AttentionSm90Config) -> float:
    if config.mask is MaskForm.KEYS:
        return _KEYS_LOSS
    if config.schedule is Schedule.PINGPONG:
        return _TURN_LOSS if config.overlap else _OVERLAP_LOSS
    return _OVERLAP_LOSS if config.overlap else _LOSS


# --- demands of a problem -------------------------------------------------------------------------


def mask_form(problem: AttentionProblem) -> MaskForm | None:
    """The form of its mask; None if no kernel serves it."""
    if not problem.mask:
        return MaskForm.NONE
    queries, keys = (1, 1, *problem.mask_shape)[-2:]
    if queries == 1:
        return MaskForm.KEYS
    if keys != problem.keys:
        return None
    kind, *types = problem.mask
    if kind != "added":
        return MaskForm.BOOLEAN
    return MaskForm.ADDED_F32 if DType(types[0]) is DType.F32 else MaskForm.ADDED


def _serves(problem: AttentionProblem) -> bool:
    sizes = problem.size, problem.value_size
    typed = problem.dtype.bytes == 2 and (problem.out is problem.dtype or problem.out.is_code)
    if problem.windows or problem.periodic:
        return False
    if problem.out.is_code and problem.value_size % 16:
        return False
    return typed and all(size % 8 == 0 and 0 < size <= MAX_HEAD for size in sizes)


# --- candidates -----------------------------------------------------------------------------------


def _configs(problem: AttentionProblem, arch: int, form: MaskForm) -> Iterator[AttentionSm90Config]:
    """Each division of the queries among warpgroups and blocks and each order of products, with the
    best lengths of a block of keys."""
    several = problem.keys > ROWS
    orders = itertools.product(_divisions(problem.queries), _ORDERS if several else _ORDERS[:1])
    for (consumers, blocks), (overlap, schedule) in orders:
        if schedule is Schedule.PINGPONG and consumers == 1:
            continue
        base = AttentionSm90Config(
            arch=arch,
            keys=ROWS,
            last_keys=ROWS,
            size=round_up(problem.size, 16),
            value_size=next(size for size in VALUE_SIZES if size >= problem.value_size),
            consumers=consumers,
            blocks=blocks,
            stages=1,
            schedule=schedule,
            overlap=overlap,
            mask=form,
            banded=bool(problem.band),
        )
        tried = (_deepest(problem, base, *lengths) for lengths in _lengths(problem, base))
        found = [config for config in tried if config]
        yield from found[:_WIDTHS]
        yield from (config for config in found[_WIDTHS:] if config.keys == _USUAL_KEYS)


def _divisions(queries: int) -> Iterator[tuple[int, int]]:
    """Consumer warpgroups of a block, and blocks of an SM."""
    tiles = ceil_divide(queries, ROWS)
    for blocks in (6, 4, 3, 2, 1):
        yield 1, blocks
    for consumers in range(2, min(_MOST_CONSUMERS, tiles) + 1):
        if round_up(tiles, consumers) <= tiles * (1 + _SPARE_GROUPS):
            yield consumers, 1


def _lengths(problem: AttentionProblem, config: AttentionSm90Config) -> list[tuple[int, int]]:
    """Keys of a block and of the last one, those with the least waste and the fewest blocks first.
    With overlap there are several blocks."""
    found = []
    needed = min(round_up(problem.keys, 16), _MOST_KEYS)
    for keys in range(min(needed, _SHORTEST), needed + 1, 16):
        count = ceil_divide(problem.keys, keys)
        if config.overlap and count == 1:
            continue
        last = round_up(problem.keys - (count - 1) * keys, 16)
        if config.has_equal_blocks or keys - last <= _WASTE * problem.keys:
            last = keys  # products of one length are faster
        waste = (count - 1) * keys + last + count * _BLOCK_COLUMNS
        found.append((waste, keys, last))
    return [(keys, last) for _, keys, last in sorted(found)]


def _deepest(
    problem: AttentionProblem, base: AttentionSm90Config, keys: int, last: int
) -> AttentionSm90Config | None:
    """The kernel with the deepest rings that fit; None if none fits, or if it would spill."""
    most = 2 if problem.keys <= keys else _MOST_STAGES
    several = itertools.product((_QUERY_STAGES, 1), range(most, 1, -1))
    for query_stages, stages in (*several, (_QUERY_STAGES, 1), (1, 1)):
        config = replace(base, keys=keys, last_keys=last, stages=stages, query_stages=query_stages)
        if needed_registers(config) > registers(config):
            return None
        if not config.mismatched():
            return config
    return None


def _visited(problem: AttentionProblem, config: AttentionSm90Config) -> tuple[float, float]:
    """Blocks of keys that an item reads, and their columns, on average."""
    blocks = ceil_divide(problem.keys, config.keys)
    columns = (blocks - 1) * config.keys + config.last_keys
    share = problem.pairs / (problem.queries * problem.keys)
    if share == 1:
        return blocks, columns
    edges = config.keys + config.consumers * ROWS  # a band's edges lie within blocks
    visited = min(columns, share * problem.keys + edges / 2)
    return visited / config.keys, visited


# --- formulas of shape.h --------------------------------------------------------------------------


def registers(config: AttentionSm90Config) -> int:
    """Registers of a consumer's thread."""
    if config.consumers == 1:
        warps = round_up(5 * config.blocks, _WARP_GRANULARITY)
        return min(65536 // (32 * warps) // 8 * 8, _MOST_REGISTERS)
    pool = 65536 // (128 * (config.consumers + 1)) // 8 * 8 * (config.consumers + 1)
    return min((pool - _PRODUCER_REGISTERS) // config.consumers // 8 * 8, _MOST_REGISTERS)


def held_registers(config: AttentionSm90Config) -> int:
    """Those of scores, weights and sums."""
    return config.keys // 2 + config.keys // 4 + config.value_size // 2


def needed_registers(config: AttentionSm90Config) -> int:
    """Those without which ptxas spills."""
    if not config.overlap:
        order = 0 if config.consumers < _MOST_CONSUMERS else 1
    elif config.consumers == 1:
        order = 1
    else:
        order = 2 if config.schedule is Schedule.PINGPONG else 3
    return held_registers(config) + _OTHER_REGISTERS[config.mask][order] + _edge_registers(config)


def _edge_registers(config: AttentionSm90Config) -> int:
    """Further ones for bounds of a band, and for products of a shorter last block."""
    masked = config.mask not in (MaskForm.NONE, MaskForm.KEYS)
    if config.banded:
        wide = config.value_size > 64
        return 0 if masked else 4 if not config.overlap else 24 if wide else 16
    if config.last_keys == config.keys:
        return 0
    if masked:
        return 20 if config.overlap else 8
    seldom = config.value_size > 64 or config.consumers == 4  # sums are scaled (shape.h)
    if not config.overlap or seldom or config.last_keys == 16:
        return 0
    return 6 + config.last_keys // 8


def _box_columns(size: int) -> int:
    return 64 if size > 32 else 32 if size > 16 else 16


def _row_bytes(size: int) -> int:
    """Bytes of a head's row in shared memory: whole boxes."""
    return round_up(size, _box_columns(size)) * 2


def shared_memory(config: AttentionSm90Config) -> int:
    """Bytes of a block's shared memory."""
    key_row, value_row = _row_bytes(config.size), _row_bytes(config.value_size)
    ring, queries = config.stages * config.keys, config.consumers * ROWS
    mask = queries * config.keys * _MASK_VALUES.get(config.mask, 0)
    stage = queries * max(key_row, value_row) + _WORK + 2 * _BARRIER
    stage += 16 + (mask if mask <= _MOST_MASK_BYTES else 0)
    biases = ring if config.mask is MaskForm.KEYS else 2
    total = round_up(ring * key_row, 1024) + round_up(ring * value_row, 1024)
    total += config.query_stages * stage + config.stages * 4 * _BARRIER + biases * 4
    return round_up(total, 1024)
