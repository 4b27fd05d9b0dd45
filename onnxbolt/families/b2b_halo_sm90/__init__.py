"""A convolution by spatial tiles with their border, and 1x1 convolutions behind it, in one kernel
on sm_90a (Bolt, section 3.1.1; custom_ops/sm90/halo/block.h has the same formulas).

Threadblock residence here: a warpgroup computes all channels of its positions, at most 64
(PINGPONG), or two warpgroups compute 64 each (COOPERATIVE); the last layer is computed in blocks of
64 channels. Intermediate results pass through shared memory, where the weights of all layers but
the first stay.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from onnxbolt.archs import Arch, Capability
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import MEAN, fits_several, layers, tensor_operands
from onnxbolt.families.base import Compiled, Family, Layers, Schedule
from onnxbolt.families.blocks import b2b, halo
from onnxbolt.families.blocks.halo import HaloConfig
from onnxbolt.families.blocks.memory import memory_us
from onnxbolt.families.blocks.sm90 import LAUNCH_US
from onnxbolt.families.row import at
from onnxbolt.kernel_time import US, overlapped
from onnxbolt.problems import ConvProblem

_MOST_LAYERS = 3  # the most layers that a row of a configuration can describe
_MOST_BLOCKS = 8  # blocks of 64 channels in the last layer
_SWIZZLE_BYTES = 1024  # alignment of weights and tiles
_KEPT = 10
_KINDS = (
    (Schedule.PINGPONG, 2),
    (Schedule.PINGPONG, 3),
    (Schedule.COOPERATIVE, 2),
    (Schedule.COOPERATIVE, 1),
)
_MOST_POSITIONS_OF_THREE = 128  # the most positions for three warpgroups, given their registers
# Cycles of an SM, fitted to 44 measurements on one H200 (root mean square of the relative error
# 10%, 6% without k-blocks of 32): a tile, beyond its main loop; an epilogue of 64 channels; each
# position of an epilogue; and each position of its tensor operands.
_TURN, _EPILOGUE, _POSITION, _TENSOR_POSITION = 250.0, 300.0, 8.0, 16.0
_BLOCK_STEPS = 4  # wgmma instructions along 64 channels


@dataclass(frozen=True, kw_only=True)
class B2bHaloSm90Config(HaloConfig):
    """Beside a `HaloConfig`: channels of the second layer and of the third one, zero where there is
    none."""

    later: tuple[int, int] = at(  # type: ignore[misc]
        "instruction_n", "instruction_k", default=(0, 0)
    )


class B2bHaloSm90(Family[B2bHaloSm90Config]):
    """Serves convolutions whose inner layers have at most 128 channels and no residual."""

    number, name, config = 15, "b2b_halo_sm90", B2bHaloSm90Config
    takes = ("element", "output", "layers")
    problems, kinds = (ConvProblem,), frozenset({"conv", "conv1d", "conv_chain"})
    needs = frozenset({Capability.TMA, Capability.WGMMA})

    def candidates(self, problem: ConvProblem, arch: Arch) -> tuple[B2bHaloSm90Config, ...]:
        """The configurations with the least work for the busiest SM, best first."""
        if not problem.inner or problem.y_nchw or problem.nchw or MEAN in problem.chain:
            return ()
        first = problem.layers[0]
        if not serves(problem.widths, problem.chain) or first.groups != 1:
            return ()
        if not halo.supports(first):
            return ()
        found = dict.fromkeys(_configs(problem, arch))
        ranked = sorted(found, key=lambda config: (cycles(problem, config, arch), config))
        return tuple(ranked[:_KEPT])

    def shared_memory(self, kernel: Compiled) -> int:
        return halo.compiled_bytes(kernel)

    def predicted_us(self, problem: ConvProblem, config: B2bHaloSm90Config, arch: Arch) -> float:
        compute = cycles(problem, config, arch) / arch.clock * US
        return LAUNCH_US + overlapped(compute, memory_us(problem, arch))

    def joins(self, layers: Layers) -> bool:
        return b2b.joins_convs(layers)


def serves(widths: Sequence[int], steps: tuple[str, ...]) -> bool:
    """True if there may be a kernel for layers of these channels."""
    return (
        2 <= len(widths) <= _MOST_LAYERS
        and max(widths[:-1]) <= 2 * halo.CHANNELS
        and widths[-1] <= _MOST_BLOCKS * halo.CHANNELS
        and all(n % DType.F16.alignment == 0 for n in widths)
        and fits_several(steps)
    )


def cycles(problem: ConvProblem, config: B2bHaloSm90Config, arch: Arch) -> float:
    """Cycles of the busiest SM, as in halo.cycles. With PINGPONG, both the products of all tiles
    and the tiles of each warpgroup (products and epilogue) run one after another."""
    positions, groups = config.positions, config.channels // halo.CHANNELS
    blocks = tuple(n // halo.CHANNELS for n in config.layers)
    pairs = sum(before * after for before, after in itertools.pairwise(blocks))
    products = pairs * _BLOCK_STEPS * positions / 2
    first = problem.layers[0]
    tile = halo.geometry(first, *config.image_tile)
    multiplied = halo.main_loop_cycles(first, config, tile) + products + _TURN
    tensors = tensor_operands(problem.chain)
    values = sum(blocks) * _POSITION + blocks[-1] * tensors * _TENSOR_POSITION
    epilogues = (values * positions + sum(blocks) * _EPILOGUE) / groups
    rounds = halo.rounds(first, config, tile, arch)
    if config.schedule is Schedule.COOPERATIVE:
        return halo.START + rounds * (multiplied + epilogues)
    own = -(-rounds // config.consumers)
    return halo.START + max(rounds * multiplied + epilogues, own * (multiplied + epilogues))


def _configs(problem: ConvProblem, arch: Arch) -> Iterator[B2bHaloSm90Config]:
    first, inner = problem.layers[0], max(problem.inner)
    # the fields that the formulas for shared memory read: stages of the first layer, staging of the
    # last
    operands = replace(first, chain=layers(problem.chain)[-1], out=problem.out)
    second, third = (*(_padded(n) for n in problem.widths[1:]), 0)[:2]
    for tile, (schedule, consumers) in itertools.product(halo.tiles(first), _KINDS):
        channels = halo.CHANNELS * (1 if schedule is Schedule.PINGPONG else consumers)
        positions = next(count for count in halo.POSITIONS if count >= tile.positions)
        if not channels - halo.CHANNELS < inner <= channels:
            continue
        if consumers == 3 and positions > _MOST_POSITIONS_OF_THREE:
            continue
        for k_block, resident in itertools.product(halo.k_blocks(first.depth), (True, False)):
            config = B2bHaloSm90Config(
                arch=arch.number,
                channels=channels,
                positions=positions,
                k_block=k_block,
                image_tile=(tile.columns, tile.rows, tile.images),
                schedule=schedule,
                consumers=consumers,
                resident=resident,
                later=(second, third),
            )
            granule = _SWIZZLE_BYTES // halo.pixel_bytes(config, problem.dtype.bytes)
            pixels = -(-tile.stage_pixels // granule) * granule
            yield from halo.with_stages(operands, replace(config, stage_pixels=pixels), arch)


def _padded(channels: int) -> int:
    return -(-channels // halo.CHANNELS) * halo.CHANNELS
