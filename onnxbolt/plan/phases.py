"""The phases in which the nodes of a graph can be computed, for plan/schedule.py: kernels of ours,
and nodes that are left to ONNX Runtime.

A kernel computes an anchor with its epilogue, up to a place at which another kernel could begin: a
further product of a chain, a node that another kernel could compute as well (the addition of a
residual, which either of two products or the normalization behind takes), or the end; with and
without a global average pooling behind, or the codes of its result. A scope has the nodes whose
phases depend on each other: they share nodes, or tensors with channels last.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import NamedTuple

import onnx_graphsurgeon as gs

from onnxbolt.archs import get
from onnxbolt.candidates import Candidate
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import MEAN, PRODUCT
from onnxbolt.forms import PLAIN, Form
from onnxbolt.graph.edit import producer
from onnxbolt.layout.assign import assign, forms_of
from onnxbolt.layout.assignment import Assignment, Premises
from onnxbolt.match.matcher import match
from onnxbolt.match.partition import partition
from onnxbolt.measurements.keys import canonical
from onnxbolt.measurements.timings import Timings
from onnxbolt.ops.base import Stored
from onnxbolt.plan.code_ends import with_codes
from onnxbolt.plan.conversions import conversion_us, laid_out
from onnxbolt.plan.cost import ort_us, supports
from onnxbolt.plan.cuts import layers_of
from onnxbolt.plan.global_average import with_pooling
from onnxbolt.plan.kernel_times import KernelTimes
from onnxbolt.plan.node_times import node_us
from onnxbolt.plan.problems import chain_key, problem_of
from onnxbolt.plan.ranges import Point
from onnxbolt.plan.regions import Groups, Region, regions
from onnxbolt.plan.schedule import Edge, Phase, Work
from onnxbolt.problems import Problem

Nodes = tuple[gs.Node, ...]
Identity = tuple[gs.Node, str, str]
_NEVER = math.inf, math.inf


def identity(kernel: Candidate) -> Identity:
    """Equal for candidates of two matchings of one graph that are the same kernel."""
    return kernel.anchor.node, kernel.output.name, kernel.rule


@dataclass(frozen=True, eq=False)
class Option:
    """A phase: `nodes`, the microseconds in both layouts as `Phase` has them, the kernel that
    computes them (None: ONNX Runtime), and a digest of its problem for keys. `leaves`: a kernel
    could compute these nodes."""

    nodes: Nodes
    us: tuple[float, float]
    kernel: Candidate | None = None
    text: str = ""
    leaves: bool = False

    def is_one_of(self, kernels: Container[Identity]) -> bool:
        """True for a kernel that is in `kernels`."""
        return self.kernel is not None and identity(self.kernel) in kernels


@dataclass(frozen=True, eq=False)
class Scope:
    """Nodes whose phases depend on each other, in the graph's order, and their options, which
    `work` has in the same order."""

    nodes: Nodes
    options: tuple[Option, ...]
    edges: tuple[Edge, ...]

    def work(self, leave: bool) -> Work:
        """All options, with `leave` also those that leave to ONNX Runtime what a kernel could
        compute."""
        return self._work(
            dataclasses.replace(option, us=_NEVER) if option.leaves and not leave else option
            for option in self.options
        )

    def work_with(self, kernels: Container[Identity]) -> Work:
        """These kernels alone, and ONNX Runtime for nodes that they do not compute; infinite times
        for all else."""
        kept = [option.is_one_of(kernels) for option in self.options]
        taken = {node for i in itertools.compress(self.options, kept) for node in i.nodes}
        return self._work(
            option
            if keep or (option.kernel is None and taken.isdisjoint(option.nodes))
            else dataclasses.replace(option, us=_NEVER)
            for option, keep in zip(self.options, kept, strict=True)
        )

    @cached_property
    def kernels(self) -> frozenset[Identity]:
        """All kernels among the options."""
        return frozenset(identity(option.kernel) for option in self.options if option.kernel)

    def left_work(self, done: Container[gs.Node]) -> Work:
        """The options of ONNX Runtime for all nodes but those `done` by kernels, in its own
        layout."""
        free = (Option((node,), (0.0, 0.0)) for node in self.nodes if node in done)
        left = (
            option
            for option in self.options
            if option.kernel is None and not any(node in done for node in option.nodes)
        )
        return dataclasses.replace(self._work((*free, *left)), edges=())

    def _work(self, options: Iterable[Option]) -> Work:
        numbers = self._numbers
        phases = (
            Phase(tuple(sorted(numbers[node] for node in option.nodes)), option.us)
            for option in options
        )
        return Work(tuple(phases), self.edges)

    @cached_property
    def within(self) -> frozenset[gs.Node]:
        return frozenset(self.nodes)

    def is_computed_by(self, phases: Sequence[int]) -> bool:
        """True if the options with these numbers compute each node once."""
        if not all(number in range(len(self.options)) for number in phases):
            return False
        computed = Counter(node for number in phases for node in self.options[number].nodes)
        return computed == Counter(self.nodes)

    @property
    def words(self) -> str:
        """The scope in words, for messages and lock files."""
        kernels = [option.kernel for option in self.options if option.kernel]
        first = kernels[0].rule if kernels else self.nodes[0].op
        return f"{len(self.nodes)} nodes from {first}"

    @cached_property
    def key(self) -> str:
        """A digest of the options, without names and times: the same scope in another model has the
        same key."""
        options = [
            [sorted(self._numbers[node] for node in each.nodes), each.text] for each in self.options
        ]
        return sha256(canonical(options).encode()).hexdigest()[:32]

    @cached_property
    def _numbers(self) -> dict[gs.Node, int]:
        return {node: number for number, node in enumerate(self.nodes)}


class _Way(NamedTuple):
    """A problem that a kernel solves, whether tensors have their channels last for it, and
    microseconds of a conversion behind it."""

    problem: Problem
    last: bool
    behind_us: float


class Phases:
    """The scopes of a graph, and the times that they are planned by."""

    def __init__(self, graph: gs.Graph, archs: Sequence[int], at: Point, timings: Timings) -> None:
        self._graph, self._archs, self._at = graph, archs, at
        matched = match(graph, several=True).candidates
        self._starting = {candidate.anchor.node: candidate for candidate in matched}
        layers = [layer for c in matched if (layer := c.prefix(c.ends[0])) is not None]
        disjoint = partition(layers)
        # all layers with a kernel each, without and with results that these write as NCHW
        self._last = assign(graph, disjoint, Premises(archs=tuple(map(get, archs))))
        self._forms = laid_out(graph, disjoint, archs, at)
        self._regions = regions(self._last, archs[0], at)
        self._kernels = {
            kernel: ways for kernel in self._possible(matched) if (ways := self._ways(kernel))
        }
        problems = [way.problem for ways in self._kernels.values() for way in ways]
        self._times = [KernelTimes(problems, arch, timings) for arch in archs]
        self.scopes = self._scopes()

    def conversions_us(self, forms: Assignment) -> float:
        """Microseconds of a plan's layout conversions, summed over the architectures."""
        return sum(
            self._conversion_us(tensor, form, forms)
            for (_, form), tensor in forms.conversions.items()
        )

    def kernel_us(self, problem: Problem) -> float:
        """Microseconds of a kernel, summed over the architectures."""
        return sum(times.us(problem) for times in self._times)

    # --- kernels --------------------------------------------------------------------------------

    def _possible(self, matched: Sequence[Candidate]) -> Iterator[Candidate]:
        """Every kernel that may compute some of the nodes, each once."""
        wanted = Counter(node for candidate in matched for node in candidate.nodes)
        for candidate in matched:
            ends = {len(candidate.links)}
            if candidate.anchor.op.takes_epilogue:
                ends.update(candidate.ends)
                ends.update(
                    end
                    for end in candidate.whole_nodes[:-1]
                    if any(wanted[node] > 1 for node in candidate.links[end].nodes)
                )
            found = (candidate.ending(end) for end in sorted(ends))
            for kernel in {identity(each): each for each in found if each is not None}.values():
                whole = dataclasses.replace(kernel, layers=layers_of(kernel, self._starting))
                yield whole
                if (averaged := with_pooling(self._graph, whole)) is not None:
                    yield averaged
                if (coded := with_codes(self._graph, whole, self._starting)) is not None:
                    yield coded

    def _ways(self, kernel: Candidate) -> list[_Way]:
        """The ways in which architectures have kernels: as the result is read, and in NHWC with a
        layout conversion behind."""
        found = list[_Way]()
        for forms in (self._forms, self._last):
            reads, writes = forms_of(forms, kernel)
            alone = kernel.anchor.op.problem(kernel, self._at.sizes, Stored(reads, writes))
            plain = forms.both.get(kernel.output.name)
            problem = alone if plain is None else _with_both(alone, kernel, plain)
            if problem is not None and all(supports(problem, arch) for arch in self._archs):
                behind_us = self._left_behind(forms, kernel.output)
                found.append(_Way(problem, reads.last or writes.last, behind_us))
        return found

    def _left_behind(self, forms: Assignment, result: gs.Tensor) -> float:
        """Microseconds of making a result NCHW that kernels write so in `_forms`."""
        if forms is self._forms or (result.name, PLAIN) in self._forms.conversions:
            return 0.0
        wanted = (result.name, PLAIN) in forms.conversions
        return self._conversion_us(result, PLAIN, forms) if wanted else 0.0

    # --- scopes ---------------------------------------------------------------------------------

    def _scopes(self) -> list[Scope]:
        options = [*self._carried(), *self._ours(), *self._left()]
        groups = Groups()
        joint = [option.nodes for option in options] + [_nodes(region) for region in self._regions]
        for nodes in joint:
            for node in nodes[1:]:
                groups.join(("", nodes[0]), ("", node))
        parts = defaultdict[object, list[Option]](list)
        for option in options:
            parts[groups.root(("", option.nodes[0]))].append(option)
        places = {node: place for place, node in enumerate(self._graph.nodes)}
        return [self._scope(part, places) for part in parts.values()]

    def _scope(self, options: Sequence[Option], places: Mapping[gs.Node, int]) -> Scope:
        within = {node for option in options for node in option.nodes}
        nodes = tuple(sorted(within, key=places.__getitem__))
        numbers = {node: number for number, node in enumerate(nodes)}
        ordered = sorted(options, key=lambda o: (numbers[o.nodes[0]], len(o.nodes), o.text))
        edges = []
        for node in nodes:
            for tensor in node.outputs:
                readers = [numbers[reader] for reader in tensor.outputs if reader in within]
                if self._last.form(tensor).last and readers:
                    us = self._conversion_us(tensor, PLAIN, self._last)
                    edges.append(Edge(numbers[node], tuple(readers), us))
        return Scope(nodes, tuple(ordered), tuple(edges))

    # --- options --------------------------------------------------------------------------------

    def _ours(self) -> Iterator[Option]:
        """An option for each kernel."""
        for kernel, ways in self._kernels.items():
            us = min(self.kernel_us(way.problem) + way.behind_us for way in ways)
            us += sum(self._borders.get(node, 0.0) for node in kernel.nodes)
            in_nhwc = any(way.last for way in ways)
            plain_problem = problem_of(kernel, None, self._at)
            text = chain_key(plain_problem, self._archs)
            yield Option(kernel.nodes, (math.inf if in_nhwc else us, us), kernel, text)

    def _left(self) -> Iterator[Option]:
        """Options of ONNX Runtime: each layer as far as a kernel could compute it, and each step of
        an epilogue."""
        reachable = {node for kernel in self._kernels for node in kernel.anchor.nodes}
        steps = dict[Nodes, float]()
        for kernel in self._kernels:
            for link in kernel.links:
                if link.step.name != PRODUCT and link.nodes:
                    nodes = tuple(node for node in link.nodes if node not in reachable)
                    steps[nodes] = sum(map(self._node_us, nodes))
            if len(kernel.widths) == 1 and MEAN not in kernel.steps:
                problem = problem_of(kernel, None, self._at)
                # the correction of a single layer's prediction counts on both sides
                us = sum(
                    ort_us(problem, get(arch)) + problem.narrow_layer_us for arch in self._archs
                )
                in_nhwc = kernel.anchor.op.channels_last
                times = us, math.inf if in_nhwc else us
                yield Option(kernel.nodes, times, leaves=True)
        yield from (Option(nodes, (us, us)) for nodes, us in steps.items() if nodes)

    def _carried(self) -> Iterator[Option]:
        """Nodes that keep the layout of what they read: they take as long in both, but for
        conversions behind them. Those that no kernel could compute are the same in all plans, and
        count as nothing."""
        possible = {node for kernel in self._kernels for node in kernel.nodes}
        for region in self._regions:
            for node in region.carried:
                us = self._node_us(node) if node in possible else 0.0
                yield Option((node,), (us, us + self._borders.get(node, 0.0)))

    def _node_us(self, node: gs.Node) -> float:
        """Microseconds of a node in ONNX Runtime, summed over the architectures."""
        return sum(node_us(node, get(arch), self._at) for arch in self._archs)

    @cached_property
    def _borders(self) -> Mapping[gs.Node, float]:
        """Microseconds of the layout conversions and padding between scopes and other nodes, by the
        node that first reads the result or, for a result that leaves its layout, writes it."""
        found = defaultdict[gs.Node, float](float)
        forms, covered = self._forms, {n for region in self._regions for n in _nodes(region)}
        for (_, form), tensor in forms.conversions.items():
            leaves = forms.form(tensor).last and not form.last
            readers = (node for node in tensor.outputs if node in covered)
            node = producer(tensor) if leaves else next(readers, None)
            if node is not None:
                found[node] += self._conversion_us(tensor, form, forms)
        return found

    def _conversion_us(self, tensor: gs.Tensor, form: Form, forms: Assignment) -> float:
        """Microseconds of bringing `tensor` into `form`, summed over the architectures."""
        return sum(
            conversion_us(tensor, form, Region(forms, arch, self._at)) for arch in self._archs
        )


def _with_both(problem: Problem, kernel: Candidate, plain: gs.Tensor) -> Problem | None:
    """The problem with the result written as NCHW, too, as the last layer's own kernel does; None
    if no kernel for all layers can."""
    out = DType.of(plain.dtype)
    assert out is not None  # `outputs_in_both_layouts` has looked
    return problem.with_both_outputs(kernel.widths[-1], out)


def _nodes(region: Region) -> Nodes:
    return (*(node for c in region.candidates for node in c.nodes), *region.carried)
