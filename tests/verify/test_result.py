"""The share that an error is of its limit: one meaning for texts, tables, the page and CI."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from onnxbolt.ci.differences import ErrorChange, error_changes
from onnxbolt.report import Report
from onnxbolt.report.markdown import plain
from onnxbolt.report.page import numbers
from onnxbolt.report.several import Outcome
from onnxbolt.verify.result import Row, VerifyResult

PASSED: dict[str, Any] = {"passed": True}
FAILED: dict[str, Any] = {"reason": "NaNs differ"}
UNJUDGED: dict[str, Any] = {"unjudged": "rounding alone changes more"}


def row(error: float, limit: float, verdict: dict[str, Any], name: str = "y") -> Row:
    return Row(name, "output", "CPU", error, limit, 0.0, 1.0, **verdict)


def written(*rows: Row) -> list[dict[str, Any]]:
    """The rows as a report has them, whose numbers are None where they are not finite."""
    return [
        plain({name: getattr(each, name) for name in Row.__dataclass_fields__}) for each in rows
    ]


@pytest.mark.parametrize(
    ("error", "limit", "verdict", "share"),
    [
        (0.25, 1.0, PASSED, 0.25),
        (0.5, 0.25, FAILED, 2.0),
        (0.25, 1.0, FAILED, math.inf),
        (9.0, 1.0, UNJUDGED, 0.0),
        (math.nan, 1.0, UNJUDGED, 0.0),
        (math.inf, math.inf, PASSED, 0.0),
        (math.nan, 1.0, PASSED, 0.0),
        (0.25, math.inf, PASSED, 0.0),
        (0.25, math.nan, FAILED, math.inf),
        (math.nan, 1.0, FAILED, math.inf),
        (0.0, 0.0, PASSED, 0.0),
        (0.5, 0.0, FAILED, math.inf),
    ],
)
def test_all_places_tell_the_same_share(
    error: float, limit: float, verdict: dict[str, Any], share: float
) -> None:
    found = row(error, limit, verdict)
    (values,) = written(found)
    assert found.nearness == numbers.nearness(values) == share
    changes = error_changes(
        {"verification": {"rows": [values]}}, {"verification": {"rows": written(row(0, 1, PASSED))}}
    )
    assert changes == (ErrorChange("model", None if found.unjudged else share, 0.0),)


def test_the_worst_output_is_a_failed_one_before_one_without_a_verdict() -> None:
    rows = (row(9.0, 1.0, UNJUDGED, "a"), row(0.5, 0.25, FAILED, "b"), row(0.9, 1.0, PASSED, "c"))
    report = dataclasses.replace(
        Report.unchanged("", [90]), verification=VerifyResult("fp16", rows)
    )
    worst = Outcome("model.onnx", 3, "", 1.0, report).worst_output
    assert worst is not None
    assert worst.name == "b"
