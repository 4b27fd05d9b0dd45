"""Bolt's figure 9: GEMM and convolution with bias and activation fused, against the same without
epilogue, in fp16, in one run.

    # all of PROBLEMS and ACTIVATIONS; writes results/epilogue-<gpu>.json
    python -m benchmarks.epilogue
    python -m benchmarks.epilogue --shapes "gemm 1280x3072x768" --append

The peer is the library's product or convolution and behind it PyTorch's kernel of the activation,
measured together; the bias is left out on its side. The paper's baseline is its own kernel without
epilogue and behind it one kernel for bias and activation: `values.apart_us` estimates that, as our
kernel without epilogue, tuned for itself, and what PyTorch's kernel adds behind the library's.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

from benchmarks import conv, gemm, peers
from benchmarks.common import Row
from benchmarks.racing import Entry, Tuned, against, parser, run, serial, serial_of, take_turns
from onnxbolt.dtypes import DType
from onnxbolt.plan.cost import floor_us
from onnxbolt.problems import GemmProblem

# the paper's, and others of BERT and ResNet-50
PROBLEMS: tuple[peers.LibraryProblem, ...] = (
    GemmProblem(1280, 3072, 768, DType.F16, DType.F16, ()),
    GemmProblem(1280, 768, 3072, DType.F16, DType.F16, ()),
    conv.same(56, 64, 64, chain=()),
    conv.same(28, 128, 128, chain=()),
    conv.same(14, 256, 256, chain=()),
)


def main(arguments: Sequence[str] | None = None) -> int:
    return run("epilogue", entries(), parser(__doc__ or "").parse_args(arguments))


def entries() -> list[Entry]:
    pairs = [
        (bare, dataclasses.replace(bare, chain=("Bias", step)))
        for bare in PROBLEMS
        for step in peers.ACTIVATIONS
    ]
    return [
        Entry(name(fused), _batch(fused), (fused, bare), partial(_measure, fused, bare))
        for bare, fused in pairs
    ]


def name(problem: peers.LibraryProblem) -> str:
    """'gemm 1280x3072x768 Bias+Relu'."""
    return (
        f"gemm {gemm.name(problem)}"
        if isinstance(problem, GemmProblem)
        else f"conv {conv.name(problem)}"
    )


def _batch(problem: peers.LibraryProblem) -> int:
    return 1 if isinstance(problem, GemmProblem) else problem.n


def _measure(fused: peers.LibraryProblem, bare: peers.LibraryProblem, tuned: Tuned) -> Row:
    kernels = {"fused": tuned.kernel(fused), "bare": tuned.kernel(bare)}
    forms = peers.bare(bare) if peers.pytorch() else {}
    theirs = {}
    if forms:
        product = peers.quickest(forms)
        theirs = {
            "product": product.measure(),
            "both": product.then(lambda _, y: peers.activation(fused.chain[-1], y)).measure(),
        }
    ours = {kind: kernel.measure for kind, kernel in kernels.items()} | serial_of(
        {"serial": kernels["fused"]}
    )
    samples = take_turns({**ours, **theirs})
    mine, alone = samples["fused"], samples["bare"]
    values = {
        **tuned.notes(fused),
        "bare_us": round(alone.median, 3),
        "fused_over_bare": round(mine.median / alone.median, 4),
        "bare_config": kernels["bare"].facts["config"],
        "activation": fused.chain[-1],
    }
    fields: dict[str, Any] = {"ours_us": round(mine.median, 3), "spread": round(mine.spread, 4)}
    if theirs:
        apart = alone.median + max(samples["both"].median - samples["product"].median, 0.0)
        values |= {"apart_us": round(apart, 3), "apart_ratio": round(apart / mine.median, 3)}
        library = "cuBLAS" if isinstance(bare, GemmProblem) else "cuDNN"
        fields = against(mine, samples["both"].median) | {
            "peer": f"{peers.library(library, forms)}, bare, and PyTorch's activation"
        }
    values |= serial(samples.get("serial"), fields.get("peer_us"))
    floor = round(floor_us(fused, tuned.arch), 3)
    return Row(
        name(fused),
        _batch(fused),
        "fp16",
        floor_us=floor,
        values=values,
        **fields,
        **kernels["fused"].facts,
    )


if __name__ == "__main__":
    sys.exit(main())
