"""Norms in the epilogue of the product before them, against two kernels of ours, in fp16 and one
run: rows of results/norms-<gpu>.json.

    # all of SHAPES, beside the rows that `python -m benchmarks.norms` has written
    python -m benchmarks.norm_products --append
    python -m benchmarks.norm_products --shapes 1280x768x3072 --append
    # only compiles the kernels, for which no GPU is needed
    python -m benchmarks.norm_products --build

The peer is the faster of both pairs: the product or the norm adds the residual. Every configuration
of the family that normalizes is timed, and of the products and norms the FEW best by prediction.
Launches are in a CUDA graph on both sides, and tensors are rotated past L2. Answers are compared
with float64 first.
"""

from __future__ import annotations

import ctypes
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import peers
from benchmarks.common import ClockSampler, Row
from benchmarks.documents import write_results
from benchmarks.kernels import Kernel, kernels, parser
from benchmarks.norms import Epilogue, Norm
from benchmarks.racing import against, say, take_turns
from onnxbolt import gpu
from onnxbolt.archs import Arch, by_name, get
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import LAYER_NORM, STORE
from onnxbolt.errors import OnnxboltError
from onnxbolt.families import KernelConfig, named
from onnxbolt.inspection import describe
from onnxbolt.plan.cost import floor_us, ranked
from onnxbolt.problems import GemmNormProblem, GemmProblem, NormProblem, Problem
from onnxbolt.tune.library import build
from onnxbolt.tune.tasks import instance_of

# m x n x k and whether others read the sum: BERT-base 32x40, BERT-large 32x512, ViT-B/16 at batch
# 32; the projection behind attention, and the MLP's second product
SHAPES = (
    (1280, 768, 768, False),
    (1280, 768, 3072, False),
    (16384, 1024, 1024, False),
    (16384, 1024, 4096, False),
    (6304, 768, 768, True),
    (6304, 768, 3072, True),
)
FEW = 8
_EPSILON, _LIMIT = 1e-5, 2e-3
_SAMPLES = 5  # samples of each configuration
_FASTEST_SHOWN = 5
_BUILT_FOR = 90  # architecture of --build
_FACTORS = ("Scale", "Bias")

_L, _P = ctypes.c_int64, ctypes.c_void_p


class Gemm(ctypes.Structure):
    """GemmArguments (custom_ops/ops/gemm/arguments.h)."""

    _fields_ = (
        *((name, _L) for name in ("m", "n", "k")),
        *((name, _P) for name in ("a", "b", "d")),
        *((name, _L) for name in ("lda", "ldb", "ldd")),
        ("epilogue", Epilogue),
        *((name, _P) for name in ("stored", "moments_of_a", "moments_of_d")),
    )


def problems() -> list[GemmNormProblem]:
    """Those of all rows."""
    steps = ("Bias", "Add"), (LAYER_NORM, *_FACTORS)
    return [
        GemmNormProblem(
            m, n, k, DType.F16, DType.F16, (*steps[0], *((STORE,) if stored else ()), *steps[1])
        )
        for m, n, k, stored in SHAPES
    ]


def name(problem: GemmNormProblem) -> str:
    """'1280x768x3072 Bias+Add+LayerNorm+Scale+Bias'."""
    return f"{problem.m}x{problem.n}x{problem.k} {'+'.join(problem.chain)}"


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
    """The tensors of a problem on the device, several sets of them."""

    problem: GemmNormProblem
    x: Any
    weight: Any
    residual: Any
    total: Any
    y: Any
    vectors: Any  # [3, N]: bias, gamma, beta

    @classmethod
    def of(cls, problem: GemmNormProblem, sets: int) -> Tensors:
        """Random ones; sums have a mean beside their deviation."""
        torch, (m, n, k) = peers.pytorch(), (problem.m, problem.n, problem.k)
        x, weight = (
            peers.normal((sets, m, k), problem.dtype),
            peers.normal((n, k), problem.dtype).flip(1),
        )
        residual = peers.normal((sets, m, n), problem.dtype) + 0.5
        vectors = peers.normal((3, n), DType.F32) + torch.tensor([[0.0], [1.0], [0.0]]).cuda()
        total, y = torch.empty_like(residual), torch.empty_like(residual)
        return cls(problem, x, weight * k**-0.5, residual, total, y, vectors)

    @property
    def sets(self) -> int:
        """How many sets of tensors there are."""
        return int(self.x.shape[0])

    def gemm(self, problem: GemmProblem | GemmNormProblem, i: int) -> Gemm:
        """Arguments of a product; one that does not normalize writes the sum."""
        whole = isinstance(problem, GemmNormProblem)
        m, n, k = problem.m, problem.n, problem.k
        total = self.total[i].data_ptr()
        stored = total if STORE in problem.chain else None
        places = self.x[i].data_ptr(), self.weight.data_ptr(), self.y[i].data_ptr()
        to = places if whole else (*places[:2], total)
        return Gemm(m, n, k, *to, k, k, n, self._epilogue(problem, i, 0), stored)

    def norm(self, problem: NormProblem, i: int) -> Norm:
        """Arguments of a norm of the sum."""
        stored = self.total[i].data_ptr() if STORE in problem.chain else None
        places = self.total[i].data_ptr(), self.y[i].data_ptr(), stored
        epilogue = self._epilogue(problem, i, 1)
        return Norm(problem.m, problem.c, True, _EPSILON, *places, problem.c, problem.c, epilogue)

    def _epilogue(self, problem: Problem, i: int, first: int) -> Epilogue:
        """Operands of all steps, whose first vector is that of number `first`."""
        epilogue = Epilogue()
        for place, vector in enumerate(self.vectors[first:]):
            epilogue.vectors[place] = vector.data_ptr()
        if "Add" in problem.chain:
            epilogue.tensors[0] = self.residual[i].data_ptr()
            epilogue.tensor_pitch[0] = problem.columns
        epilogue.params[0] = _EPSILON
        return epilogue

    def error(self) -> float:
        """The relative error of what the first set's y holds now."""
        torch = peers.pytorch()
        bias, gamma, beta = self.vectors.double()
        total = self.x[0].double() @ self.weight.double().T + bias + self.residual[0].double()
        expected = torch.nn.functional.layer_norm(total, gamma.shape, gamma, beta, _EPSILON)
        return float((self.y[0].double() - expected).norm() / expected.norm())


