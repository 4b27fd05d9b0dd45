"""The planner's cuts of random chains of GEMMs against every possible cut, measured, in fp16.

    # CHAINS of 2 to 5 layers; writes results/chains-<gpu>.json
    python -m benchmarks.chains

Each layer has bias and ReLU. Every kernel that may be part of a cover is tuned by itself, as --tune
does it; then every cover of a chain is timed as it would run, its kernels one after the other in a
CUDA graph, operands rotated past the L2 cache, covers taking turns. The planner's covers are those
of the measured times of single kernels, and of predictions alone. The last row is the sum.
"""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Iterator, Sequence
from functools import partial

import onnx_graphsurgeon as gs

from benchmarks.b2b import Apart
from benchmarks.b2b_gemm import problem_of
from benchmarks.common import Row
from benchmarks.racing import Entry, Tuned, fastest, parser, run, take_turns
from models.builder import OPSETS, Builder
from models.recommender import mlp
from onnxbolt.canonicalize import canonicalize
from onnxbolt.epilogues import MAX_LAYERS
from onnxbolt.graph.importer import import_model
from onnxbolt.graph.shapes import infer
from onnxbolt.measurements.timings import NOTHING, Timings
from onnxbolt.plan.cost import supports
from onnxbolt.plan.cuts import cover
from onnxbolt.problems import GemmProblem

CHAINS, SEED = 30, 1
ROWS, WIDTHS = (1024, 8192, 65536), (64, 256)  # few, so that chains share kernels
_ROUNDS, _SAMPLES = 2, 5
_ARCH = 90
Cut = tuple[int, ...]  # layers of each kernel


def main(arguments: Sequence[str] | None = None) -> int:
    return run("chains", entries(), parser(__doc__ or "").parse_args(arguments))


def entries() -> list[Entry]:
    """A row for each chain, and one for all."""
    rows: list[Row] = []
    found = []
    for number, (m, widths) in enumerate(chains(), 1):
        name = f"{number}: {'-'.join(map(str, widths))}"
        problems = dict.fromkeys(
            problem for cut in cuts(m, widths) for problem, _ in segments(m, widths, cut)
        )
        found.append(Entry(name, m, tuple(problems), partial(_measure, rows, name, m, widths)))
    return [*found, Entry("all", 0, (), partial(_total, rows))]


def chains() -> list[tuple[int, tuple[int, ...]]]:
    """The rows of each chain, and the columns of its input and of each layer."""
    choose = random.Random(SEED)
    return [
        (choose.choice(ROWS), tuple(choose.choice(WIDTHS) for _ in range(choose.randint(3, 6))))
        for _ in range(CHAINS)
    ]


def cuts(m: int, widths: Sequence[int]) -> Iterator[Cut]:
    """Every way to divide the layers among kernels that exist."""
    count = len(widths) - 1
    for kernels in range(1, count + 1):
        for cut in itertools.product(range(1, MAX_LAYERS + 1), repeat=kernels):
            if sum(cut) == count and all(
                supports(problem, _ARCH) for problem, _ in segments(m, widths, cut)
            ):
                yield cut


def segments(m: int, widths: Sequence[int], cut: Cut) -> list[tuple[GemmProblem, int]]:
    """The problem of each possible kernel, with the number of its layers."""
    ends = list(itertools.accumulate(cut, initial=0))
    return [
        (problem_of(m, widths[start : end + 1]), end - start)
        for start, end in itertools.pairwise(ends)
    ]


def planned(m: int, widths: tuple[int, ...], timings: Timings) -> Cut:
    """The cut that the optimizer chooses for the chain."""
    return tuple(
        len(candidate.widths)
        for candidate in cover(_graph(m, widths), [_ARCH], timings=timings).candidates
    )


def _graph(m: int, widths: tuple[int, ...]) -> gs.Graph:
    builder = Builder(m, "fp16", 0, OPSETS[0], "fp16")
    mlp(builder, widths)
    graph = import_model(builder.model("chain"))
    infer(graph)
    canonicalize(graph)
    return graph


def _measure(rows: list[Row], name: str, m: int, widths: tuple[int, ...], tuned: Tuned) -> Row:
    whole = problem_of(m, widths)
    covers = {
        cut: Apart(
            whole, [(tuned.kernel(problem), layers) for problem, layers in segments(m, widths, cut)]
        )
        for cut in cuts(m, widths)
        if all(tuned.timings.choice(problem, _ARCH) for problem, _ in segments(m, widths, cut))
    }
    samples = take_turns(
        {_text(cut): apart.measure for cut, apart in covers.items()}, _ROUNDS, _SAMPLES
    )
    best, by_measured, by_predicted = (
        fastest(samples),
        planned(m, widths, tuned.timings),
        planned(m, widths, NOTHING),
    )
    ours, predicted = samples[_text(by_measured)], samples[_text(by_predicted)]
    values = {
        "best": best,
        "measured": _text(by_measured),
        "predicted": _text(by_predicted),
        "predicted_us": round(predicted.median, 3),
        "predicted_loss": round(predicted.median / samples[best].median - 1, 4),
        "covers": len(samples),
    }
    row = Row(
        name,
        m,
        "fp16",
        round(ours.median, 3),
        "the best of all covers",
        round(samples[best].median, 3),
        round(samples[best].median / ours.median, 4),
        spread=round(ours.spread, 4),
        values=values,
    )
    rows.append(row)
    return row


def _total(rows: Sequence[Row], _: Tuned) -> Row:
    ours, best, predicted = (
        sum(times)
        for times in zip(
            *((r.ours_us, r.peer_us, r.values["predicted_us"]) for r in rows), strict=True
        )
    )
    values = {
        "predicted_us": round(predicted, 3),
        "predicted_loss": round(predicted / best - 1, 4),
        "covers": sum(row.values["covers"] for row in rows),
    }
    return Row(
        "all",
        0,
        "fp16",
        round(ours, 3),
        "the best of all covers",
        round(best, 3),
        round(best / ours, 4),
        values=values,
    )


def _text(cut: Cut) -> str:
    return "+".join(map(str, cut))


if __name__ == "__main__":
    sys.exit(main())
