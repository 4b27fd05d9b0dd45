"""Normalization of groups of channels of NHWC images on any architecture: one kernel, whose blocks
exchange their sums within clusters, or two."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from onnxbolt.archs import Arch, Capability, get
from onnxbolt.families.base import FLAG, Compiled, Family, KernelConfig, access, positive
from onnxbolt.families.row import at
from onnxbolt.integers import ceil_divide
from onnxbolt.kernel_time import US, bandwidth
from onnxbolt.problems import GroupNormProblem

_WARP, _MOST_THREADS = 32, 1024
_MOST_CLUSTER = 8  # blocks of a cluster, on every GPU that has clusters
_CLUSTERS = (1, 2, 4, _MOST_CLUSTER)
_THREADS = (256, 512)
_PART_BYTES = (64, 128, 256, 512)  # bytes of a pixel that a block reads
_WAVES = (1, 2, 4)  # waves of blocks, where two kernels divide an image
_BLOCKS_OF_SM = 512  # threads of an SM that registers suffice for
_RESERVED = 8192  # bytes of shared memory for sums

_FIXED_US = 1.5  # first accesses, sums over threads and blocks, last store
_VALUE_CLOCKS = 16  # instructions of a thread for a value, both passes together
_THREADS_PER_CLOCK = 128  # threads of an SM that take an instruction in one clock


def _whole_warps(threads: int) -> bool:
    return threads % _WARP == 0 and 2 * _WARP <= threads <= _MOST_THREADS


@dataclass(frozen=True, kw_only=True)
class GroupNormConfig(KernelConfig):
    """`threads` of a block, which make accesses of `access` elements. `part`: channels of a block,
    rounded up to whole groups and accesses. `blocks` share an image's part. `resident`: one kernel,
    these blocks are a cluster, and x stays in their shared memory where it fits; else two kernels.
    """

    threads: int = at("tile_m", sound=_whole_warps)
    part: int = at("tile_n", default=1, compiled=1, sound=positive)
    blocks: int = at("split_k", default=1, compiled=1, sound=positive)
    access: int = at("align_a", "align_b", "align_c", repeated=True, sound=access)
    resident: bool = at("resident", numbers=FLAG)

    def mismatched(self) -> list[str]:
        """Clusters have few blocks."""
        wrong = super().mismatched()
        if self.resident and self.blocks > _MOST_CLUSTER:
            wrong.append("blocks")
        return wrong


class GroupNorm(Family[GroupNormConfig]):
    """GroupNorm on every architecture, for every type."""

    number, name, config = 28, "group_norm", GroupNormConfig
    problems, kinds = (GroupNormProblem,), frozenset({"group_norm"})
    tensor_cores = False

    def candidates(self, problem: GroupNormProblem, arch: Arch) -> tuple[GroupNormConfig, ...]:
        """Both ways, with parts of whole groups."""
        if problem.group > self._most_channels(problem, arch):
            return ()
        return tuple(dict.fromkeys(_configs(problem, arch)))

    def shared_memory(self, kernel: Compiled) -> int:
        """All that a block can have; a launch takes what it needs."""
        return get(kernel.config.arch).shared_memory_per_block

    def predicted_us(self, problem: GroupNormProblem, config: GroupNormConfig, arch: Arch) -> float:
        """The memory's time, or that of the instructions, on the SMs that have blocks; x is read
        twice where it does not stay in shared memory."""
        width = problem.c * problem.dtype.bytes
        parts = ceil_divide(problem.c, config.part)
        blocks = problem.n * parts * config.blocks
        kept = config.resident and _kept(problem, config, arch)
        of_sm = _blocks_of_sm(problem, config, arch)
        waves = ceil_divide(blocks, arch.sm_count * of_sm)
        busy = min(1.0, blocks / (waves * arch.sm_count * of_sm))
        again = 0 if kept else problem.rows * width
        moving = (problem.bytes_moved + again) / bandwidth(arch)
        # a line of 128 bytes in pieces of other blocks
        moving *= 1 + 16 / min(config.part * problem.dtype.bytes, 512)
        clocks = problem.rows * problem.c * _VALUE_CLOCKS / (_THREADS_PER_CLOCK * arch.sm_count)
        us = max(moving, clocks / arch.clock) / max(busy, 1 / arch.sm_count) * US
        launches = 1 if config.resident else 2
        return launches * (arch.launch_us + _FIXED_US) + us

    def _most_channels(self, problem: GroupNormProblem, arch: Arch) -> int:
        """Channels of a group whose sums have room in shared memory."""
        sums = (2 * problem.dtype.alignment + 1) * max(_THREADS) // 2
        return arch.shared_memory_per_block // 8 - sums // 2 - _WARP


def _configs(problem: GroupNormProblem, arch: Arch) -> Iterator[GroupNormConfig]:
    width = next(n for n in (problem.dtype.alignment, 4, 2, 1) if problem.c % n == 0)
    for part, threads in itertools.product(_parts(problem, width), _THREADS):
        for resident in (True, False):
            for blocks in _numbers_of_blocks(problem, part, threads, resident, arch):
                yield GroupNormConfig(
                    arch=arch.number,
                    threads=threads,
                    part=part,
                    blocks=blocks,
                    access=width,
                    resident=resident,
                )


def _parts(problem: GroupNormProblem, width: int) -> list[int]:
    """Channels of a block: whole groups and accesses, about as many bytes as are worth trying."""
    least = math.lcm(problem.group, width)
    wanted = (size // problem.dtype.bytes for size in _PART_BYTES)
    return sorted({min(ceil_divide(n, least) * least, problem.c) for n in wanted})


def _numbers_of_blocks(
    problem: GroupNormProblem, part: int, threads: int, resident: bool, arch: Arch
) -> list[int]:
    """Blocks that share an image's part, each with some pixels for every thread."""
    units = problem.n * ceil_divide(problem.c, part)
    most = max(problem.p * part * problem.dtype.bytes // (16 * threads), 1)
    if resident:
        clusters = _CLUSTERS if arch.has(Capability.CLUSTERS) else (1,)
        return [blocks for blocks in clusters if blocks <= problem.p]
    of_sm = max(_BLOCKS_OF_SM // threads, 1)
    wanted = (ceil_divide(waves * arch.sm_count * of_sm, units) for waves in _WAVES)
    return sorted({min(blocks, most, problem.p) for blocks in wanted})


def _block_bytes(problem: GroupNormProblem, config: GroupNormConfig) -> int:
    """Bytes of x that a block reads."""
    return ceil_divide(problem.p, config.blocks) * config.part * problem.dtype.bytes


def _kept(problem: GroupNormProblem, config: GroupNormConfig, arch: Arch) -> bool:
    reserved = _RESERVED + config.threads * 34
    return _block_bytes(problem, config) + reserved <= arch.shared_memory_per_block


def _blocks_of_sm(problem: GroupNormProblem, config: GroupNormConfig, arch: Arch) -> int:
    """Blocks that an SM has room for at a time."""
    most = max(_BLOCKS_OF_SM // config.threads, 1)
    if config.resident and _kept(problem, config, arch):
        used = _block_bytes(problem, config) + _RESERVED + config.threads * 34
        return max(min(most, arch.shared_memory_per_sm // used), 1)
    return most