def _operation(tensors: Tensors, problem: Problem, kernel: Kernel) -> peers.Operation:
    """Launches on each set."""
    if isinstance(problem, NormProblem):
        return kernel.operation([tensors.norm(problem, i) for i in range(tensors.sets)])
    assert isinstance(problem, GemmProblem | GemmNormProblem)
    return kernel.operation([tensors.gemm(problem, i) for i in range(tensors.sets)])


def _fastest(tensors: Tensors, problem: Problem, arch: Arch) -> Kernel:
    times: dict[Kernel, float] = {}
    for kernel in kernels(problem, configurations(problem, arch)):
        measure = _operation(tensors, problem, kernel).measure()
        times[kernel] = statistics.median(measure(_SAMPLES))
        if isinstance(problem, GemmNormProblem) and not (error := tensors.error()) <= _LIMIT:
            raise OnnxboltError(f"{name(problem)}, {describe(kernel.config)}: error {error:.1e}")
    order = sorted(times, key=lambda kernel: times[kernel])
    for kernel in order[:_FASTEST_SHOWN]:
        say(f"  {times[kernel]:7.3f} us  {describe(kernel.config)}")
    return order[0]


def _in_turn(first: peers.Operation, second: peers.Operation) -> peers.Operation:
    return first.then(lambda i, _: second.run(i))


def _measured(problem: GemmNormProblem, arch: Arch) -> Row:
    tensors = Tensors.of(problem, peers.operand_sets(problem.bytes_moved))
    fused = _fastest(tensors, problem, arch)
    sides = {"ours": _operation(tensors, problem, fused).measure()}
    words = {}
    for side, pair in zip(("product adds", "norm adds"), pairs(problem), strict=True):
        chosen = [_fastest(tensors, each, arch) for each in pair]
        both = (_operation(tensors, *each) for each in zip(pair, chosen, strict=True))
        sides[side] = _in_turn(*both).measure()
        words[side] = "; ".join(describe(kernel.config) for kernel in chosen)
    with ClockSampler() as clock:
        samples = take_turns(sides)
    theirs = min(words, key=lambda side: samples[side].median)
    _operation(tensors, problem, fused).run(0)
    return Row(
        name(problem),
        1,
        "fp16",
        **against(samples["ours"], samples[theirs].median),
        peer=f"two kernels, {theirs}",
        floor_us=round(floor_us(problem, arch), 3),
        error=float(f"{tensors.error():.3e}"),
        clock_mhz=clock.mhz,
        config=describe(fused.config),
        values={side: round(samples[side].median, 3) for side in words} | {"peer": words[theirs]},
    )


def _all(found: Sequence[GemmNormProblem]) -> Iterator[Problem]:
    for problem in found:
        yield problem
        for pair in pairs(problem):
            yield from pair


def _build(found: Sequence[GemmNormProblem], arch: Arch) -> int:
    """Compile the kernels of all problems at once, so that all cores are busy."""
    each = dict.fromkeys(_all(found))
    instances = [instance_of(p, config) for p in each for config in configurations(p, arch)]
    for instance, library in build(instances):
        if not isinstance(library, Path):
            say(f"not measured: {describe(instance.config)}: {library.detail}")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser((__doc__ or "").splitlines()[0])
    options.add_argument("--shapes", type=lambda text: text.split(","), default=[], metavar="MxNxK")
    chosen = options.parse_args(arguments)
    found = [p for p in problems() if not chosen.shapes or name(p).split()[0] in chosen.shapes]
    if chosen.build:
        return _build(found, get(_BUILT_FOR))
    arch = gpu.local_arch()
    if arch is None or peers.pytorch() is None:
        print(
            "error: it needs an NVIDIA GPU of a supported architecture, and PyTorch",
            file=sys.stderr,
        )
        return 1
    rows, planned = [], [(name(problem), 1) for problem in problems()]
    try:
        for problem in found:
            rows.append(_measured(problem, by_name(arch)))
            write_results("norms", rows, chosen.out, chosen.append, planned)
            row = rows[-1]
            say(f"{row.name}: {row.ours_us} us, {row.peer} {row.peer_us}, {row.ratio}")
            peers.release()
    except OnnxboltError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
