"""Which neighbouring layers one kernel computes: b2b GEMMs and convolutions (Bolt, section 3.1.1).

A layer is a product with its epilogue; a chain is a sequence of layers, each of which reads the
result of the one before. A cut ends a kernel between two layers. One kernel for several layers
saves launches and the bytes between them, but has to keep more weights and results on the SM.
Dynamic programming finds the cheapest cuts: from each layer on, one kernel for some layers and the
cheapest cuts of the rest.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import NamedTuple

import onnx_graphsurgeon as gs

from onnxbolt.archs import ARCHS, get
from onnxbolt.candidates import Candidate, Refusal
from onnxbolt.epilogues import STORE, has_inner_residual
from onnxbolt.families import shortage
from onnxbolt.layout.assign import assign, x_form
from onnxbolt.layout.assignment import Assignment, Premises
from onnxbolt.match.matcher import UNKNOWN, match
from onnxbolt.match.partition import partition
from onnxbolt.measurements.timings import NOTHING, Choice, Cut, Timings
from onnxbolt.plan import code_ends, gates, global_average, residuals
from onnxbolt.plan.conversions import padding_us
from onnxbolt.plan.cost import supports
from onnxbolt.plan.kernel_times import KernelTimes
from onnxbolt.plan.mergers import Mergers, measurable, until, where_faster
from onnxbolt.plan.multi_use import multi_use_refusals
from onnxbolt.plan.problems import chain_key, problem_of
from onnxbolt.plan.ranges import AS_IS, Point
from onnxbolt.problems import Problem

_APART = "merging it with the previous layer {} to be slower"
_APART_STORED = (
    "merging it with the previous layer, whose result is also stored for other consumers,"
    " {} to be slower"
)
_DECIDED = "not merged with the previous layer, as decided before"
_NO_KERNEL = "no kernel merges it with the previous layer at these widths"
_ONE_RESIDUAL = "no kernel merges it with the previous layer and adds the residuals of both"
# in the order in which they are decided
_MERGERS: tuple[Mergers, ...] = (global_average.mergers, gates.mergers, code_ends.mergers)


class Disjoint(NamedTuple):
    """Candidates that share no node; those of them that were shortened, since another candidate has
    the nodes behind; and why other nodes begin no candidate."""

    candidates: list[Candidate]
    shortened: list[Candidate]
    refusals: list[Refusal]


class Cover(NamedTuple):
    """The kernels of a graph as candidates that share no node.

    `refusals` say why other nodes are not fused, or not with the layer before them. `cuts` are the
    decisions, and `choices` the measured times that they follow from, both as `Timings` hold them.
    """

    candidates: list[Candidate]
    refusals: list[Refusal]
    cuts: dict[str, Cut]
    choices: dict[tuple[Problem, int], Choice]


def cover(
    graph: gs.Graph, archs: Sequence[int], at: Point = AS_IS, timings: Timings = NOTHING
) -> Cover:
    """The cheapest cover: by measured times if `timings` have them, otherwise by predicted ones.
    Cuts in `timings` are kept.

    A kernel for several products has to exist for all of `archs`. Raises FrozenError if `timings`
    are frozen and lack a cut.
    """
    matched, unmatched = match(graph, several=True)
    candidates, added = residuals.settled(matched, archs, at, timings)
    chains = _Chains(graph, candidates, archs, at, timings)
    found, shortened, unknown = chains.disjoint()
    behind = [
        refusal
        for candidate in found
        if candidate not in shortened and (refusal := chains.cut_behind(candidate)) is not None
    ]
    said = {refusal.node for refusal in behind}
    taken = {node.name for candidate in found for node in candidate.nodes if node.name}
    merged = chains.layered(found)
    apart, decided = list[Refusal](), {**added, **chains.cuts}
    for mergers in _MERGERS:
        found_mergers = mergers(graph, merged, archs, at)
        merged, refused, cuts = where_faster(merged, found_mergers, archs, at, timings)
        apart += refused
        decided |= cuts
    refusals = [
        # not those of nodes that one candidate leaves out and another one has
        *(refusal for refusal in (*unmatched, *unknown) if refusal.node not in taken),
        *behind,
        *(
            refusal
            for refusal in multi_use_refusals(graph, found, archs, at)
            if refusal.node not in said
        ),
        *apart,
    ]
    return Cover(merged, refusals, decided, chains.measured())


def cover_as(graph: gs.Graph, archs: Sequence[int], ends: Container[str]) -> list[Candidate]:
    """The disjoint candidates of another plan, given the names `ends` of their outputs; layers of a
    chain that has none of these names have a kernel each."""
    candidates = residuals.settled_as(match(graph, several=True)[0], ends)
    chains = _Chains(graph, candidates, archs, AS_IS, NOTHING)
    merged = chains.layered(partition(list(chains.kernels_until(ends))))
    for mergers in _MERGERS:
        merged = until(merged, mergers(graph, merged, archs, AS_IS), ends)
    return merged


def segments(graph: gs.Graph, archs: Sequence[int], at: Point = AS_IS) -> list[Problem]:
    """The problems, as stored, of all kernels that a cover may have, each as often as the graph has
    it: of every segment of every chain, of convolutions with and without the global average pooling
    behind them, of products and normalizations with and without the residual between them, and of
    products that are multiplied with one another, together and apart."""
    matched = match(graph, several=True)[0]
    chains = _Chains(
        graph, residuals.settled(matched, archs, at, NOTHING).candidates, archs, at, NOTHING
    )
    disjoint = chains.layered(chains.disjoint().candidates)
    return [
        *chains.problems.values(),
        *(
            problem
            for mergers in _MERGERS
            for problem in measurable(mergers(graph, disjoint, archs, at), archs, at)
        ),
        *residuals.measurable(matched, at),
    ]


class _Chains:
    """Cheapest cuts, found from the end of each chain and remembered by a layer's product.

    Each product of a chain begins a candidate, too; so what a cut leaves over is a candidate.
    """

    def __init__(
        self,
        graph: gs.Graph,
        candidates: Sequence[Candidate],
        archs: Sequence[int],
        at: Point,
        timings: Timings,
    ) -> None:
        self.starting = {candidate.anchor.node: candidate for candidate in candidates}
        self._archs, self._at, self._timings = archs, at, timings
        # products of layers behind other layers
        self._further = {node for c in candidates for node in c.products}
        self._forms = _forms_apart(graph, candidates, archs)
        self._known: dict[gs.Node, tuple[float, Candidate | None]] = {}
        # by candidate of `_starting`; a key includes that of the candidate behind
        self._keys: dict[Candidate, str] = {}
        self.problems = self._segments()
        self._times = [KernelTimes(self.problems.values(), arch, timings) for arch in archs]
        self.cuts: dict[str, Cut] = {}

    def disjoint(self) -> Disjoint:
        """The kernels of the cheapest cover. If a kernel is shortened, the products behind it begin
        kernels of their own."""
        kernels, refusals = self._first_kernels()
        whole = kernels
        found = partition(kernels)
        while again := self._restarted(kernels, found):
            kernels = [*found, *again]
            whole, found = whole + again, partition(kernels)
        shortened = [candidate for candidate in found if candidate not in whole]
        return Disjoint(found, shortened, refusals)

    def layered(self, kernels: Sequence[Candidate]) -> list[Candidate]:
        """The kernels, those for several layers with each of these as a candidate."""
        return [dataclasses.replace(c, layers=layers_of(c, self.starting)) for c in kernels]

    def _restarted(
        self, kernels: Sequence[Candidate], found: Sequence[Candidate]
    ) -> list[Candidate]:
        """Kernels that begin with those products of `kernels` that `found` does not have."""
        covered = {node for candidate in found for node in candidate.nodes}
        products = dict.fromkeys(node for kernel in kernels for node in kernel.products)
        chains = [
            self.starting[node]
            for node in products
            if node not in covered and node in self.starting
        ]
        return [kernel for chain in chains if (kernel := self._first_kernel(chain)) is not None]

    def _first_kernels(self) -> tuple[list[Candidate], list[Refusal]]:
        """The first kernel of each chain, and why a node begins none."""
        kernels, refusals = list[Candidate](), list[Refusal]()
        inside: set[gs.Node] = set()
        for node, candidate in self.starting.items():
            if node in inside:
                continue
            first = self._first_kernel(candidate)
            if first is None:
                refusals.append(Refusal(node.name, node.op, UNKNOWN, node.outputs[0].name))
                continue
            inside.update(first.products)
            kernels.append(first)
        return kernels, refusals

    def kernels_until(self, ends: Container[str]) -> Iterator[Candidate]:
        """The first kernel of each chain, up to the first of its results in `ends`; its first layer
        if none is."""
        inside: set[gs.Node] = set()
        for node, candidate in self.starting.items():
            if node in inside:
                continue
            shorter = map(candidate.ending, candidate.whole_nodes)
            until = (kernel for kernel in shorter if kernel and kernel.output.name in ends)
            if (kernel := next(until, _first_layer(candidate))) is not None:
                inside.update(kernel.products)
                yield kernel

    def _first_kernel(self, candidate: Candidate) -> Candidate | None:
        """The first kernel of a chain: by an earlier decision, otherwise the cheapest one. None if
        none of its results is a tensor of the source model."""
        ends = candidate.ends
        if len(ends) == 1:
            return candidate.prefix(ends[0])
        key = self._key(candidate)
        decides = f"how many layers of {self._describe(candidate)} one kernel computes"
        if (known := self._timings.cut(key, len(ends), decides)) is not None:
            first = candidate.prefix(ends[known.layers - 1])
        else:
            first = self.best(candidate)[1]
        if first is not None:
            self.cuts[key] = Cut(len(first.widths), self._describe(candidate))
        return first

    def best(self, candidate: Candidate) -> tuple[float, Candidate | None]:
        """The microseconds of the rest of the chain from this candidate on, and the layers that its
        first kernel computes.

        Without any cover these are its first layer and infinity; None instead of the layer if its
        result is no tensor of the source model.
        """
        node = candidate.anchor.node
        if node not in self._known:
            # from the end and not by recursion, whose depth is limited: chains may be long
            for each in reversed(list(self._unknown(candidate))):
                self._known[each.anchor.node] = min(
                    (self._ending(each, end) for end in each.ends), key=lambda found: found[0]
                )
        return self._known[node]  # the shortest of equally fast ones

    def _unknown(self, candidate: Candidate) -> Iterator[Candidate]:
        return itertools.takewhile(
            lambda each: each.anchor.node not in self._known, self._from(candidate)
        )

    def cut_behind(self, candidate: Candidate) -> Refusal | None:
        """Why the layer behind a candidate is not in its kernel, with the times together and apart
        if there is a kernel for both; None if there is no such layer."""
        whole = self.starting[candidate.anchor.node]
        if len(candidate.widths) == len(whole.widths):
            return None
        end, *later = whole.ends[len(candidate.widths) - 1 :]
        apart = self._ending(whole, end)[0]
        together, longer = min(
            ((self._ending(whole, longer)[0], longer) for longer in later),
            key=lambda found: found[0],
        )
        product, stores = whole.links[end].nodes[0], STORE in whole.steps
        if math.isinf(together) and stores:
            return None  # see multi_use_refusals
        if math.isinf(together):
            return Refusal(
                product.name,
                product.op,
                self._why_none(whole, len(candidate.widths) + 1),
                candidate.output.name,
                apart=True,
            )
        measured = all(
            self._is_measured(kernel)
            for kernel in (candidate, whole.prefix(longer))
            if kernel is not None
        )
        slower = _APART_STORED if stores else _APART
        reason = (
            slower.format("was measured" if measured else "is predicted")
            if apart <= together
            else _DECIDED
        )
        values = {"together_us": together, "apart_us": apart}
        return Refusal(
            product.name, product.op, reason, candidate.output.name, values=values, apart=True
        )

    def measured(self) -> dict[tuple[Problem, int], Choice]:
        """The measured choices for kernels that a cover may have, by problem and architecture."""
        choices = {
            (problem, arch): self._timings.choice(problem, arch)
            for problem in self.problems.values()
            for arch in self._archs
        }
        return {
            key: choice for key, choice in choices.items() if choice is not None and choice.measured
        }

    def _why_none(self, whole: Candidate, layers: int) -> str:
        """Why no kernel computes the first `layers` of a chain, and, if known, what a thread block
        lacks for it."""
        joint = whole.prefix(whole.ends[layers - 1])
        if joint is not None and has_inner_residual(joint.steps) and self._takes_more(joint):
            return _ONE_RESIDUAL
        lacking = "" if joint is None else self._lacking(joint)
        return f"{_NO_KERNEL}: {_columns(whole, layers)}{lacking}"

    def _lacking(self, joint: Candidate) -> str:
        """The resource that a thread block lacks on the first architecture without a kernel, in
        parentheses; empty if that is not known."""
        problem = self._problem(joint)
        texts = (shortage(problem, get(number)) for number in self._archs)
        return next((f" ({text})" for text in texts if text), "")

    def _ending(self, candidate: Candidate, end: int) -> tuple[float, Candidate | None]:
        """The time of the chain, and its first kernel, if that ends before the link at `end`;
        infinite if it cannot end there."""
        first = candidate.prefix(end)
        if first is None:
            return math.inf, None
        rest = self._behind(first)
        if rest is not None:
            return self._one_kernel_us(first) + self.best(rest)[0], first
        return (self._one_kernel_us(first) if end == len(candidate.links) else math.inf), first

    def _behind(self, candidate: Candidate) -> Candidate | None:
        """The candidate that begins with the product that reads this one's result, if one kernel
        might compute it with the layer before; None at the end of a chain. It may exist behind a
        candidate that already has as many layers as a kernel can have."""
        readers = [reader for reader in candidate.output.outputs if reader in self._further]
        # a stored result has at most one reader that continues the chain
        rest = self.starting.get(readers[0]) if readers else None
        return rest if rest is not None and rest.anchor.x is candidate.output else None

    def _one_kernel_us(self, candidate: Candidate) -> float:
        """Microseconds of one kernel, summed over the architectures; infinite if one of them has
        no kernel, or if the last product alone could take more steps of its epilogue."""
        if self._takes_more(candidate):
            return math.inf
        problem = self._problem(candidate)
        padding = (
            0.0
            if self._forms is None
            else padding_us(candidate, self._forms, self._archs, self._at)
        )
        return sum(times.us(problem) for times in self._times) + padding

    def _takes_more(self, candidate: Candidate) -> bool:
        """True if the last product's own kernel would compute more steps behind it."""
        if len(candidate.widths) == 1:
            return False
        alone = _first_layer(self.starting.get(candidate.products[-1]))
        return alone is not None and alone.output is not candidate.output

    def _is_measured(self, candidate: Candidate) -> bool:
        return all(times.is_measured(self._problem(candidate)) for times in self._times)

    def _problem(self, candidate: Candidate) -> Problem:
        """The problem with tensors stored as separate kernels for the layers store them; x as a
        kernel for these layers reads it."""
        node, forms = candidate.anchor.node, self._forms
        if forms is None or node not in forms.fused_reads:
            return problem_of(candidate, None, self._at)
        if len(candidate.widths) > 1:
            forms = dataclasses.replace(forms, fused_reads={node: x_form(forms, candidate)})
        return problem_of(candidate, forms, self._at)

    def _segments(self) -> dict[tuple[gs.Node, int], Problem]:
        """The problems of all segments of chains of several layers, by first product and end."""
        found = {}
        for node, candidate in self.starting.items():
            for end in candidate.ends if node in self._further or len(candidate.widths) > 1 else ():
                kernel = candidate.prefix(end)
                if kernel is not None and not self._takes_more(kernel):
                    found[node, end] = self._problem(kernel)
        return {
            place: problem
            for place, problem in found.items()
            if all(supports(problem, arch) for arch in self._archs)
        }

    def _key(self, candidate: Candidate) -> str:
        """The key of the cut behind a candidate: a digest of all that decides it."""
        key, unknown = "", []
        for each in self._from(candidate):
            if each in self._keys:
                key = self._keys[each]
                break
            unknown.append(each)
        for each in reversed(unknown):
            key = self._keys[each] = chain_key(self._problem(each), self._archs, key)
        return key

    def _from(self, candidate: Candidate | None) -> Iterator[Candidate]:
        """The candidate, and the candidates that begin with the layers behind its first one."""
        while candidate is not None:
            yield candidate
            layer = _first_layer(candidate)
            candidate = layer and self._behind(layer)

    def _describe(self, candidate: Candidate) -> str:
        return self._problem(candidate).description


