"""The measures at their edges."""

from __future__ import annotations

import numpy as np
import pytest

from onnxbolt.tolerances import MODEL, limit, measure, relative_l2, same_non_finite


def test_relative_l2_is_scaled_by_the_reference() -> None:
    assert relative_l2(
        np.array([3, 4.5], np.float32), np.array([3, 4], np.float32)
    ) == pytest.approx(0.1)


def test_zero_reference_leaves_the_norm_itself() -> None:
    zero = np.zeros(4, np.float32)
    assert relative_l2(zero, zero) == 0
    assert relative_l2(np.full(4, 0.5), zero) == pytest.approx(1)


def test_large_fp16_values_do_not_overflow() -> None:
    values = np.full(1000, 60000, np.float16)
    assert relative_l2(values, values) == 0
    assert measure(values, values).cosine == pytest.approx(1)


def test_non_finite_values_are_compared_by_place_and_sign() -> None:
    reference = np.array([1, np.inf, -np.inf, np.nan], np.float32)
    assert same_non_finite(np.array([1.5, np.inf, -np.inf, np.nan], np.float16), reference)
    assert not same_non_finite(np.array([1, -np.inf, -np.inf, np.nan], np.float32), reference)
    assert not same_non_finite(np.array([1, np.inf, -np.inf, 0], np.float32), reference)
    assert measure(np.array([1.5, np.inf, -np.inf, np.nan], np.float32), reference).max_abs == 0.5


def test_cosine_of_zero_vectors() -> None:
    zero, one = np.zeros(2), np.ones(2)
    cosines = [measure(*pair).cosine for pair in ((zero, zero), (zero, one), (-one, one))]
    assert cosines == pytest.approx([1, 0, -1])


def test_limit_follows_the_yardstick_only_upwards() -> None:
    table = next(iter(MODEL.values()))
    assert limit(table) == limit(table, table / 10) == table
    assert limit(table, table) == 1.5 * table
