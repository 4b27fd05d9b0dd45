"""From candidates to problems: what kernels are chosen, compiled and timed for."""

from __future__ import annotations

from typing import Any

import pytest

from onnxbolt.plan.problems import problem_of
from onnxbolt.problems import ConvProblem
from tests.support import Net, matched


def problem(shape: tuple[int, ...], c: int, k: int, *kernel: int, **attributes: Any) -> ConvProblem:
    """The problem of a single convolution."""
    net = Net({"x": shape})
    weight = net.normal(k, c // attributes.get("group", 1), *kernel)
    (candidate,), _ = matched(
        net.model(net.node("Relu", net.node("Conv", "x", weight, **attributes)))
    )
    found = problem_of(candidate, None)
    assert isinstance(found, ConvProblem)
    return found


def test_pads_strides_and_dilations_keep_their_order() -> None:
    found = problem(
        (2, 8, 11, 13), 8, 16, 3, 2, pads=[0, 1, 2, 3], strides=[2, 1], dilations=[1, 2]
    )
    assert (found.pads, found.strides, found.dilations) == ((0, 1, 2, 3), (2, 1), (1, 2))
    assert (found.n, found.h, found.w, found.c, found.k, found.r, found.s) == (
        2,
        11,
        13,
        8,
        16,
        3,
        2,
    )
    assert (found.p, found.q) == ((11 + 2 - 3) // 2 + 1, 13 + 1 + 3 - 2)


def test_a_signal_is_an_image_of_one_row() -> None:
    found = problem((2, 8, 30), 8, 16, 3, pads=[1, 2], strides=[2], dilations=[3])
    assert (found.h, found.w, found.r, found.s, found.p, found.q) == (
        1,
        30,
        1,
        3,
        1,
        (30 + 3 - 6 - 1) // 2 + 1,
    )
    assert (found.pads, found.strides, found.dilations) == ((0, 1, 0, 2), (1, 2), (1, 3))


@pytest.mark.parametrize(("group", "k"), [(8, 8), (2, 16)])
def test_groups_keep_all_channels(group: int, k: int) -> None:
    found = problem((1, 8, 9, 9), 8, k, 3, 3, group=group)
    assert (found.c, found.k, found.groups) == (8, k, group)
