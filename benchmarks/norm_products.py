"""Norms in the products beside them, against kernels of ours for the norms, in fp16 and one run:
rows of results/norms-<gpu>.json. A norm is in the epilogue of the product before it, or folded into
the product behind it, which then reads the statistics that the one before has written.

    # all of SHAPES, beside the rows that `python -m benchmarks.norms` has written
    python -m benchmarks.norm_products --append
    python -m benchmarks.norm_products --shapes 1280x768x3072 --append
    # only compiles the kernels, for which no GPU is needed
    python -m benchmarks.norm_products --build

The peer has a kernel for the norm, and is the faster of two: the product or the norm adds the
residual. Every configuration of the family that normalizes rows is timed, and of the other
products and the norms the FEW best by prediction. Launches are in a CUDA graph on both sides, and
tensors are rotated past L2. Answers are compared with float64 first.
"""

from __future__ import annotations

import ctypes
import functools
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks import peers
from benchmarks.common import ClockSampler, Row
from benchmarks.kernels import Kernel, compile_all, kernels, measured_rows, parser
from benchmarks.racing import against, say, take_turns
from onnxbolt.archs import Arch, get
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import LAYER_NORM, MOMENTS, STORE
from onnxbolt.errors import OnnxboltError
from onnxbolt.families import KernelConfig, named
from onnxbolt.inspection import describe
from onnxbolt.plan.cost import floor_us, ranked
from onnxbolt.problems import (
    GemmMomentsProblem,
    GemmNormProblem,
    GemmProblem,
    NormProblem,
    Problem,
    Product,
)
from onnxbolt.problems.gemm_moments import PART
from tests.gpu.device import Epilogue, Gemm, Norm

# m x n x k and whether others read the sum: one text of 128 tokens, BERT-base 32x40, BERT-large
# 32x512, ViT-B/16 at batch 1 and 32; the projection behind attention, and the MLP's second product
SHAPES = (
    (128, 768, 768, False),
    (128, 768, 3072, False),
    (1280, 768, 768, False),
    (1280, 768, 3072, False),
    (16384, 1024, 1024, False),
    (16384, 1024, 4096, False),
    (197, 768, 768, True),
    (197, 768, 3072, True),
    (6304, 768, 768, True),
    (6304, 768, 3072, True),
)
# m x n x k of the product in front of a norm that others read as well, and n of the product behind
# it, the first one of attention or of the MLP: ViT-B/16 at batch 32, ViT-L/16 at batch 8 and 32,
# GPT-2 with 32 times 40 tokens, and a width of 1,024 with 32 times 512
FOLDED: tuple[tuple[int, int, int, int, tuple[str, ...]], ...] = (
    (6304, 768, 3072, 2304, ("Bias",)),
    (6304, 768, 768, 3072, ("Bias", "GeluErf")),
    (1576, 1024, 4096, 3072, ("Bias",)),
    (1576, 1024, 1024, 4096, ("Bias", "GeluErf")),
    (6304, 1024, 4096, 3072, ("Bias",)),
    (6304, 1024, 1024, 4096, ("Bias", "GeluErf")),
    (1280, 768, 3072, 2304, ("Bias",)),
    (1280, 768, 768, 3072, ("Bias", "GeluErf")),
    (16384, 1024, 4096, 3072, ("Bias",)),
    (16384, 1024, 1024, 4096, ("Bias", "GeluErf")),
)
FEW = 8
_EPSILON, _LIMIT = 1e-5, 2e-3
_SAMPLES = 5  # samples of each configuration
_FASTEST_SHOWN = 5
_BUILT_FOR = 90  # architecture of --build
_FACTORS, _FOLDED = ("Scale", "Bias"), "FoldedLayerNorm"
_OURS = "ours"


@dataclass(frozen=True)
class Case:
    """A row: a product with its norm, and the product `behind` that the norm is folded into, if it
    is."""

    normalized: GemmNormProblem
    behind: GemmProblem | None = None

    @property
    def ours(self) -> tuple[Product, ...]:
        """The kernels that have the norm in them."""
        front, behind = self.normalized.product, self.behind
        if behind is None:
            return (self.normalized,)
        return (
            _with_statistics(front, (*front.chain, MOMENTS)),
            _with_statistics(behind, (_FOLDED, *behind.chain)),
        )

    @property
    def sides(self) -> dict[str, tuple[Problem, ...]]:
        """The kernels of each side, in their order."""
        last = () if self.behind is None else (self.behind,)
        adds = zip(("product adds", "norm adds"), pairs(self.normalized), strict=True)
        return {_OURS: self.ours, **{side: (*pair, *last) for side, pair in adds}}

    @property
    def name(self) -> str:
        """'1280x768x3072 Bias+Add+LayerNorm+Scale+Bias'."""
        return ", ".join(map(_words, self.ours))


