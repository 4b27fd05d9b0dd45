"""Predicted microseconds of a convolution and 1x1 convolutions behind it in one kernel: the first one's formulas, with the output of
the last one and the products between.
"""
from __future__ import annotations

import itertools

from onnxbolt.archs import Arch
from onnxbolt.kernels import conv_chain
from onnxbolt.kernels.config import ConvProblem, KernelConfig
from onnxbolt.plan import first


def compute_us(problem: ConvProblem, config: KernelConfig, arch: Arch) -> float:
    """The most loaded SM's time, device memory aside, set-up included."""
    widths = conv_chain.columns(config)
    passing = sum(n * k for k, n in itertools.pairwise(widths)) * problem.dtype.bytes  # the other weights, for each 64 rows
    return first.PROLOGUE_US + first.compute_us(problem, config, arch, widths[-1], passing)
