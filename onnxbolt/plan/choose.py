"""Which candidates are fused, and with which configurations: by prediction, while nothing has been measured.

A fusion is kept where it is predicted to beat what ONNX Runtime does with the same nodes: a region of convolutions in one layout as a
whole, with the layout changes at its borders, a GEMM by itself, with the padding of its input.
"""
from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import onnx_graphsurgeon as gs

from onnxbolt.archs import ARCHS, Arch
from onnxbolt.dtypes import DType
from onnxbolt.kernels import conv, gemm
from onnxbolt.kernels.config import ConvProblem, KernelConfig
from onnxbolt.layout.assign import Assignment, assign
from onnxbolt.layout.form import Form
from onnxbolt.match.types import Candidate, Refusal
from onnxbolt.plan.cost import fused_us, ort_us, supports, transpose_us
from onnxbolt.plan.problems import Problem, elements, problem_of

_SAME = 1.03  # an instance that another problem needs anyway is taken where it is at most this much slower


@dataclass(frozen=True)
class Prediction:
    """Microseconds for one fused node on one architecture."""

    arch: int
    ours_us: float
    ort_us: float


@dataclass(frozen=True)
class Plan:
    """The cover of the graph. Dictionaries are keyed by the id of the anchor's node."""

    assignment: Assignment
    configs: dict[int, list[KernelConfig]]
    problems: dict[int, Problem]
    predictions: dict[int, list[Prediction]]
    refusals: list[Refusal]

    @property
    def candidates(self) -> list[Candidate]:
        return self.assignment.candidates


def plan(graph: gs.Graph, candidates: Sequence[Candidate], archs: Sequence[int], fuse: str) -> Plan:
    """Choose among disjoint candidates for `archs` (the first one decides); `fuse` is "winning" or "all"."""
    refusals: list[Refusal] = []
    chosen = [c for c in candidates if _supported(c, archs, refusals)]
    assignment = assign(graph, chosen)
    while fuse == "winning":
        losing = _losing(assignment, ARCHS[archs[0]], refusals)
        if not losing:
            break
        chosen = [c for c in chosen if id(c) not in losing]
        assignment = assign(graph, chosen)
    problems = {id(c.anchor.node): problem_of(c, assignment) for c in chosen}
    configs: dict[int, list[KernelConfig]] = defaultdict(list)
    predictions: dict[int, list[Prediction]] = defaultdict(list)
    for number in archs:
        arch = ARCHS[number]
        picked = configurations([problems[id(c.anchor.node)] for c in chosen], arch)
        for candidate in chosen:
            key = id(candidate.anchor.node)
            config = picked[problems[key]]
            configs[key].append(config)
            predictions[key].append(Prediction(number, fused_us(problems[key], config, arch), ort_us(problem_of(candidate, None), arch)))
    return Plan(assignment, dict(configs), problems, dict(predictions), refusals)


def configurations(problems: Sequence[Problem], arch: Arch) -> dict[Problem, KernelConfig]:
    """A configuration for each problem: the fastest predicted, or one within 3% of it that is compiled anyway.

    Each instance costs seconds of nvcc, so problems share instances; the most expensive problem chooses first.
    """
    timed = {problem: sorted((fused_us(problem, c, arch), c) for c in _candidates(problem, arch)) for problem in problems}
    compiled: set[tuple[object, ...]] = set()
    picked: dict[Problem, KernelConfig] = {}
    for problem in sorted(timed, key=lambda p: (-timed[p][0][0], repr(p))):
        best = timed[problem][0][0]
        shared = (c for us, c in timed[problem] if us <= _SAME * best and _instance(problem, c) in compiled)
        picked[problem] = next(shared, timed[problem][0][1])
        compiled.add(_instance(problem, picked[problem]))
    return picked


def _instance(problem: Problem, config: KernelConfig) -> tuple[object, ...]:
    return config.instance(), problem.dtype, problem.out, problem.chain


def _candidates(problem: Problem, arch: Arch) -> tuple[KernelConfig, ...]:
    return conv.candidates(problem, arch) if isinstance(problem, ConvProblem) else gemm.candidates(problem, arch)


def _supported(candidate: Candidate, archs: Sequence[int], refusals: list[Refusal]) -> bool:
    problem = problem_of(candidate, None)
    for number in archs:
        if not supports(problem, number):
            reason = f"{ARCHS[number].name} has no tensor-core kernel for {candidate.anchor.dtype.value}"
            refusals.append(Refusal(candidate.anchor.node.name, candidate.anchor.node.op, reason, candidate.output.name, "another --arch"))
            return False
    return True


