"""The planned arithmetic of kernels keeps the limit: at most 1 of 10,000 codes differs."""

from __future__ import annotations

import pytest

from tests.quantized.arithmetic import Case, Way, differing

_SHARE = 1e-4


@pytest.mark.parametrize("one_sided", [False, True])
@pytest.mark.parametrize("way", [Way.INTEGERS, Way.RECIPROCAL])
def test_zero_points_in_integers(way: Way, one_sided: bool) -> None:
    """By one step of the result, or by as many as one step of the pair within makes."""
    case = Case(128, 64, 3, one_sided, seed=0)
    count, differ, most = differing(case, way)
    assert differ <= _SHARE * count
    assert most <= case.steps


def test_zero_points_in_a_bias_of_fp32_are_not_enough() -> None:
    count, differ, _ = differing(Case(512, 32, 3, one_sided=True, seed=0), Way.IN_BIAS)
    assert differ > _SHARE * count