def _with_statistics(problem: GemmProblem, chain: tuple[str, ...]) -> GemmMomentsProblem:
    return GemmMomentsProblem(problem.m, problem.n, problem.k, problem.dtype, problem.out, chain)


def _words(problem: Product) -> str:
    return f"{problem.rows}x{problem.columns}x{problem.depth} {'+'.join(problem.chain)}"


def cases() -> list[Case]:
    """Those of all rows."""
    half, norm = DType.F16, (LAYER_NORM, *_FACTORS)
    found = [
        Case(GemmNormProblem(m, n, k, half, half, ("Bias", "Add", *(STORE,) * stored, *norm)))
        for m, n, k, stored in SHAPES
    ]
    for m, n, k, columns, steps in FOLDED:
        normalized = GemmNormProblem(m, n, k, half, half, ("Bias", "Add", STORE, *norm))
        found.append(Case(normalized, GemmProblem(m, columns, n, half, half, steps)))
    return found


def pairs(problem: GemmNormProblem) -> tuple[tuple[GemmProblem, NormProblem], ...]:
    """Both pairs of kernels that compute the same: the product or the norm adds the residual."""
    m, n, k, half = problem.m, problem.n, problem.k, DType.F16
    stored = (STORE,) * (STORE in problem.chain)
    return (
        (problem.product, problem.norm),
        (
            GemmProblem(m, n, k, half, half, ("Bias",)),
            NormProblem(m, n, True, half, half, ("Add", *stored, *_FACTORS)),
        ),
    )


def configurations(problem: Problem, arch: Arch) -> list[KernelConfig]:
    """All that normalize, else the FEW best by prediction."""
    if isinstance(problem, GemmNormProblem):
        return list(named("gemm_norm_sm90").candidates(problem, arch))
    return [config for _, config in ranked(problem, arch)[:FEW]]


