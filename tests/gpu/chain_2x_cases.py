"""Instances of kernels for several GEMMs, or a convolution and 1x1 ones, with mma.sync: every
activation, results in registers and in shared memory, each tile as often as others."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Iterator

from onnxbolt.archs import get
from onnxbolt.codegen.render import Instance
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import PRODUCT
from onnxbolt.families import named
from onnxbolt.families.blocks.b2b_mma import B2bMmaConfig
from onnxbolt.problems import ConvProblem, GemmProblem

# k, which decides the alignment, and the columns of each layer
_CHAINS = (
    (256, (64, 16)),
    (64, (128, 256)),
    (96, (32, 96)),
    (256, (256, 64)),
    (432, (256, 64, 16)),
    (16, (16, 16, 16, 16)),
    (128, (128, 128)),
    (429, (256, 64, 16)),
    (13, (64, 16)),
    (100, (8, 8)),
    (20, (32, 16, 8)),
    (576, (128, 64)),
    (30, (48, 20)),
)
# channels of each layer, and input channels
_CONVS = (
    ((64, 64), 64),
    ((48, 48), 48),
    ((64, 256), 64),
    ((16, 16, 16, 16), 16),
    ((256, 64), 96),
    ((128, 128), 128),
    ((32, 48), 20),
    ((24, 40), 24),
)
_RESIDUALS: tuple[tuple[str, ...], ...] = ((), ("Add",), (), ("Mul", "Add"), ())
_VECTORS = (("Scale", "Bias", "PRelu"), (), ("Bias",))  # the vector steps of both layers
_TYPES = (
    (DType.F16, DType.F16),
    (DType.BF16, DType.F32),
    (DType.F16, DType.F32),
    (DType.BF16, DType.BF16),
)


def instances(
    arch: int, activations: tuple[str, ...], with_parameters: frozenset[str]
) -> Iterator[Instance]:
    """On sm_90, where the planner has others, those of sm_80."""
    met: Counter[tuple[object, ...]] = Counter()
    chains = [
        ((*_layers(a, len(widths), a in with_parameters), *residual), k, widths)
        for a, (k, widths), residual in zip(
            activations * 2, itertools.cycle(_CHAINS), itertools.cycle(_RESIDUALS), strict=False
        )
    ]
    chains += [
        ((*vectors, PRODUCT, *vectors), k, widths)
        for vectors, (k, widths) in zip(_VECTORS, _CHAINS[:3], strict=True)
    ]
    for (chain, k, widths), (dtype, out) in zip(chains, itertools.cycle(_TYPES), strict=False):
        problem = GemmProblem(1, widths[-1], k, dtype, out, chain, widths[:-1])
        configs = named("b2b_gemm_2x").candidates(problem, get(80 if arch == 90 else arch))
        if configs:
            config = min(configs, key=lambda config: met[_tile(config)])
            met[_tile(config)] += 1
            yield Instance(dataclasses.replace(config.instance(), arch=arch), dtype, out, chain)


def _tile(config: B2bMmaConfig) -> tuple[object, ...]:
    return config.rows, config.depth, config.warp[0], config.across


def convolutions(
    arch: int, activations: tuple[str, ...], with_parameters: frozenset[str]
) -> Iterator[Instance]:
    """As `instances`, the first layer a convolution."""
    met: Counter[tuple[object, ...]] = Counter()
    for activation, (widths, c), residual, (dtype, out) in zip(
        activations,
        itertools.cycle(_CONVS),
        itertools.cycle(_RESIDUALS),
        itertools.cycle(_TYPES),
        strict=False,
    ):
        chain = (*_layers(activation, len(widths), activation in with_parameters), *residual)
        problem = ConvProblem(
            2,
            30,
            30,
            c,
            widths[-1],
            3,
            3,
            30,
            30,
            (1, 1, 1, 1),
            (1, 1),
            (1, 1),
            1,
            dtype,
            out,
            chain,
            inner=widths[:-1],
        )
        configs = named("b2b_conv_2x").candidates(problem, get(80 if arch == 90 else arch))
        if configs:
            config = min(configs, key=lambda config: met[_tile(config)])
            met[_tile(config)] += 1
            yield Instance(dataclasses.replace(config.instance(), arch=arch), dtype, out, chain)


def _layers(activation: str, count: int, alone: bool) -> tuple[str, ...]:
    """A chain of as many products, an activation's parameters but once, since a kernel has few."""
    steps = ("Bias", activation)
    return (
        *steps,
        *(
            step
            for _ in range(count - 1)
            for step in (PRODUCT, *(("Scale", "Relu") if alone else steps))
        ),
    )
