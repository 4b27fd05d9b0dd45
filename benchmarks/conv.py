"""Tuned convolutions with fused epilogues against cuDNN's bare convolution, batch 32, fp16, in one
run.

    # ResNet-50's and OTHERS; writes results/conv-<gpu>.json
    python -m benchmarks.conv
    python -m benchmarks.conv --shapes "3x3,64->256" --budget 4m --append

ResNet-50's are those of its fused nodes; its 3x3 ones are Bolt's figure 8b. Both sides are timed as
in benchmarks/gemm.py, cuDNN through PyTorch in channels_last, its algorithm searched for. To its
time of a convolution with a residual are added the residual's bytes at the bandwidth of a copy.
`values.occurrences` says how often ResNet-50 has a convolution.
"""

from __future__ import annotations

import dataclasses
import sys
from collections import Counter
from collections.abc import Sequence
from functools import partial

from benchmarks.common import Row
from benchmarks.racing import Entry, Tuned, parser, run, versus_bare
from models import build
from onnxbolt import precision
from onnxbolt.canonicalize import canonicalize
from onnxbolt.dtypes import DType
from onnxbolt.graph.importer import import_model
from onnxbolt.graph.shapes import infer
from onnxbolt.match.matcher import match
from onnxbolt.match.partition import partition
from onnxbolt.plan.choose import plan
from onnxbolt.problems import ConvProblem

BATCH = 32
_RELU = ("Bias", "Relu")


def same(
    size: int, c: int, k: int, r: int = 3, stride: int = 1, chain: tuple[str, ...] = _RELU
) -> ConvProblem:
    """A convolution of a square image, padded so that stride 1 keeps its size."""
    extent, pad = (size - 1) // stride + 1, r // 2
    return ConvProblem(
        BATCH,
        size,
        size,
        c,
        k,
        r,
        r,
        extent,
        extent,
        (pad, pad, pad, pad),
        (stride, stride),
        (1, 1),
        1,
        DType.F16,
        DType.F16,
        chain,
    )


# convolutions of ResNet-50 without the residual, of RepVGG and of VGG-16
OTHERS = (
    same(56, 64, 256, 1),
    same(14, 256, 1024, 1),
    same(112, 48, 48, stride=2),
    same(56, 48, 48),
    same(14, 192, 192),
    same(224, 64, 64),
    same(112, 128, 128),
    same(56, 256, 256),
    same(28, 512, 512),
)


def main(arguments: Sequence[str] | None = None) -> int:
    return run("conv", entries(), parser(__doc__ or "").parse_args(arguments))


def entries() -> list[Entry]:
    counted = Counter(convolutions("resnet50"))
    return [
        Entry(name(p), BATCH, (p,), partial(_measure, p, counted[p]))
        for p in dict.fromkeys((*counted, *OTHERS))
    ]


def convolutions(model: str) -> list[ConvProblem]:
    """The convolutions of one of models/: the problems of its fused nodes, with repetitions."""
    graph = import_model(build(model, BATCH, "fp16"))
    infer(graph)
    canonicalize(graph)
    precision.convert(graph, "fp16")
    found = plan(graph, partition(match(graph)[0]), [90], "all").workload
    return [problem for problem in found if isinstance(problem, ConvProblem)]


def name(problem: ConvProblem) -> str:
    """'56x56 64->256 1x1 Bias+Add+Relu'; '/2' where the stride is 2."""
    stride = [f"/{problem.strides[0]}"] if problem.strides != (1, 1) else []
    window = f"{problem.r}x{problem.s}"
    return " ".join(
        [
            f"{problem.h}x{problem.w}",
            f"{problem.c}->{problem.k}",
            window,
            *stride,
            "+".join(problem.chain),
        ]
    ).strip()


def _measure(problem: ConvProblem, occurrences: int, tuned: Tuned) -> Row:
    row = versus_bare(name(problem), problem.n, problem, "cuDNN", tuned)
    window = {"window": [problem.r, problem.s], "stride": list(problem.strides)}
    return dataclasses.replace(row, values={**row.values, **window, "occurrences": occurrences})


if __name__ == "__main__":
    sys.exit(main())