def _losing(assignment: Assignment, arch: Arch, refusals: list[Refusal]) -> set[int]:
    """Ids of the candidates that are predicted to lose, each recorded with both times."""
    losing: set[int] = set()
    for region in regions(assignment):
        theirs = sum(ort_us(problem_of(c, None), arch) for c in region.candidates)
        ours = sum(_fused_best(problem_of(c, assignment), arch) for c in region.candidates)
        borders = sum(_conversion_us(tensor, form, assignment, arch) for tensor, form in region.conversions)
        if ours + borders < theirs:
            continue
        for candidate in region.candidates:
            losing.add(id(candidate))
            alone = len(region.candidates) == 1
            what = "it and its conversions" if alone else f"its region of {len(region.candidates)} fused nodes and its layout changes"
            reason = f"predicted slower than ONNX Runtime, {what} together"
            refusals.append(Refusal(candidate.anchor.node.name, candidate.anchor.node.op, reason, candidate.output.name, "--fuse all",
                                    {"ours_us": ours + borders, "ort_us": theirs}))
    return losing


def _fused_best(problem: Problem, arch: Arch) -> float:
    return min(fused_us(problem, config, arch) for config in _candidates(problem, arch))


def _conversion_us(tensor: gs.Tensor, form: Form, assignment: Assignment, arch: Arch) -> float:
    """A layout change or padding; a tensor of one pixel per channel is only relabelled by a Transpose."""
    count = elements(tensor.shape)
    shape = tensor.shape or ()
    relabel = form.channels is None and assignment.form(tensor).channels is None and all(d == 1 for d in shape[2:])
    return 0.0 if relabel else transpose_us(count, DType.of(tensor.dtype) or DType.F32, arch)


@dataclass(frozen=True)
class Region:
    """Fused nodes that stand or fall together, and the conversions at their borders."""

    candidates: list[Candidate]
    conversions: list[tuple[gs.Tensor, Form]]


def regions(assignment: Assignment) -> list[Region]:
    """Maximal connected sets of fused convolutions in channels-last form; each GEMM by itself."""
    groups = _Groups()
    for candidate in assignment.candidates:
        groups.join(_tensor(candidate.output), ("candidate", id(candidate)))
        if candidate.anchor.kind == "conv":
            operands = [link.operand for link in candidate.links if link.step.row.operand == "tensor" and link.operand is not None]
            for tensor in (candidate.anchor.x, *operands):
                if assignment.form(tensor).last:
                    groups.join(_tensor(tensor), ("candidate", id(candidate)))
    for node_id, carry in assignment.carries.items():
        node = assignment.carried[node_id]
        ends = [t for t in (*node.inputs, *node.outputs) if assignment.form(t).last]
        for tensor in ends[1:] if carry.writes[0].last else ():
            groups.join(_tensor(ends[0]), _tensor(tensor))
    found: dict[object, Region] = {}
    for candidate in assignment.candidates:
        found.setdefault(groups.root(("candidate", id(candidate))), Region([], [])).candidates.append(candidate)
    for (name, form), tensor in assignment.conversions.items():
        for root in {groups.root(end) for end in _ends(assignment, tensor, form, name)}:
            if root in found:
                found[root].conversions.append((tensor, form))
    return list(found.values())


def _ends(assignment: Assignment, tensor: gs.Tensor, form: Form, name: str) -> list[tuple[str, object]]:
    """The region that a conversion belongs to: the tensor's own, else its readers'."""
    if assignment.form(tensor).last:
        return [("tensor", name)]
    readers = [c for c in assignment.candidates if c.anchor.x is tensor or any(link.operand is tensor for link in c.links)]
    return [("candidate", id(c)) for c in readers]


def _tensor(tensor: gs.Tensor) -> tuple[str, object]:
    return ("tensor", tensor.name)


class _Groups:
    """Disjoint sets."""

    def __init__(self) -> None:
        self._parent: dict[tuple[str, object], tuple[str, object]] = {}

    def root(self, item: tuple[str, object]) -> tuple[str, object]:
        while (parent := self._parent.setdefault(item, item)) != item:
            item = parent
        return item

    def join(self, one: tuple[str, object], other: tuple[str, object]) -> None:
        self._parent[self.root(one)] = self.root(other)