@dataclass(frozen=True)
class Tensors:
    """The tensors of a case on the device, several sets of them."""

    case: Case
    x: Any
    weight: Any
    residual: Any
    total: Any
    y: Any
    vectors: Any  # [3, N]: bias, gamma, beta
    behind: Behind | None

    @classmethod
    def of(cls, case: Case) -> Tensors:
        """Random ones; sums have a mean beside their deviation."""
        torch, problem, last = peers.pytorch(), case.normalized, case.behind
        m, n, k = problem.m, problem.n, problem.k
        size = problem.bytes_moved + (0 if last is None else last.bytes_moved)
        sets = peers.operand_sets(size)
        x, weight = (
            peers.normal((sets, m, k), problem.dtype),
            peers.normal((n, k), problem.dtype).flip(1),
        )
        residual = peers.normal((sets, m, n), problem.dtype) + 0.5
        vectors = peers.normal((3, n), DType.F32) + torch.tensor([[0.0], [1.0], [0.0]]).cuda()
        total, y = torch.empty_like(residual), torch.empty_like(residual)
        behind = None if last is None else Behind.of(last, sets, vectors[1], vectors[2])
        return cls(case, x, weight * k**-0.5, residual, total, y, vectors, behind)

    @property
    def sets(self) -> int:
        """How many sets of tensors there are."""
        return int(self.x.shape[0])

    def arguments(self, problem: Problem, i: int) -> ctypes.Structure:
        """The arguments of a kernel of this case."""
        if isinstance(problem, NormProblem):
            return self._norm(problem, i)
        assert isinstance(problem, GemmProblem | GemmNormProblem | GemmMomentsProblem)
        if self.behind is not None:
            if problem == self.case.behind:
                return self.behind.plain(problem, i, self.y[i])
            if isinstance(problem, GemmMomentsProblem) and problem.reads:
                return self.behind.folded(problem, i, self.total[i])
        return self._gemm(problem, i)

    def _gemm(self, problem: GemmProblem | GemmNormProblem | GemmMomentsProblem, i: int) -> Gemm:
        """The product in front of the norm; one that does not normalize writes the sum."""
        total = self.total[i].data_ptr()
        to = self.y[i].data_ptr() if isinstance(problem, GemmNormProblem) else total
        arguments = _product(problem, self.x[i], self.weight, to, self._epilogue(problem, i, 0))
        if STORE in problem.chain:
            arguments.stored = total
        if self.behind is not None and MOMENTS in problem.chain:
            arguments.moments_of_d = self.behind.moments[i].data_ptr()
        return arguments

    def _norm(self, problem: NormProblem, i: int) -> Norm:
        """Arguments of a norm of the sum."""
        stored = self.total[i].data_ptr() if STORE in problem.chain else None
        places = self.total[i].data_ptr(), self.y[i].data_ptr(), stored
        epilogue = self._epilogue(problem, i, 1)
        return Norm(problem.m, problem.c, True, _EPSILON, *places, problem.c, problem.c, epilogue)

    def _epilogue(self, problem: Problem, i: int, first: int) -> Epilogue:
        """Operands of all steps, whose first vector is that of number `first`."""
        epilogue = _vectors(self.vectors[first:])
        if "Add" in problem.chain:
            epilogue.tensors[0] = self.residual[i].data_ptr()
            epilogue.tensor_pitch[0] = problem.columns
        return epilogue

    def error(self, problem: Problem) -> float:
        """The relative error of what the first set's output of a kernel with the norm, or with its
        statistics, holds now; 0 for other kernels."""
        if isinstance(problem, GemmNormProblem):
            return _relative(self.y[0], self._normalized())
        if not isinstance(problem, GemmMomentsProblem):
            return 0.0
        assert self.behind is not None
        if problem.reads:
            return _relative(self.behind.z[0], self.behind.expected(self._normalized()))
        parts = self.total[0].double().unflatten(1, (-1, PART)).transpose(0, 1)
        means = parts.mean(-1, keepdim=True)
        squares = ((parts - means) ** 2).sum(-1, keepdim=True)
        found = self.behind.moments[0].double().split(1, dim=-1)
        exact = zip(found, (means, squares), strict=True)
        return max(*(_relative(*each) for each in exact), _relative(self.total[0], self._total()))

    def _total(self) -> Any:
        """The first set's sum in float64."""
        product = self.x[0].double() @ self.weight.double().T
        return product + self.vectors[0].double() + self.residual[0].double()

    def _normalized(self) -> Any:
        torch = peers.pytorch()
        _, gamma, beta = self.vectors.double()
        return torch.nn.functional.layer_norm(self._total(), gamma.shape, gamma, beta, _EPSILON)


