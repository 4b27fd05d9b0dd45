"""Which candidates are fused, and with which configurations: by measured times if there are any,
otherwise by predicted ones.

Fused nodes have to be faster than ONNX Runtime's nodes for the same work. Convolutions are compared
by regions of one layout, with the layout conversions at their inputs and outputs; a GEMM by itself,
with the padding of its input.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import onnx_graphsurgeon as gs

from onnxbolt.archs import ARCHS, Arch
from onnxbolt.candidates import Candidate, Refusal
from onnxbolt.epilogues import MEAN
from onnxbolt.families import KernelConfig, is_unmeasured, problem_types
from onnxbolt.forms import PLAIN
from onnxbolt.layout.assignment import Assignment
from onnxbolt.layout.elementwise_runs import elementwise_runs
from onnxbolt.layout.slices import slices
from onnxbolt.measurements.timings import NOTHING, Choice, Timings
from onnxbolt.ops.base import Stored, Surroundings
from onnxbolt.plan.conversions import laid_out
from onnxbolt.plan.cost import floor_us, fused_us, ort_us, predicted_by, ranked, supports
from onnxbolt.plan.problems import problem_of
from onnxbolt.plan.ranges import AS_IS, FIXED, Point, Ranges, table
from onnxbolt.plan.regions import Region
from onnxbolt.plan.verdicts import Judge, Verdict, frozen, joint_regions
from onnxbolt.problems import Problem

_NO_WHOLE_ACCESSES = "the rows of its input or result are no multiples of 16 bytes"
_NO_COMMON_KERNEL = "no kernel computes its layers together in the layout of its input"
_NO_KERNEL_FOR_MEAN = (
    "no kernel also computes the global average pooling behind it in these layouts"
)
# an instance that another problem needs anyway is taken where it is at most this much slower
_SAME = 1.03


@dataclass(frozen=True)
class Prediction:
    """Predicted microseconds of one fused node on one architecture, and the measured ones if its
    kernel was measured. `floor_us` is the roofline: no kernel is faster. `model` is the digest of
    the learned cost model that predicted `ours_us`, empty if the formula did; `published`: the
    package has the measured time."""

    arch: int
    ours_us: float
    ort_us: float
    measured_us: float | None = None
    floor_us: float = 0.0
    model: str = ""
    published: bool = False

    @property
    def best_known_us(self) -> float:
        """The measured time, otherwise the predicted one."""
        return self.ours_us if self.measured_us is None else self.measured_us


@dataclass(frozen=True)
class Totals:
    """Microseconds, summed over the architectures, of the kernels that were planned, of their
    layout conversions, and of nodes that a kernel could compute and ONNX Runtime computes: by
    dynamic programming and greedily. `scopes` were planned independently, `distinct` of them
    differ, and `otherwise` are not as the greedy plan has them."""

    dynamic_us: float
    greedy_us: float
    scopes: int
    distinct: int
    otherwise: int


@dataclass(frozen=True)
class Plan:
    """The fused nodes and their kernels. Dictionaries are keyed by the anchor's node; `used` holds
    the decisions in the form in which a later plan takes them."""

    assignment: Assignment
    tables: dict[gs.Node, list[Choice]]  # for each architecture its rows, by ascending m
    sizes: dict[gs.Node, tuple[Problem, ...]]  # at each point of the ranges, the opt point first
    predictions: dict[gs.Node, list[Prediction]]  # at the opt point, for each architecture
    refusals: list[Refusal]
    used: Timings
    lost: list[Region]  # regions that are not fused, or not as a whole, for each architecture
    verdicts: tuple[Verdict, ...] = ()  # the decisions of --fuse winning
    totals: Totals | None = None  # None where an earlier plan is made again

    @property
    def candidates(self) -> Sequence[Candidate]:
        return self.assignment.candidates

    @property
    def configs(self) -> dict[gs.Node, list[KernelConfig]]:
        """The configurations that each node carries."""
        return {key: [row.config for row in rows] for key, rows in self.tables.items()}

    @property
    def problems(self) -> dict[gs.Node, Problem]:
        """The problems at the opt point."""
        return {key: problems[0] for key, problems in self.sizes.items()}

    @property
    def workload(self) -> list[Problem]:
        """Every problem as often as it counts for the tuner: once for each node and point, but at
        the opt point as often as at all other points together."""
        return [
            p
            for opt, *others in self.sizes.values()
            for p in (*[opt] * max(len(others), 1), *others)
        ]

    @property
    def sources(self) -> dict[gs.Node, str]:
        """The origin of each node's times: "predicted" or "measured", or one word per row, with
        commas between, if its rows differ."""
        return {key: _sources(rows) for key, rows in self.tables.items()}


@dataclass(frozen=True)
class _Assigned:
    """Candidates, the forms of their tensors, and why some layers have kernels of their own."""

    candidates: list[Candidate]
    assignment: Assignment
    refusals: list[Refusal]


@dataclass(frozen=True)
class _Decided:
    """The fused candidates, the judge that decided, the refusals of the rest, and the regions that
    are slower."""

    assigned: _Assigned
    judge: Judge
    refusals: list[Refusal]
    lost: list[Region]


def _sources(rows: list[Choice]) -> str:
    words = ["measured" if row.measured else "predicted" for row in rows]
    return words[0] if len(set(words)) == 1 else ",".join(words)


def plan(
    graph: gs.Graph,
    candidates: Sequence[Candidate],
    archs: Sequence[int],
    fuse: str,
    timings: Timings = NOTHING,
    ranges: Ranges = FIXED,
) -> Plan:
    """Choose among disjoint candidates for all of `archs` together; `fuse` is "winning" or "all".

    Fusion is decided at the opt point of `ranges`, kernels are chosen at each of its points. Raises
    FrozenError if `timings` are frozen and lack a decision that is needed.
    """
    unsupported = {candidate: _unsupported(candidate, archs) for candidate in candidates}
    supported = [c for c in candidates if unsupported[c] is None]
    fused = _decided(graph, supported, archs, fuse == "winning", timings, ranges.opt)
    assignment, kernels = (
        fused.assigned.assignment,
        _kernels(fused.assigned, archs, timings, ranges),
    )
    refusals = [
        *(refusal for refusal in unsupported.values() if refusal is not None),
        *fused.refusals,
        *slices(graph, assignment, elementwise_runs(graph, assignment)).refusals,
    ]
    used = Timings(kernels.choices, fused.judge.comparisons, timings.machine)
    verdicts = tuple(fused.judge.verdicts.values())
    return Plan(
        assignment,
        kernels.tables,
        kernels.sizes,
        kernels.predictions,
        refusals,
        used,
        fused.lost,
        verdicts,
    )


class _Kernels(NamedTuple):
    """The kernels of candidates, as `Plan` has them, and all choices among kernels."""

    tables: dict[gs.Node, list[Choice]]
    sizes: dict[gs.Node, tuple[Problem, ...]]
    predictions: dict[gs.Node, list[Prediction]]
    choices: dict[tuple[Problem, int], Choice]


def _kernels(
    assigned: _Assigned, archs: Sequence[int], timings: Timings, ranges: Ranges
) -> _Kernels:
    """The fastest ones that are known. Raises FrozenError if `timings` are frozen and lack one."""
    sizes = {
        c.anchor.node: tuple(problem_of(c, assigned.assignment, point) for point in ranges.points)
        for c in assigned.candidates
    }
    distinct = list(dict.fromkeys(problem for problems in sizes.values() for problem in problems))
    _require_choices(timings, [(problem, number) for problem in distinct for number in archs])
    picked = {number: choices(distinct, ARCHS[number], timings) for number in archs}
    tables: dict[gs.Node, list[Choice]] = defaultdict(list)
    predictions: dict[gs.Node, list[Prediction]] = defaultdict(list)
    for number, candidate in itertools.product(archs, assigned.candidates):
        key, best = candidate.anchor.node, picked[number]
        tables[key] += table((problem.rows, best[problem]) for problem in sizes[key])
        opt = sizes[key][0]
        theirs = ort_us(problem_of(candidate, None, ranges.opt), ARCHS[number])
        predictions[key].append(_prediction(opt, best[opt], theirs, ARCHS[number]))
    chosen = {
        (problem, number): choice
        for number, found in picked.items()
        for problem, choice in found.items()
    }
    return _Kernels(dict(tables), sizes, dict(predictions), chosen)


def _decided(
    graph: gs.Graph,
    candidates: list[Candidate],
    archs: Sequence[int],
    winning: bool,
    timings: Timings,
    at: Point,
) -> _Decided:
    """The candidates that are fused: all, or those of regions that are faster fused."""
    assigned, judge = _assigned(graph, candidates, archs, at), Judge(timings)
    refusals, lost = list(assigned.refusals), list[Region]()
    while winning:
        found = joint_regions(assigned.assignment, archs, at)
        losses = judge.losing(found)
        if not losses.instead:
            break
        lost += [
            region
            for joint in found
            for region in joint
            if any(c in losses.instead for c in region.candidates)
        ]
        kept = [kept for c in assigned.candidates for kept in losses.instead.get(c, (c,))]
        assigned = _assigned(graph, kept, archs, at)
        refusals += [*losses.refusals, *assigned.refusals]
    return _Decided(assigned, judge, refusals, lost)


def _prediction(problem: Problem, choice: Choice, theirs: float, arch: Arch) -> Prediction:
    return Prediction(
        arch.number,
        fused_us(problem, choice.config, arch),
        theirs,
        choice.us if choice.measured else None,
        floor_us(problem, arch),
        predicted_by(choice.config),
        choice.published,
    )


def choices(
    problems: Sequence[Problem], arch: Arch, timings: Timings = NOTHING
) -> dict[Problem, Choice]:
    """For each problem the configuration that was measured to be fastest; otherwise the one that is
    predicted to be, or one within 3% of it whose instance another problem needs anyway.

    Each instance costs seconds of nvcc, so problems share instances; the slowest problem chooses
    first.
    """
    picked = {
        problem: choice for problem in problems if (choice := timings.choice(problem, arch.number))
    }
    compiled = {_instance(problem, choice.config) for problem, choice in picked.items()}
    unknown = [problem for problem in problems if problem not in picked]
    timed = {problem: ranked(problem, arch) for problem in unknown}
    for problem in sorted(timed, key=lambda p: (-timed[p][0][0], repr(p))):
        best = timed[problem][0][0]
        shared = (
            (us, c)
            for us, c in timed[problem]
            if us <= _SAME * best and _instance(problem, c) in compiled
        )
        us, config = next(shared, timed[problem][0])
        picked[problem] = Choice(config, us, measured=False, model=predicted_by(config))
        compiled.add(_instance(problem, config))
    return picked


def _require_choices(timings: Timings, needed: Sequence[tuple[Problem, int]]) -> None:
    missing = {
        f"sm_{arch} {problem.description}"
        for problem, arch in needed
        if (problem, arch) not in timings.choices
    }
    if timings.frozen and missing:
        raise frozen(missing, "problems")


def _instance(problem: Problem, config: KernelConfig) -> tuple[object, ...]:
    return config.instance(), problem.dtype, problem.out, problem.chain


def _assigned(
    graph: gs.Graph, candidates: list[Candidate], archs: Sequence[int], at: Point
) -> _Assigned:
    """The candidates and the forms of their tensors. Layers whose tensors are stored in forms that
    no common kernel takes become candidates of their own."""
    chosen, refusals = candidates, list[Refusal]()
    while True:
        assignment = laid_out(graph, chosen, archs, at)
        joint = [c for c in chosen if len(c.widths) > 1 or c.layers]
        asked = [*joint, *(c for c in chosen if c.anchor.op.whole_accesses and c not in joint)]
        apart = dict.fromkeys(
            c for c in asked if not all(supports(problem_of(c, assignment, at), n) for n in archs)
        )
        if not apart:
            return _Assigned(chosen, assignment, refusals)
        refusals += map(_without_kernel, apart)
        # a layer by itself has none
        chosen = [kept for c in chosen for kept in (c.layers if c in apart else (c,))]


def _without_kernel(candidate: Candidate) -> Refusal:
    node = candidate.anchor.node
    if candidate.anchor.op.whole_accesses:
        return Refusal(node.name, node.op, _NO_WHOLE_ACCESSES, candidate.output.name)
    reason = _NO_KERNEL_FOR_MEAN if MEAN in candidate.steps else _NO_COMMON_KERNEL
    return Refusal(node.name, node.op, reason, candidate.output.name, apart=True)


def _at_best(candidate: Candidate) -> Problem:
    """The problem as ONNX has it or, where kernels move whole accesses alone, with channels in
    these, as layouts may store them."""
    op = candidate.anchor.op
    if not op.whole_accesses:
        return problem_of(candidate, None)
    stored = Stored(*op.forms(candidate, Surroundings(PLAIN, padded=True)))
    return op.problem(candidate, AS_IS.sizes, stored)


def _unsupported(candidate: Candidate, archs: Sequence[int]) -> Refusal | None:
    """Why a candidate cannot run on one of `archs`, neither in one kernel nor layer by layer; None
    if all have kernels."""
    problem, node = _at_best(candidate), candidate.anchor.node
    if type(problem).__name__ not in problem_types():
        reason = f"no kernel family that is installed solves a {problem.operation}"
        if is_unmeasured(problem):
            reason = f"no kernel for a {problem.operation} has run on a GPU yet"
        return Refusal(node.name, node.op, reason, candidate.output.name)
    for number in archs:
        if supports(problem, number) or all(supports(layer, number) for layer in problem.layers):
            continue
        element = candidate.anchor.dtype.value
        reason = f"{ARCHS[number].name} has no tensor-core kernel for {element}"
        return Refusal(node.name, node.op, reason, candidate.output.name, "another --arch")
    return None
