"""Normalizations of rows against PyTorch's, in fp16, in one run: LayerNorm by itself, with a
residual whose sum is a second output, of tokens with a class token and positions, and of sums of
embeddings.

    # all of SHAPES; writes results/norms-<gpu>.json
    python -m benchmarks.norms
    python -m benchmarks.norms --shapes 6304x768 --append
    # only compiles the kernels, for which no GPU is needed
    python -m benchmarks.norms --build

The peer is the fastest of PyTorch's own kernels and of torch.compile's one kernel in two modes.
Tensors are the same in all launches, so that small ones are in L2, as behind the kernel that wrote
them; `values` has the times with tensors rotated past L2, too. Every configuration of the planner
is timed, and those of VARIANTS besides: the fastest takes turns with the peer. One clock times both
sides (benchmarks/peers.py): CUDA graphs of a millisecond, in which our launches overlap one another
as they do in a model. Answers are compared with float64 first.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks import peers
from benchmarks.common import ClockSampler, Row
from benchmarks.kernels import Kernel, compile_all, kernels, measured_rows, parser
from benchmarks.norm_inputs import inputs_of
from benchmarks.racing import against, say, take_turns
from onnxbolt.archs import Arch, get
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import STORE
from onnxbolt.errors import OnnxboltError
from onnxbolt.families import candidates
from onnxbolt.families.norm import Caching, NormConfig
from onnxbolt.inspection import describe
from onnxbolt.plan.cost import floor_us
from onnxbolt.problems import EmbeddingNormProblem, NormProblem, TokenNormProblem
from onnxbolt.tune.sessions import Measure
from tests.gpu.device import Norm

# rows x columns: ViT-B/16 at batch 32, BERT-base 32x40, ViT-L/16 at batch 8, BERT-large 32x512,
# Swin-T's first and third stage at batch 16
SHAPES = ((6304, 768), (1280, 768), (1576, 1024), (16384, 1024), (50176, 96), (3136, 384))
CHAINS: tuple[tuple[str, ...], ...] = (("Scale", "Bias"), ("Add", STORE, "Scale", "Bias"))
_F16, _RESULT = DType.F16, ("Scale", "Bias")
# ViT-B/16 at batch 32, BERT-base 32x40, GPT-2 4x1024, RoBERTa-large 32x512
SEQUENCES: tuple[NormProblem, ...] = (
    TokenNormProblem(6304, 768, True, _F16, _F16, ("Add", STORE, *_RESULT), tokens=197, prefix=1),
    EmbeddingNormProblem(1280, 768, True, _F16, _F16, ("Add", *_RESULT), tokens=40, tables=1),
    EmbeddingNormProblem(
        4096, 768, True, _F16, _F16, ("Add", STORE, *_RESULT), tokens=1024, tables=1
    ),
    EmbeddingNormProblem(16384, 1024, True, _F16, _F16, _RESULT, tokens=512, tables=3),
)
VARIANTS: tuple[dict[str, Any], ...] = (
    {"caching": Caching.PAST_L1},
    {"caching": Caching.EVICTED_FIRST},
    {"caching": Caching.EVICTED_FIRST, "resident": True},
)
_EPSILON, _LIMIT = 1e-5, 2e-3
_FEW = 5  # samples of each configuration
_FASTEST_SHOWN = 5
# modes of torch.compile without CUDA graphs, since all launches are in one of ours
_COMPILED = {
    "torch.compile": "default",
    "torch.compile, max-autotune": "max-autotune-no-cudagraphs",
}
_COLD = ", cold"  # behind the names of sides whose tensors are rotated past L2
_BUILT_FOR = 90  # architecture of --build


@dataclass(frozen=True)
class Tensors:
    """The tensors of a problem on the device: several sets of inputs, of y and of sums."""

    problem: NormProblem
    inputs: Sequence[tuple[Any, ...]]
    y: Any
    total: Any
    gamma: Any
    beta: Any

    @classmethod
    def of(cls, problem: NormProblem, sets: int) -> Tensors:
        """Random ones."""
        gamma, beta = (peers.normal((problem.c,), DType.F32) for _ in range(2))
        shape = (sets, problem.m, problem.c)
        y, total = (peers.normal(shape, problem.dtype) for _ in range(2))
        return cls(problem, inputs_of(problem).draw(sets), y, total, gamma + 1, beta)

    @functools.cached_property
    def arguments(self) -> list[Norm]:
        """A kernel's arguments for each set."""
        return [self._arguments(i) for i in range(len(self.inputs))]

    def _arguments(self, i: int) -> Norm:
        problem = self.problem
        found = Norm(rows=problem.m, columns=problem.c, y_pitch=problem.c, epsilon=_EPSILON)
        found.centered, found.y = problem.centered, self.y[i].data_ptr()
        if STORE in problem.chain:
            found.sum = self.total[i].data_ptr()
        found.epilogue.vectors[:2] = [self.gamma.data_ptr(), self.beta.data_ptr()]
        inputs_of(problem).point(found, self.inputs[i])
        return found

    def error(self) -> float:
        """The relative error of what the first set's y and sum hold now."""
        torch, columns = peers.pytorch(), self.problem.c
        exact = (t.double() if t.is_floating_point() else t for t in self.inputs[0])
        total = inputs_of(self.problem).total()(*exact).reshape(-1, columns)
        if STORE in self.problem.chain:
            wrong = (self.total[0].double() - total).norm() / total.norm()
            if not wrong <= _LIMIT:
                return float(wrong)
            total = self.total[0].double()
        expected = torch.nn.functional.layer_norm(
            total, (columns,), self.gamma.double(), self.beta.double(), _EPSILON
        )
        return float((self.y[0].double() - expected).norm() / expected.norm())

    def peers(self) -> dict[str, peers.Operation]:
        """PyTorch's own kernels, and torch.compile's."""
        gamma, beta = self.gamma.to(self.y.dtype), self.beta.to(self.y.dtype)

        def run(way: Way, i: int) -> Any:
            return way(gamma, beta, *self.inputs[i])

        return {
            name: peers.Operation(functools.partial(run, way), len(self.inputs))
            for name, way in _ways(self.problem).items()
        }


