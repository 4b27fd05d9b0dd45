"""Convolutions on sm_90a by spatial tiles with their border, without im2col traffic.

It writes NHWC or, with values staged in the same way, NCHW. Writing both was slower at every
measured shape.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

from onnxbolt.archs import Arch, Capability
from onnxbolt.epilogues import MEAN, tensor_operands
from onnxbolt.families.base import Compiled, Family, Schedule, access, clusters
from onnxbolt.families.blocks import convolutions, halo
from onnxbolt.families.blocks.halo import HaloConfig
from onnxbolt.families.blocks.memory import memory_us
from onnxbolt.families.blocks.nchw_output import in_rows
from onnxbolt.families.blocks.sm90 import LAUNCH_US
from onnxbolt.families.row import at
from onnxbolt.kernel_time import US, overlapped
from onnxbolt.problems import ConvProblem

_KINDS = ((Schedule.PINGPONG, 2), (Schedule.COOPERATIVE, 2), (Schedule.COOPERATIVE, 1))
# resident filters, and blocks that share loads of filters
_FILTERS = ((True, 1), (False, 1), (False, 2))
# the most candidates of a problem; kernels that differ by the tile alone appear at most twice
_KEPT = 10


@dataclass(frozen=True, kw_only=True)
class HaloSm90Config(HaloConfig):
    """Beside a `HaloConfig`: blocks of a cluster that share loads of filters."""

    sharing: int = at("cluster_n", default=1, sound=clusters)  # type: ignore[misc]
    access_out: int = at("align_c", default=8, sound=access)  # 1 where y is written as NCHW


class HaloSm90(Family[HaloSm90Config]):
    """Serves filters of several positions with strides of 1 and 2."""

    number, name, config = 7, "halo_sm90", HaloSm90Config
    problems, kinds = (ConvProblem,), convolutions.KINDS
    needs = frozenset({Capability.CLUSTERS, Capability.TMA, Capability.WGMMA})

    def candidates(self, problem: ConvProblem, arch: Arch) -> tuple[HaloSm90Config, ...]:
        """The configurations with the least work for the busiest SM, best first."""
        if problem.inner or problem.both_forms or MEAN in problem.chain:
            return ()
        if not problem.y_nchw:
            return () if problem.depthwise else _ranked(problem, arch)
        if problem.groups > 1 or tensor_operands(problem.chain) or problem.nchw:
            return ()
        return tuple(replace(config, access_out=1) for config in _ranked(in_rows(problem), arch))

    def shared_memory(self, kernel: Compiled) -> int:
        return halo.compiled_bytes(kernel)

    def predicted_us(self, problem: ConvProblem, config: HaloSm90Config, arch: Arch) -> float:
        compute = halo.cycles(problem, config, arch) / arch.clock * US
        return LAUNCH_US + overlapped(compute, memory_us(problem, arch))


def _ranked(problem: ConvProblem, arch: Arch) -> tuple[HaloSm90Config, ...]:
    if not halo.supports(problem):
        return ()
    found = dict.fromkeys(_configs(problem, arch))
    ranked = sorted((halo.cycles(problem, config, arch), config) for config in found)
    kinds: dict[tuple[object, ...], int] = {}
    kept: list[HaloSm90Config] = []
    for _, config in ranked:
        shape = (config.channels, config.k_block, config.sharing)
        kind = (*shape, config.schedule, config.consumers, config.resident)
        kinds[kind] = kinds.get(kind, 0) + 1
        if kinds[kind] <= 2 and len(kept) < _KEPT:
            kept.append(config)
    return tuple(kept)


def _configs(problem: ConvProblem, arch: Arch) -> Iterator[HaloSm90Config]:
    for tile, (schedule, consumers), k_block in itertools.product(
        halo.tiles(problem), _KINDS, halo.k_blocks(problem.depth)
    ):
        positions = next(count for count in halo.POSITIONS if count >= tile.positions)
        channels = halo.CHANNELS * (1 if schedule is Schedule.PINGPONG else consumers)
        if channels > halo.CHANNELS and problem.k // problem.groups <= halo.CHANNELS:
            continue
        for resident, sharing in _FILTERS:
            config = HaloSm90Config(
                arch=arch.number,
                channels=channels,
                positions=positions,
                k_block=k_block,
                image_tile=(tile.columns, tile.rows, tile.images),
                stage_pixels=tile.stage_pixels,
                sharing=sharing,
                schedule=schedule,
                consumers=consumers,
                resident=resident,
            )
            yield from halo.with_stages(problem, config, arch)
