"""A 3x3 convolution and the 1x1 convolution behind it in one kernel against our own kernels for
each, and cuDNN's, batch 32, fp16.

    # Bolt's table 2; writes results/b2b_conv-<gpu>.json
    python -m benchmarks.b2b_conv
    python -m benchmarks.b2b_conv --shapes 56x56 --append

The first layers of RepVGG models, with a 1x1 convolution of as many channels behind each, bias and
ReLU behind both. The ones with three channels read x as ONNX has it, [N, C, H, W].
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from functools import partial

from benchmarks.b2b import chain_of, versus_apart
from benchmarks.conv import BATCH, same
from benchmarks.racing import Entry, parser, run
from onnxbolt.problems import ConvProblem

# image size, input channels, channels of both layers, stride of the first
PAIRS = (
    (224, 3, 48, 2),
    (112, 48, 48, 2),
    (56, 48, 48, 1),
    (224, 3, 64, 2),
    (112, 64, 64, 2),
    (56, 64, 64, 1),
)
_TARGET = 1.15


def main(arguments: Sequence[str] | None = None) -> int:
    return run("b2b_conv", entries(), parser(__doc__ or "").parse_args(arguments))


def entries() -> list[Entry]:
    found = []
    for pair in PAIRS:
        problem = problem_of(*pair)
        measure = partial(versus_apart, name(problem), BATCH, problem, "cuDNN", _TARGET)
        found.append(Entry(name(problem), BATCH, (problem, *problem.layers), measure))
    return found


def problem_of(size: int, channels: int, k: int, stride: int) -> ConvProblem:
    first = same(size, channels, k, stride=stride, chain=chain_of(2))
    return dataclasses.replace(first, inner=(k,), nchw=channels == 3)


def name(problem: ConvProblem) -> str:
    """'112x112 48->48 3x3 /2, 48 1x1'."""
    stride = f" /{problem.strides[0]}" if problem.strides != (1, 1) else ""
    return (
        f"{problem.h}x{problem.w} {problem.c}->{problem.inner[0]} {problem.r}x{problem.s}{stride},"
        f" {problem.k} 1x1"
    )


if __name__ == "__main__":
    sys.exit(main())