Way = Callable[..., Any]  # y, or the sum and y, of gamma, beta and the inputs


@functools.lru_cache(maxsize=1)
def _ways(problem: NormProblem) -> dict[str, Way]:
    """PyTorch's functions for the problem; tensors of all sets share what is compiled."""
    torch, added_up = peers.pytorch(), inputs_of(problem).total()
    columns, stores = problem.c, STORE in problem.chain

    def norm(gamma: Any, beta: Any, *tensors: Any) -> Any:
        total = added_up(*tensors)
        y = torch.nn.functional.layer_norm(total, (columns,), gamma, beta, _EPSILON)
        return (total, y) if stores else y

    torch._dynamo.reset()
    # fullgraph: an error, where it would silently run PyTorch's own kernels
    ways = {
        name: torch.compile(norm, mode=mode, fullgraph=True, dynamic=False)
        for name, mode in _COMPILED.items()
    }
    return {"PyTorch": norm, **ways}


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = _parser().parse_args(arguments)
    found = [p for p in problems() if not chosen.shapes or name(p).split()[0] in chosen.shapes]
    if chosen.build:
        arch = get(_BUILT_FOR)
        return compile_all((p, config) for p in found for config in configurations(p, arch))
    rows = measured_rows(
        "norms",
        (functools.partial(_measured, problem, verbose=chosen.verbose) for problem in found),
        chosen,
        [(name(problem), 1) for problem in problems()],
        lambda row: (
            f"{row.name}: {row.ours_us} us, {row.peer} {row.peer_us}, {row.ratio}; {row.config}"
        ),
    )
    return int(rows is None)


def problems() -> list[NormProblem]:
    """Those of all rows."""
    rows = [
        NormProblem(*shape, True, DType.F16, DType.F16, chain)
        for shape in SHAPES
        for chain in CHAINS
    ]
    return [*rows, *SEQUENCES]


def name(problem: NormProblem) -> str:
    """'6304x768 Add+Store+Scale+Bias'; of sequences with the kind of norm."""
    words = f"{problem.m}x{problem.c} {'+'.join(problem.chain)}"
    return f"{words}, {problem.operation}" if problem.of_tokens else words


def configurations(problem: NormProblem, arch: Arch) -> list[NormConfig]:
    """The planner's, and VARIANTS of those that differ in nothing else."""
    planned = [c for c in candidates(problem, arch) if isinstance(c, NormConfig)]
    varied = [dataclasses.replace(c, **variant) for c in planned for variant in VARIANTS]
    return list(dict.fromkeys((*planned, *(c for c in varied if not c.mismatched()))))


def _measured(problem: NormProblem, arch: Arch, verbose: bool) -> Row:
    warm = Tensors.of(problem, 1)
    times: dict[Kernel, float] = {}
    for kernel in kernels(problem, configurations(problem, arch)):
        measure = kernel.operation(warm.arguments).measure()
        times[kernel] = statistics.median(measure(_FEW))
        if not (error := warm.error()) <= _LIMIT:
            raise OnnxboltError(f"{name(problem)}, {describe(kernel.config)}: error {error:.1e}")
    order = sorted(times, key=lambda kernel: times[kernel])
    for kernel in order if verbose else order[:_FASTEST_SHOWN]:
        say(f"  {times[kernel]:7.3f} us  {describe(kernel.config)}")
    best = order[0]
    cold = Tensors.of(problem, peers.operand_sets(problem.bytes_moved))
    with ClockSampler() as clock:
        samples = take_turns({**_sides(best, warm, ""), **_sides(best, cold, _COLD)})
    best.operation(warm.arguments).run(0)
    theirs = min(_ways(problem), key=_median(samples))
    cold_us = {w.removesuffix(_COLD): samples[w].median for w in samples if w.endswith(_COLD)}
    if verbose:
        say("  " + ", ".join(f"{w} {s.median:.3f}" for w, s in samples.items()))
    return Row(
        name(problem),
        1,
        "fp16",
        **against(samples["ours"], samples[theirs].median),
        peer=theirs,
        floor_us=round(floor_us(problem, arch), 3),
        error=float(f"{warm.error():.3e}"),
        clock_mhz=clock.mhz,
        config=describe(best.config),
        values={
            "candidates": len(times),
            **{_key(way): round(sample.median, 3) for way, sample in samples.items()},
            "cold_ratio": round(
                min(cold_us[w] for w in cold_us if w != "ours") / cold_us["ours"], 3
            ),
        },
    )


def _key(way: str) -> str:
    """'torch.compile, cold' -> 'torch.compile_cold_us'."""
    return f"{way.replace(',', '').replace(' ', '_')}_us"


def _median(samples: Any) -> Callable[[str], float]:
    return lambda way: float(samples[way].median)


def _sides(kernel: Kernel, tensors: Tensors, suffix: str) -> dict[str, Measure]:
    operations = {"ours": kernel.operation(tensors.arguments), **tensors.peers()}
    return {f"{side}{suffix}": operation.measure() for side, operation in operations.items()}


def _parser() -> argparse.ArgumentParser:
    options = parser((__doc__ or "").splitlines()[0])
    options.add_argument(
        "--shapes",
        type=lambda text: text.split(","),
        default=[],
        metavar="RxC,..",
        help="rows x columns",
    )
    return options


if __name__ == "__main__":
    sys.exit(main())
