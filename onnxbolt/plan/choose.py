"""Which candidates are fused, and with which configurations: by measured times where there are any, else by prediction.

A fusion is kept where it beats what ONNX Runtime does with the same nodes: a region of convolutions in one layout as a
whole, with the layout changes at its borders, a GEMM by itself, with the padding of its input.
"""
from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import onnx_graphsurgeon as gs

from onnxbolt.archs import ARCHS, Arch
from onnxbolt.dtypes import DType
from onnxbolt.errors import FrozenError
from onnxbolt.kernels import conv, gemm
from onnxbolt.kernels.config import ConvProblem, KernelConfig
from onnxbolt.layout.assign import Assignment, assign
from onnxbolt.layout.form import Form
from onnxbolt.match.types import Candidate, Refusal
from onnxbolt.plan.cost import fused_us, ort_us, supports, transpose_us
from onnxbolt.plan.problems import Problem, describe_problem, elements, problem_of
from onnxbolt.plan.regions import Region, regions
from onnxbolt.tune.timings import NOTHING, Choice, Comparison, Timings

_NAMED = 3  # of what a lock file lacks, so many are named
_SAME = 1.03  # an instance that another problem needs anyway is taken where it is at most this much slower


@dataclass(frozen=True)
class Prediction:
    """Microseconds for one fused node on one architecture, and what its kernel was measured to take, where it was."""

    arch: int
    ours_us: float
    ort_us: float
    measured_us: float | None = None

    @property
    def best_known_us(self) -> float:
        """What was measured, else what was predicted."""
        return self.ours_us if self.measured_us is None else self.measured_us


@dataclass(frozen=True)
class Plan:
    """The cover of the graph. Dictionaries are keyed by the id of the anchor's node; `used` holds what was decided, in the form in
    which a plan asks for it."""

    assignment: Assignment
    configs: dict[int, list[KernelConfig]]
    problems: dict[int, Problem]
    predictions: dict[int, list[Prediction]]
    refusals: list[Refusal]
    used: Timings

    @property
    def candidates(self) -> list[Candidate]:
        return self.assignment.candidates

    @property
    def sources(self) -> dict[int, str]:
        """"predicted" or "measured"; where the rows of a node differ in that, one word for each."""
        return {key: _sources(rows) for key, rows in self.predictions.items()}


def _sources(rows: list[Prediction]) -> str:
    words = ["predicted" if row.measured_us is None else "measured" for row in rows]
    return words[0] if len(set(words)) == 1 else ",".join(words)


def plan(graph: gs.Graph, candidates: Sequence[Candidate], archs: Sequence[int], fuse: str, timings: Timings = NOTHING) -> Plan:
    """Choose among disjoint candidates for `archs` (the first one decides); `fuse` is "winning" or "all".

    Raises FrozenError where `timings` are frozen and do not hold a decision that is needed.
    """
    refusals: list[Refusal] = []
    used = Timings(machine=timings.machine)
    chosen = [c for c in candidates if _supported(c, archs, refusals)]
    assignment = assign(graph, chosen)
    settled: dict[int, Comparison] = {}
    while fuse == "winning":
        losing = _losing(assignment, ARCHS[archs[0]], timings, used, settled, refusals)
        if not losing:
            break
        chosen = [c for c in chosen if id(c) not in losing]
        assignment = assign(graph, chosen)
    problems = {id(c.anchor.node): problem_of(c, assignment) for c in chosen}
    _require_choices(timings, [(problem, number) for problem in problems.values() for number in archs])
    configs: dict[int, list[KernelConfig]] = defaultdict(list)
    predictions: dict[int, list[Prediction]] = defaultdict(list)
    for number in archs:
        arch = ARCHS[number]
        picked = choices([problems[id(c.anchor.node)] for c in chosen], arch, timings)
        used.choices.update({(problem, number): choice for problem, choice in picked.items()})
        for candidate in chosen:
            key = id(candidate.anchor.node)
            choice = picked[problems[key]]
            configs[key].append(choice.config)
            predictions[key].append(_prediction(candidate, problems[key], choice, arch))
    return Plan(assignment, dict(configs), problems, dict(predictions), refusals, used)


def _prediction(candidate: Candidate, problem: Problem, choice: Choice, arch: Arch) -> Prediction:
    measured = choice.us if choice.measured else None
    return Prediction(arch.number, fused_us(problem, choice.config, arch), ort_us(problem_of(candidate, None), arch), measured)


