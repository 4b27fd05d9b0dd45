"""The cheapest schedule of phases, against a search through all of them."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator

import pytest

from onnxbolt.plan import schedule
from onnxbolt.plan.schedule import Edge, Phase, Schedule, Work, cheapest

EITHER = (1.0, 1.0)


def everything(work: Work) -> Iterator[float]:
    """The microseconds of every way to compute each node once, in every choice of layouts."""
    count = max(phase.nodes[-1] for phase in work.phases) + 1
    for size in range(1, count + 1):
        for chosen in itertools.combinations(work.phases, size):
            if sorted(node for phase in chosen for node in phase.nodes) == [*range(count)]:
                ordered = sorted(chosen, key=lambda phase: phase.nodes[0])
                for layouts in itertools.product((0, 1), repeat=size):
                    yield time_of(ordered, layouts, work.edges)


def time_of(phases: list[Phase], layouts: tuple[int, ...], edges: tuple[Edge, ...]) -> float:
    us, before, done = 0.0, 0, set[int]()
    for phase, layout in zip(phases, layouts, strict=True):
        if layout != before:
            us += sum(
                edge.us
                for edge in edges
                if edge.writer in done and not done.issuperset(edge.readers)
            )
        us, before = us + phase.us[layout], layout
        done.update(phase.nodes)
    return us


def drawn(seed: int) -> Work:
    """A random scope of six nodes, each of which can be computed by itself."""
    rng = random.Random(seed)

    def us() -> tuple[float, float]:
        times = [rng.choice([math.inf, rng.randint(1, 20)]) for _ in range(2)]
        return (times[0], times[1]) if min(times) < math.inf else (rng.randint(1, 20), math.inf)

    alone = [Phase((node,), us()) for node in range(6)]
    several = [
        Phase(tuple(sorted(rng.sample(range(6), rng.randint(2, 4)))), us()) for _ in range(8)
    ]
    edges = [
        Edge(node, tuple(rng.sample(range(node + 1, 6), 1)), rng.randint(0, 6)) for node in range(5)
    ]
    return Work((*alone, *several), tuple(edges))


@pytest.mark.parametrize("seed", range(60))
def test_no_other_way_is_faster(seed: int) -> None:
    work = drawn(seed)
    found = cheapest(work)
    assert found.us == pytest.approx(min(everything(work)))
    nodes = [node for index in found.phases for node in work.phases[index].nodes]
    assert sorted(nodes) == [*range(6)]


def test_conversions_are_paid_where_the_layout_changes() -> None:
    last, first = (math.inf, 1.0), (1.0, math.inf)
    phases = Phase((0,), last), Phase((1,), first), Phase((2,), last), Phase((1,), (math.inf, 7.0))
    cheap, dear = (
        Work(phases, (Edge(0, (1,), us), Edge(1, (2,), us), Edge(0, (2,), us))) for us in (1.0, 2.0)
    )
    assert cheapest(cheap) == Schedule(3 + 2 + 2, (0, 1, 2))  # two tensors at each change
    assert cheapest(dear) == Schedule(9.0, (0, 3, 2))


def test_nodes_without_a_phase_have_no_schedule() -> None:
    assert cheapest(Work((Phase((0,), EITHER), Phase((2,), EITHER)))) == Schedule(math.inf, ())
    assert cheapest(Work((Phase((0,), (math.inf, math.inf)),))) == Schedule(math.inf, ())
    assert cheapest(Work(())) == Schedule(0.0, ())


def test_the_number_of_states_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Branches side by side, each of which may share a phase with any other: the cheapest states
    still give a schedule, which is no faster than the best."""
    count = 14
    alone = [Phase((node,), (float(node + 1), math.inf)) for node in range(count)]
    pairs = [
        Phase((i, j), (float(i + j) * 0.7, math.inf))
        for i, j in itertools.combinations(range(count), 2)
    ]
    work = Work((*alone, *pairs))
    best = cheapest(work)
    monkeypatch.setattr(schedule, "STATES", 2)
    cheapest.cache_clear()
    bounded = cheapest(work)
    cheapest.cache_clear()
    assert best.us <= bounded.us < sum(phase.us[0] for phase in alone)
    computed = [node for index in bounded.phases for node in work.phases[index].nodes]
    assert sorted(computed) == [*range(count)]


def test_equal_works_are_solved_once() -> None:
    cheapest.cache_clear()
    for _ in range(12):
        cheapest(drawn(0))
    assert (cheapest.cache_info().misses, cheapest.cache_info().hits) == (1, 11)
