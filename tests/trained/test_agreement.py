from __future__ import annotations

import numpy as np
import pytest

from tests.trained.agreement import (
    Agreement,
    Answer,
    Box,
    compared,
    mask_iou,
    matched,
    quadrangle_iou,
    together,
)

SQUARE = np.array([(0, 0), (10, 0), (10, 10), (0, 10)])


def moved(right: float, label: str = "") -> Box:
    return Box(SQUARE + np.array((right, 0)), label)


@pytest.mark.parametrize(
    ("other", "iou"),
    [
        (SQUARE, 1.0),
        (SQUARE[::-1], 1.0),
        (moved(5).corners, 1 / 3),
        (moved(10).corners, 0.0),
        (SQUARE + 20, 0.0),
        (SQUARE / 2 + 2, 1 / 4),
        (np.array([(5, -5), (15, 5), (5, 15), (-5, 5)]), 1 / 2),  # the square lies in it
        (np.array([(5, 0), (10, 5), (5, 10), (0, 5)]), 1 / 2),
    ],
)
def test_quadrangles(other: np.ndarray, iou: float) -> None:
    assert quadrangle_iou(SQUARE, other) == pytest.approx(iou)
    assert quadrangle_iou(other, SQUARE) == pytest.approx(iou)


def test_each_box_has_one_counterpart_of_its_label() -> None:
    before = [moved(0, "cat"), moved(100, "cat"), moved(200, "dog")]
    after = [moved(100.1, "cat"), moved(0, "cat"), moved(200, "dog")]
    assert matched(before, after) == pytest.approx([1.0, 1.0, 9.9 / 10.1])
    assert matched(before, after[1:]) == pytest.approx([1.0, 1.0, 0.0])
    assert matched(before[:1], [moved(0, "dog")]) == [0.0, 0.0]
    # the nearer of two has it, and the other none
    assert matched([moved(0)], [moved(2), moved(1)]) == pytest.approx([9 / 11, 0.0])
    assert matched([], []) == []


def test_masks() -> None:
    mask = np.zeros((20, 20), bool)
    mask[:10] = True
    other = mask.copy()
    other[0, 0] = False
    assert mask_iou(mask, mask) == 1
    assert mask_iou(mask, other) == mask_iou(other, mask) == 199 / 200
    assert mask_iou(mask, ~mask) == mask_iou(mask, mask[:10]) == 0


def test_limits_of_boxes_and_masks() -> None:
    for shift, holds in ((0.1, True), (0.11, False)):
        (found,) = compared(Answer(boxes=[moved(0)]), Answer(boxes=[moved(shift)]))
        assert (found.number, found.holds) == (1, holds)
        assert found.least == pytest.approx((10 - shift) / (10 + shift))
    mask = np.ones((10, 100), bool)
    for absent, holds in ((5, True), (6, False)):
        other = mask.copy()
        other[0, :absent] = False
        (found,) = compared(Answer(masks=[mask]), Answer(masks=[other]))
        assert found.holds is holds
    empty = np.zeros((2, 2), bool)
    (found,) = compared(Answer(masks=[empty]), Answer(masks=[empty]))
    assert found.number == 0


def test_what_has_to_be_equal() -> None:
    before = Answer({"text": ["a", "b"], "label": ["x"]})
    assert all(one.holds for one in compared(before, before))
    changed, same = compared(before, Answer({"text": ["a", "c"], "label": ["x"]}))
    assert (changed, same.holds) == (Agreement("text", 2, 1), True)
    for after in (["a"], ["a", "b", ""], []):
        assert not compared(before, Answer({"text": after, "label": ["x"]}))[0].holds
    assert not compared(Answer(), before)[0].holds


def test_inputs_add_up() -> None:
    parts = [Agreement("box", 2, 2, 0.99), Agreement("text", 1, 0), Agreement("box", 3, 2, 0.9)]
    assert together(parts) == [Agreement("box", 5, 4, 0.9), Agreement("text", 1, 0)]
    assert together([Agreement("box", 1, 1, 0.99), Agreement("box", 0, 0)])[0].least == 0.99


@pytest.mark.parametrize(
    ("least", "number", "alone", "agreeing", "excused"),
    [
        (0.986, 6, 0.985, 4, True),
        (0.977, 6, 0.985, 4, False),
        (0.986, 6, 0.992, 5, False),
        (0.994, 6, 0.995, 6, False),
        (0.986, 7, 0.985, 4, False),
        (0.0, 6, 0.0, 5, False),
        (None, 6, None, 5, False),
    ],
)
def test_rounding_alone(
    least: float | None, number: int, alone: float | None, agreeing: int, excused: bool
) -> None:
    one = Agreement("mask", number, 4, least)
    assert one.is_rounding(Agreement("mask", 6, agreeing, alone)) is excused