def choices(problems: Sequence[Problem], arch: Arch, timings: Timings = NOTHING) -> dict[Problem, Choice]:
    """What was measured to be best for each problem, else the fastest predicted, or one within 3% of it that is compiled anyway.

    Each instance costs seconds of nvcc, so problems share instances; the most expensive problem chooses first.
    """
    picked = {problem: choice for problem in problems if (choice := timings.choice(problem, arch.number))}
    compiled = {_instance(problem, choice.config) for problem, choice in picked.items()}
    unknown = [problem for problem in problems if problem not in picked]
    timed = {problem: sorted((fused_us(problem, c, arch), c) for c in _candidates(problem, arch)) for problem in unknown}
    for problem in sorted(timed, key=lambda p: (-timed[p][0][0], repr(p))):
        best = timed[problem][0][0]
        shared = ((us, c) for us, c in timed[problem] if us <= _SAME * best and _instance(problem, c) in compiled)
        us, config = next(shared, timed[problem][0])
        picked[problem] = Choice(config, us, measured=False)
        compiled.add(_instance(problem, config))
    return picked


def _require_choices(timings: Timings, needed: Sequence[tuple[Problem, int]]) -> None:
    missing = {f"sm_{arch} {describe_problem(problem)}" for problem, arch in needed if (problem, arch) not in timings.choices}
    if timings.frozen and missing:
        raise _frozen(missing, "problems")


def _frozen(missing: set[str], what: str) -> FrozenError:
    named = sorted(missing)
    more = f" and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
    return FrozenError(f"the lock file lacks {len(named)} {what}: {'; '.join(named[:_NAMED])}{more}. "
                       "Run once without --frozen and commit the lock file")


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


def _losing(assignment: Assignment, arch: Arch, timings: Timings, used: Timings, settled: dict[int, Comparison],
            refusals: list[Refusal]) -> set[int]:
    """Ids of the candidates of regions that lose, and of those that a winning region is faster without, each recorded with both times.

    All comparisons are noted in `used`. `settled` gets the measured winners by id of the candidate: what remains of a region that lost
    some nodes is judged by the whole region's times, not by prediction.
    """
    losing: set[int] = set()
    found = regions(assignment, arch.number)
    missing = {region.description for region in found if region.key not in timings.comparisons}
    if timings.frozen and missing:
        raise _frozen(missing, "regions")
    for region in found:
        comparison = timings.comparisons.get(region.key) or _settled(region, settled) or _predicted(region, arch)
        used.comparisons[region.key] = comparison
        if not comparison.fused:
            alone = len(region.candidates) == 1
            what = "it and its conversions" if alone else f"its region of {len(region.candidates)} fused nodes and its layout changes"
            refused = {id(c): (f"{what} together", comparison) for c in region.candidates}
        else:
            refused = {id(c): ("its region with it against the region without", without)
                       for c, without in _better_without(region, timings, used)}
            settled.update({id(c): comparison for c in region.candidates if comparison.measured})
        losing |= refused.keys()
        refusals += [_slower(c, *refused[id(c)]) for c in region.candidates if id(c) in refused]
    return losing


def _settled(region: Region, settled: dict[int, Comparison]) -> Comparison | None:
    judged = [settled.get(id(c)) for c in region.candidates]
    return judged[0] if all(judged) else None


def _better_without(region: Region, timings: Timings, used: Timings) -> list[tuple[Candidate, Comparison]]:
    """The candidates of a winning region that were measured to be faster with ONNX Runtime, and the region's times with and without."""
    found: list[tuple[Candidate, Comparison]] = []
    for candidate, problem in zip(region.candidates, region.problems, strict=True):
        key = region.key_without(problem)
        if comparison := timings.comparisons.get(key):
            used.comparisons[key] = comparison
            if not comparison.fused:
                found.append((candidate, comparison))
    return found


def _slower(candidate: Candidate, what: str, comparison: Comparison) -> Refusal:
    node, word = candidate.anchor.node, "measured" if comparison.measured else "predicted"
    return Refusal(node.name, node.op, f"{word} slower than ONNX Runtime, {what}", candidate.output.name, "--fuse all",
                   {"ours_us": comparison.ours_us, "ort_us": comparison.ort_us})


def _predicted(region: Region, arch: Arch) -> Comparison:
    """Both sides predicted: a measured kernel beside a predicted ONNX Runtime would compare two yardsticks."""
    ours = sum(_fused_best(problem, arch) for problem in region.problems)
    borders = sum(_conversion_us(tensor, form, region.assignment, arch) for tensor, form in region.conversions)
    theirs = sum(ort_us(problem_of(c, None), arch) for c in region.candidates)
    return Comparison(ours + borders, 0.0, theirs, 0.0, measured=False, region=region.description)


def _fused_best(problem: Problem, arch: Arch) -> float:
    return min(fused_us(problem, config, arch) for config in _candidates(problem, arch))


def _conversion_us(tensor: gs.Tensor, form: Form, assignment: Assignment, arch: Arch) -> float:
    """A layout change or padding; a tensor of one pixel per channel is only relabelled by a Transpose."""
    count = elements(tensor.shape)
    shape = tensor.shape or ()
    relabel = form.channels is None and assignment.form(tensor).channels is None and all(d == 1 for d in shape[2:])
    return 0.0 if relabel else transpose_us(count, DType.of(tensor.dtype) or DType.F32, arch)
