"""Bolt's figure 9: GEMM and convolution with bias and activation fused, against the same without epilogue, in fp16, in one run.

    python -m benchmarks.epilogue                          # all of PROBLEMS and ACTIVATIONS; writes results/epilogue-<gpu>.json
    python -m benchmarks.epilogue --shapes "gemm 1280x3072x768" --append

The paper's baseline is the kernel without epilogue and behind it one kernel for bias and activation. Its first part is our own
kernel, tuned for itself. The second part is what PyTorch's kernel of the activation alone adds behind the library's product or
convolution: it finds its input in the L2 cache as far as that holds it.
"""
from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

from benchmarks import conv, gemm, peers
from benchmarks.common import Row
from benchmarks.racing import Entry, Tuned, against, parser, run, take_turns
from onnxbolt.dtypes import DType
from onnxbolt.kernels.config import GemmProblem
from onnxbolt.plan.cost import floor_us
from onnxbolt.tune.records import Problem
from onnxbolt.tune.sessions import Sample

# the paper's, and others of BERT and ResNet-50
PROBLEMS: tuple[Problem, ...] = (
    GemmProblem(1280, 3072, 768, DType.F16, DType.F16, ()), GemmProblem(1280, 768, 3072, DType.F16, DType.F16, ()),
    conv.same(56, 64, 64, chain=()), conv.same(28, 128, 128, chain=()), conv.same(14, 256, 256, chain=()),
)


def main(arguments: Sequence[str] | None = None) -> int:
    return run("epilogue", entries(), parser(__doc__ or "").parse_args(arguments))


def entries() -> list[Entry]:
    pairs = [(bare, dataclasses.replace(bare, chain=("Bias", step))) for bare in PROBLEMS for step in peers.ACTIVATIONS]
    return [Entry(name(fused), _batch(fused), (fused, bare), partial(_measure, fused, bare)) for bare, fused in pairs]


def name(problem: Problem) -> str:
    """'gemm 1280x3072x768 Bias+Relu'."""
    return f"gemm {gemm.name(problem)}" if isinstance(problem, GemmProblem) else f"conv {conv.name(problem)}"


def _batch(problem: Problem) -> int:
    return 1 if isinstance(problem, GemmProblem) else problem.n


def _measure(fused: Problem, bare: Problem, tuned: Tuned) -> Row:
    kernels = {"fused": tuned.kernel(fused), "bare": tuned.kernel(bare)}
    product = next(iter(peers.bare(bare).values())) if peers.pytorch() else None
    theirs = {}
    if product:
        theirs = {"product": product.measure(), "both": product.then(lambda _, y: peers.activation(fused.chain[-1], y)).measure()}
    samples = take_turns({**{kind: kernel.measure for kind, kernel in kernels.items()}, **theirs})
    mine, alone = samples["fused"], samples["bare"]
    values = {**tuned.notes(fused), "bare_us": round(alone.median, 3), "fused_over_bare": round(mine.median / alone.median, 4),
              "bare_config": kernels["bare"].facts["config"], "activation": fused.chain[-1]}
    fields: dict[str, Any] = {"ours_us": round(mine.median, 3), "spread": round(mine.spread, 4)}
    if theirs:
        added = _added_us(samples)
        values |= {"elementwise_us": round(added, 3)}
        fields = against(mine, alone.median + added) | {"peer": f"our kernel without epilogue, and {peers.library('PyTorch')}'s activation"}
    floor = round(floor_us(fused, tuned.arch), 3)
    return Row(name(fused), _batch(fused), "fp16", floor_us=floor, values=values, **fields, **kernels["fused"].facts)


def _added_us(samples: dict[str, Sample]) -> float:
    """What the elementwise kernel adds behind a product."""
    return max(samples["both"].median - samples["product"].median, 0.0)


if __name__ == "__main__":
    sys.exit(main())
