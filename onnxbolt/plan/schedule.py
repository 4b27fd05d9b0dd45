"""The cheapest way to compute a scope of a graph in phases, by dynamic programming over its cut
sets (AutoGTCO, Algorithm 1).

A phase computes some nodes at once: a kernel of ours, or kernels of ONNX Runtime. A cut set is the
set of nodes that are computed; a phase leads from one to a larger one, and begins with the first
node that is not in it, so that each set of phases is tried in one order alone. A state is a cut
set and the layout of the tensors that lead out of it: between two phases of different layouts
these tensors are converted.

Nodes are numbers here, in the graph's order. Equal layers of a model are therefore equal works,
and solved once.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from onnxbolt.registry import cached

# States that are kept at each node: those that cost least so far. Chains and residuals have few;
# many branches side by side could have any number.
STATES = 256
AS_ONNX, CHANNELS_LAST = 0, 1  # layouts, as indices of `Phase.us`


@dataclass(frozen=True)
class Phase:
    """The nodes that are computed at once, in ascending order, and the microseconds for that with
    the tensors around as ONNX has them, and with channels last; infinite where that is
    impossible."""

    nodes: tuple[int, ...]
    us: tuple[float, float]


@dataclass(frozen=True)
class Edge:
    """A tensor that can lie in both layouts: the node that writes it, those that read it, and the
    microseconds of a conversion."""

    writer: int
    readers: tuple[int, ...]
    us: float


@dataclass(frozen=True)
class Work:
    """The phases that nodes can be computed in, and the tensors between them."""

    phases: tuple[Phase, ...]
    edges: tuple[Edge, ...] = ()


class Schedule(NamedTuple):
    """The microseconds of all phases and conversions, and the phases by their indices in the order
    of their first nodes."""

    us: float
    phases: tuple[int, ...]


class _State(NamedTuple):
    """Nodes that are computed beyond the first one that is not, and the layout."""

    ahead: frozenset[int]
    layout: int


@cached(maxsize=4096)
def cheapest(work: Work) -> Schedule:
    """The schedule that takes least time, of equal ones always the same. Infinite, without phases,
    if the phases cannot compute each node once."""
    count = max((phase.nodes[-1] + 1 for phase in work.phases), default=0)
    beginning = defaultdict[int, list[int]](list)
    for index, phase in enumerate(work.phases):
        beginning[phase.nodes[0]].append(index)
    reached = defaultdict[int, dict[_State, Schedule]](dict)
    reached[0][_State(frozenset(), AS_ONNX)] = Schedule(0.0, ())
    for first in range(count):
        alive = [edge for edge in work.edges if max(edge.readers) >= first]
        for state, so_far in _least(reached.pop(first, {})):
            switch = sum(edge.us for edge in alive if _leads_out(edge, first, state.ahead))
            for index in beginning[first]:
                phase = work.phases[index]
                if not state.ahead.isdisjoint(phase.nodes):
                    continue
                place, ahead = _behind(first, state.ahead, phase)
                for layout, us in _costs(phase, state.layout, switch):
                    _reach(reached[place], _State(ahead, layout), so_far, us, index)
    return min(reached[count].values(), key=lambda end: end.us, default=Schedule(math.inf, ()))


def _least(states: dict[_State, Schedule]) -> list[tuple[_State, Schedule]]:
    """The states that are gone on with. Sorting is stable, so that results are the same in every
    process."""
    return sorted(states.items(), key=lambda item: item[1].us)[:STATES]


def _leads_out(edge: Edge, first: int, ahead: frozenset[int]) -> bool:
    """True if the tensor is computed, and a node reads it that is not."""
    written = edge.writer < first or edge.writer in ahead
    return written and any(reader >= first and reader not in ahead for reader in edge.readers)


def _behind(first: int, ahead: frozenset[int], phase: Phase) -> tuple[int, frozenset[int]]:
    """The first node that is not computed behind `phase`, and those that are computed beyond."""
    done = ahead.union(phase.nodes)
    while first in done:
        first += 1
    return first, frozenset(node for node in done if node > first)


def _costs(phase: Phase, before: int, switch: float) -> Iterator[tuple[int, float]]:
    """The layouts in which a phase can be computed, each with its microseconds."""
    for layout, us in enumerate(phase.us):
        if math.isfinite(us):
            yield layout, us + (0.0 if layout == before else switch)


def _reach(
    states: dict[_State, Schedule], state: _State, before: Schedule, us: float, index: int
) -> None:
    total = before.us + us
    if state not in states or total < states[state].us:
        states[state] = Schedule(total, (*before.phases, index))