@dataclass(frozen=True)
class Behind:
    """The tensors of the product behind a norm, and those that it has with the norm folded in."""

    problem: GemmProblem
    weight: Any  # [N, K]
    bias: Any  # [1, N]
    folded_weight: Any  # its columns times gamma
    folded_vectors: Any  # [2, N]: sums of that weight's rows; the bias, with what beta adds
    moments: Any  # [sets, K / PART, M, 2]
    z: Any

    @classmethod
    def of(cls, problem: GemmProblem, sets: int, gamma: Any, beta: Any) -> Behind:
        """Random ones."""
        torch, (m, n, k) = peers.pytorch(), (problem.m, problem.n, problem.k)
        weight = peers.normal((n, k), problem.dtype).flip(0) * k**-0.5
        bias = peers.normal((1, n), DType.F32)
        folded = (weight.float() * gamma).to(weight.dtype)
        vectors = torch.stack((folded.float().sum(1), bias[0] + weight.float() @ beta))
        moments = torch.empty((sets, k // PART, m, 2), device="cuda")
        z = torch.empty((sets, m, n), dtype=weight.dtype, device="cuda")
        return cls(problem, weight, bias, folded, vectors, moments, z)

    def plain(self, problem: GemmProblem, i: int, y: Any) -> Gemm:
        """Arguments of the product that reads normalized rows."""
        to = self.z[i].data_ptr()
        return _product(problem, y, self.weight, to, _vectors(self.bias))

    def folded(self, problem: GemmMomentsProblem, i: int, total: Any) -> Gemm:
        """Arguments of the product that normalizes."""
        to, epilogue = self.z[i].data_ptr(), _vectors(self.folded_vectors)
        arguments = _product(problem, total, self.folded_weight, to, epilogue)
        arguments.moments_of_a = self.moments[i].data_ptr()
        return arguments

    def expected(self, normalized: Any) -> Any:
        """z in float64."""
        gelu = peers.pytorch().nn.functional.gelu
        z = normalized @ self.weight.double().T + self.bias[0].double()
        return gelu(z) if "GeluErf" in self.problem.chain else z


def _product(
    problem: GemmProblem | GemmNormProblem | GemmMomentsProblem,
    a: Any,
    weight: Any,
    to: int,
    epilogue: Epilogue,
) -> Gemm:
    m, n, k = problem.m, problem.n, problem.k
    return Gemm(m, n, k, a.data_ptr(), weight.data_ptr(), to, k, k, n, epilogue)


def _vectors(vectors: Any) -> Epilogue:
    """The operands of steps that read these vectors, and the norm's parameter."""
    epilogue = Epilogue()
    for place, vector in enumerate(vectors):
        epilogue.vectors[place] = vector.data_ptr()
    epilogue.params[0] = _EPSILON
    return epilogue


def _relative(found: Any, expected: Any) -> float:
    return float((found.double() - expected).norm() / expected.norm())


def _operation(tensors: Tensors, problem: Problem, kernel: Kernel) -> peers.Operation:
    """Launches on each set."""
    return kernel.operation([tensors.arguments(problem, i) for i in range(tensors.sets)])


def _fastest(tensors: Tensors, problem: Problem, arch: Arch) -> Kernel:
    times: dict[Kernel, float] = {}
    say(f" {problem.description}")
    for kernel in kernels(problem, configurations(problem, arch)):
        measure = _operation(tensors, problem, kernel).measure()
        times[kernel] = statistics.median(measure(_SAMPLES))
        if not (error := tensors.error(problem)) <= _LIMIT:
            raise OnnxboltError(f"{problem.shape}, {describe(kernel.config)}: error {error:.1e}")
    order = sorted(times, key=lambda kernel: times[kernel])
    for kernel in order[:_FASTEST_SHOWN]:
        say(f"  {times[kernel]:7.3f} us  {describe(kernel.config)}")
    return order[0]


def _in_turn(operations: Sequence[peers.Operation]) -> peers.Operation:
    def behind(first: peers.Operation, second: peers.Operation) -> peers.Operation:
        return first.then(lambda i, _: second.run(i))

    return functools.reduce(behind, operations)


def _measured(case: Case, arch: Arch) -> Row:
    say(case.name)
    tensors, fastest = Tensors.of(case), dict[Problem, Kernel]()
    operations, words = dict[str, peers.Operation](), dict[str, str]()
    for side, problems in case.sides.items():
        for problem in problems:
            if problem not in fastest:
                fastest[problem] = _fastest(tensors, problem, arch)
        each = (_operation(tensors, problem, fastest[problem]) for problem in problems)
        operations[side] = _in_turn(list(each))
        words[side] = "; ".join(describe(fastest[problem].config) for problem in problems)
    sides = {side: operation.measure() for side, operation in operations.items()}
    with ClockSampler() as clock:
        samples = take_turns(sides)
    others = [side for side in words if side != _OURS]
    theirs = min(others, key=lambda side: samples[side].median)
    operations[_OURS].run(0)
    times: dict[str, Any] = {side: round(samples[side].median, 3) for side in others}
    return Row(
        case.name,
        1,
        "fp16",
        **against(samples[_OURS], samples[theirs].median),
        peer=f"{len(case.sides[theirs])} kernels, {theirs}",
        floor_us=round(sum(floor_us(problem, arch) for problem in case.ours), 3),
        error=float(f"{tensors.error(case.ours[-1]):.3e}"),
        clock_mhz=clock.mhz,
        config=words[_OURS],
        values=times | {"peer": words[theirs]},
    )


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser((__doc__ or "").splitlines()[0])
    options.add_argument("--shapes", type=lambda text: text.split(","), default=[], metavar="MxNxK")
    chosen = options.parse_args(arguments)
    found = [c for c in cases() if not chosen.shapes or c.name.split()[0] in chosen.shapes]
    if chosen.build:
        arch = get(_BUILT_FOR)
        each = dict.fromkeys(p for case in found for side in case.sides.values() for p in side)
        return compile_all((p, config) for p in each for config in configurations(p, arch))
    rows = measured_rows(
        "norms",
        (functools.partial(_measured, case) for case in found),
        chosen,
        [(case.name, 1) for case in cases()],
        lambda row: f"{row.name}: {row.ours_us} us, {row.peer} {row.peer_us}, {row.ratio}",
    )
    return int(rows is None)


if __name__ == "__main__":
    sys.exit(main())
