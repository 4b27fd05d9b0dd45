"""Plans a graph twice, greedily and by dynamic programming, and takes the faster plan.

The greedy plan decides one thing after another: which kernel adds a residual, where chains are cut,
which of two kernels that share a node gets it, and which regions are fused. Dynamic programming
(plan/schedule.py) decides all of that at once for each scope of the graph (plan/phases.py). Where
it finds less time than the greedy plan's kernels take, these are replaced, and the whole is planned
again, since layouts of neighbours may follow. Both plans are then compared by one measure
(`_us`), so that the plan is never slower than the greedy one by what is known.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence

import onnx_graphsurgeon as gs

from onnxbolt.candidates import Refusal
from onnxbolt.measurements.timings import NOTHING, Scheduled, Timings, lacking
from onnxbolt.plan.choose import Plan, Totals, plan
from onnxbolt.plan.cuts import Cover, cover
from onnxbolt.plan.phases import Option, Phases, Scope, identity
from onnxbolt.plan.ranges import FIXED, Ranges
from onnxbolt.plan.schedule import cheapest

# A scope is planned otherwise than greedily if that saves at least this part of its time: less is
# no gain that anyone could measure, but other kernels to compile.
_GAIN = 0.005
_LEFT = "predicted slower than ONNX Runtime, planned together with its neighbours"
Schedules = Mapping[Scope, tuple[int, ...]]


def planned(
    graph: gs.Graph,
    archs: Sequence[int],
    fuse: str,
    timings: Timings = NOTHING,
    ranges: Ranges = FIXED,
) -> Plan:
    """The better of both plans for all of `archs` together; `fuse` is "winning" or "all".

    Decisions in `timings` are kept. Raises FrozenError if `timings` are frozen and lack one.
    """
    planner = _Planner(graph, archs, fuse, timings, ranges)
    decided = timings.schedules
    if decided is None and not timings.frozen and not timings.cuts:
        return planner.better()
    # cuts alone are an earlier plan without schedules
    return planner.again(decided or {})


class _Planner:
    """Makes plans of one graph with the same timings."""

    def __init__(
        self, graph: gs.Graph, archs: Sequence[int], fuse: str, timings: Timings, ranges: Ranges
    ) -> None:
        self._graph, self._archs, self._fuse, self._timings, self._ranges = (
            graph,
            archs,
            fuse,
            timings,
            ranges,
        )
        self._cover = cover(graph, archs, ranges.opt, timings)

    def better(self) -> Plan:
        """The plan that takes less time, with the totals of both."""
        phases, greedy = self._phases(), self._plan({})
        best, least = greedy, (greedy_us := _us(phases, greedy))
        losses = _measured_losses(greedy)
        for schedules in self._tried(phases, greedy):
            dynamic = self._plan(schedules)
            us = _us(phases, dynamic)
            if us < least and _measured_losses(dynamic) <= losses:
                best, least = dynamic, us
        totals = Totals(
            least,
            greedy_us,
            len(phases.scopes),
            len({scope.work(leave=True) for scope in phases.scopes}),
            len(best.used.schedules or ()),
        )
        greedily = {scope.key: Scheduled((), scope.words) for scope in phases.scopes}
        used = dataclasses.replace(best.used, schedules={**greedily, **(best.used.schedules or {})})
        return dataclasses.replace(best, used=used, totals=totals)

    def _tried(self, phases: Phases, greedy: Plan) -> Iterator[Schedules]:
        """Schedules that take less time than the greedy plan: with nodes left to ONNX Runtime
        where both sides are predicted, and with as many kernels as possible."""
        measured = self._timings.choices or self._timings.comparisons
        found = list[Schedules]()
        for leave in (False,) if measured or self._fuse == "all" else (True, False):
            schedules = dict(_better(phases, greedy, leave))
            if schedules and schedules not in found:
                found.append(schedules)
                yield schedules

    def again(self, decided: dict[str, Scheduled]) -> Plan:
        """The plan with earlier decisions, by the keys of scopes; others are planned greedily."""
        otherwise = {key: each for key, each in decided.items() if each.phases}
        again = self._plan(_as_decided(self._phases(), otherwise) if otherwise else {})
        return dataclasses.replace(again, used=dataclasses.replace(again.used, schedules=decided))

    def _phases(self) -> Phases:
        return Phases(self._graph, self._archs, self._ranges.opt, self._timings)

    def _plan(self, schedules: Schedules) -> Plan:
        """The plan with these phases in their scopes, and the greedy one's kernels in others."""
        kernels = _replaced(self._graph, self._cover, schedules)
        chosen = plan(
            self._graph, kernels.candidates, self._archs, self._fuse, self._timings, self._ranges
        )
        used = dataclasses.replace(
            chosen.used,
            choices={**kernels.choices, **chosen.used.choices},
            cuts=kernels.cuts,
            schedules={
                scope.key: Scheduled(phases, scope.words) for scope, phases in schedules.items()
            },
        )
        return dataclasses.replace(
            chosen, refusals=[*kernels.refusals, *chosen.refusals], used=used
        )


