"""Drawings are readable: no block covers another, edges go down, long edges do not cross blocks."""

from __future__ import annotations

import itertools
import random
import re

import pytest

from onnxbolt.report.page.layout import HEIGHT, WIDTH, Layout, laid_out

Inputs = list[list[int]]


def chain(count: int) -> Inputs:
    return [[place - 1] if place else [] for place in range(count)]


def random_graph(seed: int, count: int) -> Inputs:
    draw = random.Random(seed)
    return [
        sorted(draw.sample(range(max(0, place - 12), place), min(place, draw.randint(0, 3))))
        for place in range(count)
    ]


def flat(inputs: Inputs) -> Layout:
    return laid_out(inputs, [0] * len(inputs))


@pytest.mark.parametrize("seed", range(8))
def test_no_block_covers_another_and_all_are_inside(seed: int) -> None:
    layout = flat(random_graph(seed, 120))
    for x, y in layout.places:
        assert 0 <= x <= layout.width - WIDTH
        assert 0 <= y <= layout.height - HEIGHT
    for one, other in itertools.combinations(layout.places, 2):
        apart = abs(one[0] - other[0]) >= WIDTH or abs(one[1] - other[1]) >= HEIGHT
        assert apart, (one, other)


@pytest.mark.parametrize("seed", range(8))
def test_readers_are_below_what_they_read(seed: int) -> None:
    inputs = random_graph(seed, 120)
    layout = flat(inputs)
    for reader, read in enumerate(inputs):
        assert all(layout.ranks[maker] < layout.ranks[reader] for maker in read)


def test_a_chain_is_a_straight_line() -> None:
    layout = flat(chain(20))
    assert {x for x, _ in layout.places} == {layout.places[0][0]}
    assert "C" not in layout.path


def test_a_skip_passes_beside_the_blocks() -> None:
    layout = flat([[], [0], [1], [2], [3, 0]])
    numbers = re.findall(r"M(\d+) \d+C[\d ]+? (\d+) \d+V", layout.path)
    assert numbers
    for _, lane in numbers:
        assert not any(x < int(lane) < x + WIDTH for x, _ in layout.places[1:4])


def test_sections_are_one_below_the_other() -> None:
    layout = laid_out([[], [], [0], []], [0, 0, 1, 1])
    assert max(layout.ranks[:2]) < min(layout.ranks[2:])


def test_a_very_long_edge_is_not_drawn() -> None:
    inputs = chain(60)
    inputs[59] = [58, 0]
    assert flat(inputs).path.count("M") == 59


def test_an_empty_graph_has_a_drawing() -> None:
    layout = flat([])
    assert (layout.places, layout.path) == ((), "")


def test_a_drawing_depends_on_the_graph_alone() -> None:
    inputs = random_graph(3, 200)
    assert flat(inputs) == flat([list(read) for read in inputs])
