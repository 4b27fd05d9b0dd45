"""A region's key: the same for the same work under other names, another for anything that
changes its time."""

from __future__ import annotations

import re

from onnxbolt.layout.assign import assign
from onnxbolt.match.matcher import match
from onnxbolt.match.partition import partition
from onnxbolt.plan.regions import Region, regions
from tests.support import Net, prepare


def region(
    *,
    size: int = 16,
    kernel: int = 3,
    pool: str = "MaxPool",
    last: str = "Relu",
    prefix: int = 0,
    arch: int = 90,
) -> Region:
    """Two convolutions with a pooling between, behind `prefix` nodes that shift all names."""
    net = Net({"x": (4, 16, size, size)})
    x = "x"
    for _ in range(prefix):
        x = net.node("Softmax", x, axis=1)
    y = net.node(
        pool,
        net.conv(x, 16, 16, kernel, pads=[kernel // 2] * 4),
        kernel_shape=[2, 2],
        strides=[2, 2],
    )
    graph = prepare(net.model(net.node(last, net.conv(y, 16, 16))), "fp16")
    (found,) = regions(assign(graph, partition(match(graph)[0])), arch)
    return found


def test_a_regions_key_does_not_depend_on_names() -> None:
    assert region().key == region().key == region(prefix=3).key
    assert re.fullmatch("[0-9a-f]{32}", region().key)


def test_a_regions_key_depends_on_whatever_changes_its_time() -> None:
    others = [
        region(size=32),
        region(kernel=1),
        region(pool="AveragePool"),
        region(last="Sigmoid"),
        region(arch=80),
    ]
    assert len({region().key, *(other.key for other in others)}) == 1 + len(others)


def test_a_regions_key_depends_on_layout_conversions_at_its_borders() -> None:
    net = Net({"x": (4, 16, 16, 16)})
    y = net.node("Relu", net.conv("x", 16, 16))
    keys = set()
    for outputs in (
        (net.node("Relu", net.conv(y, 16, 16)),),
        (net.node("Relu", net.conv(y, 16, 16)), y),
    ):
        graph = prepare(net.model(*outputs), "fp16")
        (found,) = (
            r
            for r in regions(assign(graph, partition(match(graph)[0])), 90)
            if len(r.candidates) >= 2
        )
        keys.add(found.key)
    assert len(keys) == 2


def test_every_part_has_a_key_of_its_own() -> None:
    found = region()
    assert [(part.kind, part.left_out) for part in found.parts] == [
        ("without", (0,)),
        ("without", (1,)),
        ("first", (1,)),
        ("last", (0,)),
    ]
    assert len({found.key, *map(found.key_of, found.parts)}) == 5
    other = region(prefix=3)
    assert list(map(found.key_of, found.parts)) == list(map(other.key_of, other.parts))


def test_a_region_of_one_problem_has_no_parts() -> None:
    net = Net({"x": (4, 16)})
    graph = prepare(net.model(net.linear("x", 16, 16)), "fp16")
    (found,) = regions(assign(graph, partition(match(graph)[0])), 90)
    assert found.parts == []


def test_what_crosses_a_cut_is_read_behind_it_and_written_before() -> None:
    """A residual crosses every cut between where it is written and read."""
    net = Net({"x": (4, 16, 8, 8)})
    first = net.node("Relu", net.conv("x", 16, 16))
    second = net.node("Relu", net.conv(first, 16, 16, 3, pads=[1, 1, 1, 1]))
    net_output = net.node("Relu", net.node("Add", net.conv(second, 16, 16), first))
    graph = prepare(net.model(net_output), "fp16")
    (found,) = regions(assign(graph, partition(match(graph)[0])), 90)
    assert [[tensor.name for tensor in found.crossing(cut)] for cut in (1, 2)] == [
        [first],
        [second, first],
    ]
    assert [found.place(found.candidates[i].output) for i in range(3)] == [0, 1, 2]


def test_a_region_is_described_in_words() -> None:
    found = region()
    assert found.description == f"sm_90 2 fused nodes from {found.problems[0].description}"
    assert found.problems[0].description == "conv 4x16x16x16 to 16, 3x3, f16, Bias"
