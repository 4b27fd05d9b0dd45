"""Instances of kernels for a convolution and 1x1 convolutions behind it: every activation, each
kind of kernel in turn."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from onnxbolt.archs import get
from onnxbolt.codegen.render import Instance
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import PRODUCT
from onnxbolt.families import Family, named
from onnxbolt.problems import ConvProblem

# stem convolutions with the 1x1 behind them: both layers' channels, filter rows, columns and
# channels, strides
_FIRST = (
    ((48, 48), (3, 3, 3), (2, 2)),
    ((64, 64), (3, 3, 3), (2, 2)),
    ((16, 96), (3, 3, 3), (2, 2)),
    ((64, 16), (7, 7, 3), (2, 2)),
    ((128, 128), (3, 3, 1), (1, 1)),
    ((32, 80), (4, 4, 4), (4, 4)),
    ((96, 64), (3, 3, 3), (1, 1)),
)


# other convolutions: all layers' channels, and input channels, which decide the k-block
_CONV = (
    ((64, 64), 64),
    ((48, 48), 48),
    ((64, 256), 64),
    ((16, 16, 16, 16), 16),
    ((256, 64), 96),
    ((128, 128), 128),
    ((96, 192, 32), 32),
    ((32, 48), 64),
    ((192, 192), 64),
    ((64, 32, 256), 72),
)
_HALO = (
    ((64, 64), 64),
    ((48, 48), 48),
    ((64, 256), 64),
    ((96, 96), 96),
    ((16, 16), 16),
    ((64, 32, 72), 64),
    ((128, 256), 32),
    ((24, 40), 24),
    ((64, 320), 128),
    ((64, 64, 256), 64),
)
_TYPES = ((DType.F16, DType.F16), (DType.BF16, DType.BF16), (DType.F16, DType.F32))


def instances(arch: int, activations: tuple[str, ...]) -> Iterator[Instance]:
    """Instances of all three families."""
    turns = itertools.count()
    for activation, (both, window, strides) in zip(
        activations, itertools.cycle(_FIRST), strict=False
    ):
        problem = replace(_problem(2, 32, both, window), strides=strides, nchw=True)
        yield from _instance(named("b2b_stem_sm90"), arch, next(turns), activation, problem)
    kinds: tuple[tuple[Family[Any], tuple[tuple[tuple[int, ...], int], ...], int, int], ...] = (
        (named("b2b_conv_sm90"), _CONV, 2, 32),
        (named("b2b_halo_sm90"), _HALO, 32, 56),
    )
    for family, shapes, batch, size in kinds:
        for turn, activation in enumerate(activations):
            widths, c = shapes[turn % len(shapes)]
            problem = replace(
                _problem(batch, size, widths, (3, 3, c)),
                chain=((), ("Add", "Relu"), ("Mul",))[turn % 3],
            )
            yield from _instance(family, arch, next(turns), activation, problem)


def _problem(
    batch: int, size: int, widths: tuple[int, ...], window: tuple[int, int, int]
) -> ConvProblem:
    r, s, c = window
    return ConvProblem(
        batch,
        size,
        size,
        c,
        widths[-1],
        r,
        s,
        size,
        size,
        (0, 0, 0, 0),
        (1, 1),
        (1, 1),
        1,
        DType.F16,
        DType.F16,
        (),
        inner=widths[:-1],
    )


def _instance(
    family: Family[Any], arch: int, turn: int, activation: str, problem: ConvProblem
) -> Iterator[Instance]:
    """The candidates in turn; an activation with parameters but once, since a kernel has few.
    `problem.chain`: the residual's steps."""
    again = "Relu" if activation in ("Clip", "HardSigmoid") else activation
    between = [step for _ in problem.inner[1:] for step in (PRODUCT, "Bias", "Relu")]
    chain = ("Bias", activation, *between, PRODUCT, "Scale", "Bias", again, *problem.chain)
    dtype, out = _TYPES[turn % len(_TYPES)]
    configs = family.candidates(replace(problem, dtype=dtype, out=out, chain=chain), get(arch))
    if configs:
        yield Instance(configs[turn % len(configs)].instance(), dtype, out, chain)
