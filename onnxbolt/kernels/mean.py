"""Convolutions whose result is the mean over each image, [N, 1, 1, K]: the global average pooling
behind them is part of the epilogue.

CONV_SM90 has this form of its epilogue (custom_ops/sm90/mean.h): each image has 64 rows of the
product to itself, so that no sum leaves its warpgroup. What its formulas leave for staging holds
the sums of warps.
"""

from __future__ import annotations

from dataclasses import replace

from onnxbolt.archs import Arch
from onnxbolt.epilogues import EPILOGUES, MEAN
from onnxbolt.kernels import sm90
from onnxbolt.kernels.config import ConvProblem, KernelConfig

MAX_PIXELS = 64  # of an image


def candidates(problem: ConvProblem, arch: Arch) -> tuple[KernelConfig, ...]:
    """The configurations that compute `problem`, whose chain ends with a mean; empty for larger
    images, and for what the GPU tests of these kernels have not met: groups, dilations, a second
    residual."""
    if problem.chain[-1] != MEAN or not 1 <= problem.p * problem.q <= MAX_PIXELS:
        return ()
    if (
        problem.groups > 1
        or problem.dilations != (1, 1)
        or sum(EPILOGUES[step].operand == "tensor" for step in problem.chain) > 1
    ):
        return ()
    products = sm90.candidates(in_whole_blocks(problem), arch)
    # rows of swapped tiles are channels
    return tuple(config for config in products if not config.instruction[0])


def in_whole_blocks(problem: sm90.Problem) -> sm90.Problem:
    """As the product sees it: 64 rows for each image, where its chain ends with a mean."""
    return (
        replace(problem, p=MAX_PIXELS, q=1)
        if isinstance(problem, ConvProblem) and MEAN in problem.chain
        else problem
    )
