"""A convolution from tiles with their border and 1x1 convolutions behind it in one kernel on sm_90a (Bolt, section 3.1.1;
custom_ops/halo/chain.h).

Threadblock residence here: a warpgroup has all channels of its positions, at most 64 (PINGPONG), or two warpgroups have 64 each
(COOPERATIVE); the last layer's go through in blocks of 64, as many as its weights leave room for. What lies between two layers passes
through shared memory, where the weights of all layers behind the first stay.

Columns of a configuration: as halo.py, and `instruction` = (pixels that an input stage holds, channels of the second layer, and of the
third one, zeros included).
"""
from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

from onnxbolt.archs import Arch
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import EPILOGUES, MAX_PARAMS, layers
from onnxbolt.kernels import halo
from onnxbolt.kernels.config import UNBOUNDED, ConvProblem, Family, KernelConfig, Schedule

_MOST_LAYERS = 3  # that a configuration has room for
_MOST_BLOCKS = 8  # of 64 channels of the last layer
_SWIZZLE_BYTES = 1024  # what weights and tiles begin at a multiple of
_KEPT = 10


def serves(widths: Sequence[int], chain: tuple[str, ...]) -> bool:
    """Whether there may be a kernel for layers of these channels: inner ones of at most 128 and without residual."""
    *inner, last = layers(chain)
    return (
        2 <= len(widths) <= _MOST_LAYERS
        and max(widths[:-1]) <= 2 * halo.CHANNELS
        and widths[-1] <= _MOST_BLOCKS * halo.CHANNELS
        and all(n % DType.F16.alignment == 0 for n in widths)
        and not any(EPILOGUES[step].operand == "tensor" for layer in inner for step in layer)
        and sum(len(EPILOGUES[step].params) for layer in (*inner, last) for step in layer) <= MAX_PARAMS
    )


def candidates(problem: ConvProblem, arch: Arch) -> tuple[KernelConfig, ...]:
    """The configurations that load an SM least, the best first; empty where the family cannot run `problem`."""
    widths, first = (*problem.inner, problem.k), problem.layers[0]
    if not serves(widths, problem.chain) or not halo.supports(first, arch) or first.groups != 1:
        return ()
    ranked = sorted((cycles(problem, config, arch), config) for config in dict.fromkeys(_configs(problem, arch)))
    return tuple(config for _, config in ranked[:_KEPT])


def cycles(problem: ConvProblem, config: KernelConfig, arch: Arch) -> float:
    """Of the most loaded SM, as halo.cycles."""
    return halo.cycles(problem.layers[0], config, arch)


def _configs(problem: ConvProblem, arch: Arch) -> Iterator[KernelConfig]:
    first = problem.layers[0]
    # what the formulas of shared memory read: the first layer's stages, the last layer's staging
    operands = replace(first, chain=layers(problem.chain)[-1], out=problem.out)
    inner = max(problem.inner)
    for tile, (schedule, consumers) in itertools.product(halo.tiles(first), halo.KINDS):
        channels = halo.CHANNELS * (1 if schedule is Schedule.PINGPONG else consumers)
        if not halo.CHANNELS * (channels // halo.CHANNELS - 1) < inner <= channels:
            continue
        others = [-(-n // halo.CHANNELS) * halo.CHANNELS for n in (*problem.inner[1:], problem.k)]
        positions = next(count for count in halo.POSITIONS if count >= tile.positions)
        for k_block, resident in itertools.product(halo.k_blocks(first.c), (1, 0)):
            config = KernelConfig(
                arch.number, 0, UNBOUNDED, Family.CHAIN_HALO_SM90, (channels, positions, k_block), (tile.columns, tile.rows, tile.images),
                schedule=schedule, consumers=consumers, resident=resident,
            )
            granule = _SWIZZLE_BYTES // halo.pixel_bytes(config, problem.dtype.bytes)
            pixels = -(-tile.stage_pixels // granule) * granule
            config = replace(config, instruction=(pixels, others[0], others[1] if len(others) > 1 else 0))
            yield from halo.with_stages(operands, config, arch)
