"""Regions: sets of fused nodes that share their layout conversions. A region is fused or left to
ONNX Runtime as a whole, or in parts that were measured."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256

import onnx_graphsurgeon as gs

from onnxbolt.candidates import Candidate
from onnxbolt.forms import Form
from onnxbolt.graph.edit import producer
from onnxbolt.layout.assignment import Assignment
from onnxbolt.measurements.keys import canonical, plain
from onnxbolt.plan.problems import problem_of
from onnxbolt.plan.ranges import AS_IS, Point
from onnxbolt.problems import Problem


@dataclass(frozen=True)
class Part:
    """A way to fuse a region in part: the candidates of one problem, or all on one side of a cut,
    are left to ONNX Runtime."""

    kind: str  # fused are all "without" one problem, the "first" or the "last" candidates
    left_out: tuple[int, ...]  # positions among the region's candidates
    cut: int = 0  # position of the first candidate behind the cut; 0: there is no cut


@dataclass(frozen=True)
class Region:
    """Fused nodes, the layout-preserving nodes between them (`carried`), and the layout conversions
    of their inputs and outputs; all at one point."""

    assignment: Assignment
    arch: int
    at: Point = AS_IS
    candidates: list[Candidate] = field(default_factory=list)
    carried: list[gs.Node] = field(default_factory=list)
    conversions: list[tuple[gs.Tensor, Form]] = field(default_factory=list)

    @cached_property
    def problems(self) -> list[Problem]:
        """The problems of its kernels, as stored."""
        return [problem_of(c, self.assignment, self.at) for c in self.candidates]

    @cached_property
    def key(self) -> str:
        """A digest of all that its time depends on, without names: the same region in another model
        has the same key."""
        between = [[node.op, self.at.shape(node.outputs[0])] for node in self.carried]
        conversions = [
            [
                self.at.shape(tensor),
                str(tensor.dtype),
                plain(self.assignment.form(tensor)),
                plain(form),
            ]
            for tensor, form in self.conversions
        ]
        parts = (self._texts, map(canonical, between), map(canonical, conversions))
        text = canonical([self.arch, *map(sorted, parts)])
        return sha256(text.encode()).hexdigest()[:32]

    @cached_property
    def parts(self) -> list[Part]:
        """Every way to fuse it in part that may be measured; none if it has a single problem."""
        problems, count = self.problems, len(self.candidates)
        if len(set(problems)) < 2:
            return []
        places = defaultdict[Problem, list[int]](list)
        for i, problem in enumerate(problems):
            places[problem].append(i)
        cuts = range(1, count)
        return [
            *(Part("without", tuple(left_out)) for left_out in places.values()),
            *(Part("first", tuple(range(cut, count)), cut) for cut in cuts),
            *(Part("last", tuple(range(cut)), cut) for cut in cuts),
        ]

    def key_of(self, part: Part) -> str:
        """The key of fusing this region in part, without names like its own key."""
        left_out = sorted(self._texts[i] for i in part.left_out)
        return sha256(canonical([self.key, part.kind, left_out]).encode()).hexdigest()[:32]

    def crossing(self, cut: int) -> list[gs.Tensor]:
        """The tensors that candidates from position `cut` on, and the nodes carried with them, read
        from those before."""
        places = self._places
        found = {}
        for node in self._nodes:
            for tensor in node.inputs:
                source = producer(tensor)
                if source is not None and places.get(source, cut) < cut <= places[node]:
                    found[tensor.name] = tensor
        return list(found.values())

    def place(self, tensor: gs.Tensor) -> int:
        """The position of the candidate that writes `tensor`, otherwise of the first one that reads
        it; a carried node counts with the candidate that it reads from."""
        places, source = self._places, producer(tensor)
        if source is not None and source in places:
            return places[source]
        return min((places[node] for node in tensor.outputs if node in places), default=0)

    @cached_property
    def _texts(self) -> list[str]:
        texts = {
            problem: canonical([type(problem).__name__, plain(problem)])
            for problem in set(self.problems)
        }
        return [texts[problem] for problem in self.problems]

    @cached_property
    def _places(self) -> dict[gs.Node, int]:
        """The position of each node's candidate; for a carried node the last position that it reads
        from."""
        found = {node: i for i, candidate in enumerate(self.candidates) for node in candidate.nodes}
        for node in self.carried:
            sources = [producer(tensor) for tensor in node.inputs]
            found[node] = max(
                (found[source] for source in sources if source is not None and source in found),
                default=0,
            )
        return found

    @property
    def _nodes(self) -> list[gs.Node]:
        return [*(node for candidate in self.candidates for node in candidate.nodes), *self.carried]

    @property
    def description(self) -> str:
        """The region in words, for messages and lock files."""
        return f"sm_{self.arch} {self.words}"

    @property
    def words(self) -> str:
        """The description without the architecture."""
        first, count = self.problems[0].description, len(self.candidates)
        return first if count == 1 else f"{count} fused nodes from {first}"


def regions(assignment: Assignment, arch: int, at: Point = AS_IS) -> list[Region]:
    """Maximal connected sets of fused convolutions in channels-last form; each GEMM by itself."""
    groups = Groups()
    for candidate in assignment.candidates:
        for tensor in candidate.outputs:
            groups.join(_tensor(tensor), ("candidate", candidate))
        if candidate.anchor.op.channels_last:
            for tensor in (candidate.anchor.x, *candidate.tensors):
                if assignment.form(tensor).last:
                    groups.join(_tensor(tensor), ("candidate", candidate))
    for node, carry in assignment.carries.items():
        ends = [t for t in (*node.inputs, *node.outputs) if assignment.form(t).last]
        for tensor in ends[1:] if carry.writes[0].last else ():
            groups.join(_tensor(ends[0]), _tensor(tensor))
    found: dict[object, Region] = {}
    for candidate in assignment.candidates:
        found.setdefault(
            groups.root(("candidate", candidate)), Region(assignment, arch, at)
        ).candidates.append(candidate)
    for node in assignment.carries:
        if (root := groups.root(_tensor(node.outputs[0]))) in found:
            found[root].carried.append(node)
    for (name, form), tensor in assignment.conversions.items():
        for root in {groups.root(end) for end in _ends(assignment, tensor, form, name)}:
            if root in found:
                found[root].conversions.append((tensor, form))
    return list(found.values())


def _ends(
    assignment: Assignment, tensor: gs.Tensor, form: Form, name: str
) -> list[tuple[str, object]]:
    """Members of the regions that a conversion belongs to: the tensor if it is stored in NHWC,
    otherwise the candidates that read it."""
    if assignment.form(tensor).last:
        return [("tensor", name)]
    readers = [
        c
        for c in assignment.candidates
        if c.anchor.x is tensor or any(link.operand is tensor for link in c.links)
    ]
    return [("candidate", c) for c in readers]


def _tensor(tensor: gs.Tensor) -> tuple[str, object]:
    return ("tensor", tensor.name)


class Groups:
    """Disjoint sets of items, each a word and what it tells apart."""

    def __init__(self) -> None:
        self._parent: dict[tuple[str, object], tuple[str, object]] = {}

    def root(self, item: tuple[str, object]) -> tuple[str, object]:
        while (parent := self._parent.setdefault(item, item)) != item:
            self._parent[item] = self._parent[parent]  # shortens the path of later calls
            item = parent
        return item

    def join(self, one: tuple[str, object], other: tuple[str, object]) -> None:
        self._parent[self.root(one)] = self.root(other)
