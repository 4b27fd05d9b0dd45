"""A convolution from tiles with their border and 1x1 convolutions behind it in one kernel on sm_90a
(Bolt, section 3.1.1; custom_ops/halo/chain.h).

Threadblock residence here: a warpgroup has all channels of its positions, at most 64 (PINGPONG), or
two warpgroups have 64 each (COOPERATIVE); the last layer's go through in blocks of 64. What lies
between two layers passes through shared memory, where the weights of all layers behind the first
stay.

Columns of a configuration: as halo.py, and `instruction` = (pixels that an input stage holds,
channels of the second layer, and of the third one, zeros included).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

from onnxbolt.archs import Arch
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import EPILOGUES, fits_several, layers
from onnxbolt.kernels import halo
from onnxbolt.kernels.config import UNBOUNDED, ConvProblem, Family, KernelConfig, Schedule

_MOST_LAYERS = 3  # that a configuration has room for
_MOST_BLOCKS = 8  # of 64 channels of the last layer
_SWIZZLE_BYTES = 1024  # what weights and tiles begin at a multiple of
_KEPT = 10
_KINDS = (
    (Schedule.PINGPONG, 2),
    (Schedule.PINGPONG, 3),
    (Schedule.COOPERATIVE, 2),
    (Schedule.COOPERATIVE, 1),
)
_MOST_POSITIONS_OF_THREE = 128  # warpgroups, with the registers that each has
# Cycles of an SM, fitted to 44 measurements on one H200 (root mean square of the relative error
# 10%, 6% without k-blocks of 32): what a tile adds to its main loop; an epilogue of 64 channels,
# each of its positions, and each of its tensors' positions.
_TURN, _EPILOGUE, _POSITION, _TENSOR_POSITION = 250.0, 300.0, 8.0, 16.0
_BLOCK_STEPS = 4  # wgmma instructions along 64 channels


def serves(widths: Sequence[int], chain: tuple[str, ...]) -> bool:
    """Whether there may be a kernel for layers of these channels: inner ones of at most 128 and
    without residual."""
    return (
        2 <= len(widths) <= _MOST_LAYERS
        and max(widths[:-1]) <= 2 * halo.CHANNELS
        and widths[-1] <= _MOST_BLOCKS * halo.CHANNELS
        and all(n % DType.F16.alignment == 0 for n in widths)
        and fits_several(chain)
    )


def candidates(problem: ConvProblem, arch: Arch) -> tuple[KernelConfig, ...]:
    """The configurations that load an SM least, the best first; empty where the family cannot
    run `problem`."""
    widths, first = (*problem.inner, problem.k), problem.layers[0]
    if not serves(widths, problem.chain) or not halo.supports(first, arch) or first.groups != 1:
        return ()
    ranked = sorted(
        dict.fromkeys(_configs(problem, arch)),
        key=lambda config: (cycles(problem, config, arch), config),
    )
    return tuple(ranked[:_KEPT])


def cycles(problem: ConvProblem, config: KernelConfig, arch: Arch) -> float:
    """Of the most loaded SM, as halo.cycles. In turns, all tiles' products follow one another,
    as do each warpgroup's tiles, products and epilogues."""
    positions, groups = config.threadblock[1], config.threadblock[0] // halo.CHANNELS
    blocks = _blocks(config)
    products = (
        sum(before * after for before, after in itertools.pairwise(blocks))
        * _BLOCK_STEPS
        * positions
        / 2
    )
    multiplied = halo.main_loop_cycles(problem.layers[0], config) + products + _TURN
    tensors = sum(EPILOGUES[step].operand == "tensor" for step in problem.chain)
    values = sum(blocks) * _POSITION + blocks[-1] * tensors * _TENSOR_POSITION
    epilogues = (values * positions + sum(blocks) * _EPILOGUE) / groups
    rounds = halo.rounds(problem.layers[0], config, arch)
    if config.schedule is Schedule.COOPERATIVE:
        return halo.START + rounds * (multiplied + epilogues)
    own = -(-rounds // config.consumers)
    return halo.START + max(rounds * multiplied + epilogues, own * (multiplied + epilogues))


def columns(config: KernelConfig) -> tuple[int, ...]:
    """Channels of each layer, zeros included."""
    return (config.threadblock[0], *(n for n in config.instruction[1:] if n))


def _blocks(config: KernelConfig) -> tuple[int, ...]:
    """Of 64 channels."""
    return tuple(n // halo.CHANNELS for n in columns(config))


def _configs(problem: ConvProblem, arch: Arch) -> Iterator[KernelConfig]:
    first, inner = problem.layers[0], max(problem.inner)
    # what the formulas of shared memory read: the first layer's stages, the last layer's staging
    operands = replace(first, chain=layers(problem.chain)[-1], out=problem.out)
    second, third = (*(_padded(n) for n in (*problem.inner[1:], problem.k)), 0)[:2]
    for tile, (schedule, consumers) in itertools.product(halo.tiles(first), _KINDS):
        channels = halo.CHANNELS * (1 if schedule is Schedule.PINGPONG else consumers)
        positions = next(count for count in halo.POSITIONS if count >= tile.positions)
        if not channels - halo.CHANNELS < inner <= channels or (
            consumers == 3 and positions > _MOST_POSITIONS_OF_THREE
        ):
            continue
        for k_block, resident in itertools.product(halo.k_blocks(first.depth), (1, 0)):
            config = KernelConfig(
                arch.number,
                0,
                UNBOUNDED,
                Family.B2B_HALO_SM90,
                (channels, positions, k_block),
                (tile.columns, tile.rows, tile.images),
                schedule=schedule,
                consumers=consumers,
                resident=resident,
            )
            granule = _SWIZZLE_BYTES // halo.pixel_bytes(config, problem.dtype.bytes)
            pixels = -(-tile.stage_pixels // granule) * granule
            yield from halo.with_stages(
                operands, replace(config, instruction=(pixels, second, third)), arch
            )


def _padded(channels: int) -> int:
    return -(-channels // halo.CHANNELS) * halo.CHANNELS