def _forms_apart(
    graph: gs.Graph, candidates: Sequence[Candidate], archs: Sequence[int]
) -> Assignment | None:
    """The forms of tensors if each layer has a kernel of its own; None if there are no chains of
    several layers."""
    if all(len(candidate.widths) == 1 for candidate in candidates):
        return None
    layers = [layer for candidate in candidates if (layer := _first_layer(candidate)) is not None]
    premises = Premises(archs=tuple(ARCHS[number] for number in archs))
    return assign(graph, partition(layers), premises)


def layers_of(candidate: Candidate, starting: Mapping[gs.Node, Candidate]) -> tuple[Candidate, ...]:
    """The layers of a candidate as candidates, from those `starting` at each node; empty if it has
    only one, or if a layer by itself would end before or behind the input of the next one."""
    nodes = [candidate.anchor.node, *candidate.products]
    found = [layer for node in nodes if (layer := _first_layer(starting.get(node))) is not None]
    ends = [*(node.inputs[0] for node in nodes[1:]), candidate.output]
    complete = len(found) == len(nodes) > 1 and all(
        layer.output is end for layer, end in zip(found, ends, strict=True)
    )
    return tuple(found) if complete else ()


def _columns(candidate: Candidate, layers: int) -> str:
    """Depth and columns of its first layers in words: '64 to 256 to 256'."""
    anchor = candidate.anchor
    first = int(anchor.weight.shape[anchor.op.weight_axes[1]])
    return " to ".join(map(str, (first, *candidate.widths[:layers])))


def _first_layer(candidate: Candidate | None) -> Candidate | None:
    return candidate and candidate.prefix(candidate.ends[0])
