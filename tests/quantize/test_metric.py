"""The error of a model's outputs against those of another."""

from __future__ import annotations

import math

import numpy as np
import pytest

from onnxbolt.quantize.metric import Arrays, Errors


def _error(*batches: tuple[Arrays, Arrays]) -> float:
    errors = Errors()
    for reference, found in batches:
        errors.add(reference, found, {})
    (error,) = errors.found().values()
    return error


def test_floats() -> None:
    reference = {"y": np.array([3.0, 4.0], np.float32)}
    assert _error((reference, {"y": np.array([3.0, 3.5], np.float32)})) == 0.1


def test_infinities_of_a_mask_are_right_where_both_have_them() -> None:
    reference = {"y": np.array([3.0, 4.0, -np.inf], np.float32)}
    assert _error((reference, {"y": np.array([3.0, 3.5, -np.inf], np.float32)})) == 0.1
    assert not math.isfinite(_error((reference, {"y": np.array([3.0, 4.0, 0.0], np.float32)})))


def test_others_are_the_share_of_elements_that_differ_in_all_batches() -> None:
    reference = {"y": np.arange(10)}
    half = {"y": np.where(np.arange(10) < 5, -1, np.arange(10))}
    assert _error((reference, half), (reference, reference)) == 0.25


@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_other_shapes_are_infinitely_wrong(dtype: type) -> None:
    """As the numbers of detections differ."""
    assert _error(({"y": np.ones((2, 5), dtype)}, {"y": np.ones((2, 7), dtype)})) == math.inf
