"""Tuned GEMMs, bare, with bias, and with bias and GELU fused, against cuBLAS's bare product, in
fp16, in one run.

    # all of SHAPES and CHAINS; writes results/gemm-<gpu>.json
    python -m benchmarks.gemm
    python -m benchmarks.gemm --shapes 1280x3072x768,4096x4096x4096 --append

The first five shapes are those of Bolt's figure 8a: BERT's at batch 32 and 40 tokens, and two
squares. Both sides are timed alike: launches in a CUDA graph of at least 0.2 ms, operands rotated
past the L2 cache, random values of the same distribution. Ours is timed by the tuner's worker
process, cuBLAS here through PyTorch; they take turns, and the one that begins changes. cuBLAS gets
the weight in either layout, and the faster one counts.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial

from benchmarks.racing import Entry, parser, run, versus_bare
from onnxbolt.dtypes import DType
from onnxbolt.problems import GemmProblem

# M, N, K
SHAPES = (
    (1280, 3072, 768),
    (1280, 768, 3072),
    (1280, 768, 768),
    (1024,) * 3,
    (2048,) * 3,
    (4096,) * 3,
)
CHAINS: tuple[tuple[str, ...], ...] = ((), ("Bias",), ("Bias", "GeluErf"))


def main(arguments: Sequence[str] | None = None) -> int:
    return run("gemm", entries(), parser(__doc__ or "").parse_args(arguments))


def entries() -> list[Entry]:
    problems = [
        GemmProblem(*shape, DType.F16, DType.F16, chain) for chain in CHAINS for shape in SHAPES
    ]
    names = {problem: name(problem) for problem in problems}
    return [
        Entry(names[p], 1, (p,), partial(versus_bare, names[p], 1, p, "cuBLAS")) for p in problems
    ]


def name(problem: GemmProblem) -> str:
    """'1280x3072x768 Bias+GeluErf'."""
    return " ".join(
        [
            f"{problem.m}x{problem.n}x{problem.k}",
            *(["+".join(problem.chain)] if problem.chain else []),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