def _better(phases: Phases, greedy: Plan, leave: bool) -> Iterator[tuple[Scope, tuple[int, ...]]]:
    """The scopes that are faster otherwise, each with its phases."""
    kernels = {identity(candidate): candidate for candidate in greedy.candidates}
    for scope in phases.scopes:
        own = {key for key, kernel in kernels.items() if not scope.within.isdisjoint(kernel.nodes)}
        if not own <= scope.kernels:
            continue  # a kernel that layouts demand, which is none of the options
        before, after = cheapest(scope.work_with(own)), cheapest(scope.work(leave))
        if not leave and any(scope.options[phase].leaves for phase in before.phases):
            continue  # ONNX Runtime was faster; its time is no measured one here
        if after.us < before.us * (1 - _GAIN) < math.inf:
            yield scope, after.phases


def _as_decided(phases: Phases, decided: Mapping[str, Scheduled]) -> Schedules:
    """The phases of scopes as an earlier run decided. Raises FrozenError if they are not phases of
    these scopes."""
    found = {scope: decided[scope.key].phases for scope in phases.scopes if scope.key in decided}
    for scope, numbers in found.items():
        if not scope.is_computed_by(numbers):
            raise lacking(f"phases of {scope.words} that compute each node once")
    return found


def _replaced(graph: gs.Graph, found: Cover, schedules: Schedules) -> Cover:
    """The cover with the kernels of these phases, in the graph's order."""
    nodes = {node for scope in schedules for node in scope.nodes}
    options = [(scope, scope.options[i]) for scope, ours in schedules.items() for i in ours]
    kernels = [option.kernel for _, option in options if option.kernel is not None]
    places = {node: place for place, node in enumerate(graph.nodes)}
    candidates = sorted(
        (*(c for c in found.candidates if nodes.isdisjoint(c.nodes)), *kernels),
        key=lambda candidate: places[candidate.anchor.node],
    )
    inside = {node.name for kernel in kernels for node in kernel.nodes}
    refusals = [refusal for refusal in found.refusals if refusal.node not in inside]
    left = (_left(scope, option) for scope, option in options if option.kernel is None)
    refusals += (refusal for refusal in left if refusal is not None)
    return found._replace(candidates=candidates, refusals=refusals)


def _left(scope: Scope, option: Option) -> Refusal | None:
    """The refusal of nodes that a kernel could compute by itself; None if there is none."""
    node = option.nodes[0]
    for ours in scope.options:
        if ours.kernel is not None and ours.nodes == option.nodes:
            values = {"ours_us": min(ours.us), "ort_us": min(option.us)}
            tensor = ours.kernel.output.name
            return Refusal(node.name, node.op, _LEFT, tensor, "--fuse all", values)
    return None


def _measured_losses(chosen: Plan) -> set[str]:
    """The keys of regions that were measured to be slower than ONNX Runtime."""
    comparisons = chosen.used.comparisons
    return {key for key, known in comparisons.items() if known.measured and not known.fused}


def _us(phases: Phases, chosen: Plan) -> float:
    """Microseconds of a plan, summed over the architectures: kernels, layout conversions, and what
    ONNX Runtime computes of the scopes' nodes."""
    done = {node for candidate in chosen.candidates for node in candidate.nodes}
    kernels = sum(map(phases.kernel_us, chosen.problems.values()))
    left = sum(cheapest(scope.left_work(done)).us for scope in phases.scopes)
    return kernels + left + phases.conversions_us(chosen.assignment)
