"""The differences that a summary shows: predicted times, and errors near their limits."""

from __future__ import annotations

import math
from typing import Any

import pytest

from onnxbolt.ci.differences import (
    Differences,
    ErrorChange,
    TimeChange,
    error_changes,
    time_changes,
)


def report(whole: dict[int, float], *rows: tuple[str, float | None, float, str]) -> dict[str, Any]:
    return {
        "whole": [{"arch": arch, "ours_us": us, "ort_us": 1.0} for arch, us in whole.items()],
        "verification": {
            "rows": [
                {
                    "level": level,
                    "error": error,
                    "limit": limit,
                    "unjudged": unjudged,
                    "passed": error is not None and error <= limit and not unjudged,
                }
                for level, error, limit, unjudged in rows
            ]
        }
        if rows
        else None,
    }


def test_times_of_either_side() -> None:
    found = time_changes(report({80: 10.0, 90: 4.0}), report({75: 1.0, 90: 5.0}))
    assert found == (
        TimeChange(75, None, 1.0),
        TimeChange(80, 10.0, None),
        TimeChange(90, 4.0, 5.0),
    )
    assert Differences(times=found).slowdown == pytest.approx(25.0)
    assert Differences(times=found[:2]).slowdown == Differences().slowdown == 0.0
    assert TimeChange(90, 0.0, 5.0).slowdown == 0.0


def test_the_error_nearest_to_its_limit_counts() -> None:
    before = report(
        {}, ("segment", 0.1, 1.0, ""), ("segment", 0.4, 1.0, ""), ("model", 0.125, 1.0, "")
    )
    after = report({}, ("segment", 9.0, 1.0, "not judged"), ("model", None, 1e-2, ""))
    assert error_changes(before, after) == (
        ErrorChange("segment", 0.4, None),
        ErrorChange("model", 0.125, math.inf),
    )
    exact = report({}, ("node", 0.0, 0.0, ""))
    assert error_changes(exact, report({})) == (ErrorChange("node", 0.0, None),)
