"""JUnit's XML: what counts as failed, and that no name breaks it."""

from __future__ import annotations

import dataclasses
from xml.etree import ElementTree

import pytest

from onnxbolt.ci.junit import junit
from onnxbolt.report import Report
from onnxbolt.report.several import Outcome, Several
from onnxbolt.verify import VerifyResult
from onnxbolt.verify.result import Row

GOOD = Row("y", "output", "CPU", 0.1, 1.0, 0.1, 1.0, passed=True)
BAD = dataclasses.replace(GOOD, passed=False, reason="error 2 is above the limit 1")
OPEN = dataclasses.replace(GOOD, passed=False, unjudged="rounding alone changes it", level="node")


def suite(outcome: Outcome) -> ElementTree.Element:
    (found,) = ElementTree.fromstring(junit(Several((outcome,))))
    return found


def outcome(code: int, *rows: Row, model: str = "m.onnx", message: str = "") -> Outcome:
    report = dataclasses.replace(
        Report.unchanged("", [90]), verification=VerifyResult("fp16", rows) if rows else None
    )
    return Outcome(model, code, message, 1.25, report)


def test_levels_are_cases() -> None:
    found = suite(outcome(3, GOOD, BAD, OPEN))
    assert found.attrib == {
        "name": "m.onnx",
        "tests": "4",
        "time": "1.250",
        "failures": "1",
        "errors": "0",
        "skipped": "2",
    }
    kinds = {case.attrib["name"]: [child.tag for child in case] for case in found}
    assert kinds == {
        "optimize": [],
        "verify segments": ["skipped"],
        "verify fused nodes": ["skipped"],
        "verify the whole model": ["failure"],
    }
    failure = found.find("*/failure")
    assert failure is not None
    assert failure.attrib["message"] == "1 of 2 tensors"
    assert failure.text == "output y on CPU: FAILED error 2 is above the limit 1"


@pytest.mark.parametrize(("code", "kind"), [(1, "error"), (4, "failure"), (5, "failure")])
def test_a_model_without_a_result(code: int, kind: str) -> None:
    found = suite(outcome(code, message="why"))
    ((case,), (child,)) = found, found[0]
    assert (case.attrib["name"], child.tag, child.attrib["message"]) == ("optimize", kind, "why")


def test_what_was_not_judged_fails_where_that_was_asked_for() -> None:
    found = suite(outcome(3, GOOD, OPEN, message="a part of the model could not be judged"))
    assert [child.tag for child in found[0]] == ["failure"]


def test_long_lists_are_cut() -> None:
    rows = [dataclasses.replace(BAD, name=f"y{number}") for number in range(30)]
    text = suite(outcome(3, *rows)).findtext("*/failure")
    assert text is not None
    assert text.splitlines()[-1] == "and 10 more"
    assert len(text.splitlines()) == 21


@pytest.mark.parametrize(
    "name",
    ["<script>alert(1)</script>", "]]><x/>", "\"&amp;'", "\x00\x1b[31m\ud800\uffff", "a\nb\t"],
)
def test_names_are_data(name: str) -> None:
    row = dataclasses.replace(BAD, name=name)
    found = suite(outcome(3, row, model=name, message=name))
    assert found.attrib["name"].isprintable() or "\n" in name
    assert [len(list(case)) for case in found] == [0, 1, 1, 1]
    assert not list(found.iter("script"))
    assert not list(found.iter("x"))
