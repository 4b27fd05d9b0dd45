"""The parts of a region that are worth measuring: by predicted times, and by the tensors that cross
a cut."""

from __future__ import annotations

import pytest

from onnxbolt.archs import ARCHS
from onnxbolt.match.matcher import match
from onnxbolt.match.partition import partition
from onnxbolt.measurements.timings import NOTHING, Choice, Timings
from onnxbolt.plan.choose import choices, plan
from onnxbolt.plan.regions import Region, regions
from onnxbolt.tune.parts import promising
from tests.support import Net, prepare


@pytest.fixture(scope="module")
def region() -> Region:
    """Four different convolutions, the image halved in the middle."""
    net = Net({"x": (32, 64, 56, 56)})
    y = net.node("Relu", net.conv("x", 64, 64, 3, pads=[1, 1, 1, 1]))
    y = net.node("Relu", net.conv(y, 64, 128, 3, pads=[1, 1, 1, 1], strides=[2, 2]))
    y = net.node("Relu", net.conv(y, 128, 128, 3, pads=[1, 1, 1, 1]))
    y = net.node("Relu", net.conv(y, 128, 256))
    graph = prepare(net.model(y), "fp16")
    (found,) = regions(plan(graph, partition(match(graph)[0]), [90], "all").assignment, 90)
    assert len(found.candidates) == 4
    return found


def measured(region: Region, **times: float) -> Timings:
    """Every kernel as predicted, but that of each place in `times` (p0, p1, ..) takes so many
    microseconds."""
    picked = choices(region.problems, ARCHS[90])
    return Timings(
        {
            (problem, 90): Choice(picked[problem].config, times.get(f"p{i}", picked[problem].us))
            for i, problem in enumerate(region.problems)
        }
    )


def test_where_fusing_wins_by_far_no_part_is_worth_measuring(region: Region) -> None:
    assert promising(region, measured(region, p0=0.1, p1=0.1, p2=0.1, p3=0.1)) == []


@pytest.mark.parametrize(("slow", "left_out"), [("p0", {(0,)}), ("p3", {(3,)})])
def test_a_slow_kernel_at_a_regions_border_is_left_out(
    region: Region, slow: str, left_out: set[tuple[int, ...]]
) -> None:
    found = promising(region, measured(region, **{slow: 1e4}))
    assert {part.left_out for part in found[:1]} == left_out
    assert all(set(part.left_out) >= set(next(iter(left_out))) for part in found)


def test_a_slow_kernel_in_the_middle_is_in_no_part_and_parts_are_few(region: Region) -> None:
    found = promising(region, measured(region, p1=1e4))
    assert found
    assert all(1 in part.left_out for part in found)
    assert len(found) <= 6


def test_one_problem_has_no_parts() -> None:
    net = Net({"x": (64, 64)})
    graph = prepare(net.model(net.linear("x", 64, 64)), "fp16")
    (found,) = regions(plan(graph, partition(match(graph)[0]), [90], "all").assignment, 90)
    assert promising(found, NOTHING) == []
