"""Two reports compared: what differs is listed, once, and nothing else is."""

from __future__ import annotations

import json
from typing import Any

import pytest

from onnxbolt.report.diff import Difference, difference
from tests.report import reports


def changed(**changes: Any) -> dict[str, Any]:
    return reports.small() | changes


def whats(changes: Any) -> list[str]:
    return [change.what for change in changes]


def test_a_report_does_not_differ_from_itself() -> None:
    found = difference(reports.small(), reports.small())
    assert found.same
    assert found.text() == found.markdown() == "no differences"
    assert json.loads(found.json())["same"] is True


def test_options_and_versions() -> None:
    found = difference(reports.small(), changed(precision="bf16", version="9.9"))
    assert [(c.what, c.before, c.after) for c in found.about] == [
        ("onnxbolt", reports.small()["version"], "9.9"),
        ("precision", "fp16", "bf16"),
    ]
    assert not found.same


def test_shares_are_percentages() -> None:
    found = difference(changed(coverage=1.0), changed(coverage=0.8182624900168605))
    assert [(c.before, c.after) for c in found.about] == [("100.0%", "81.8%")]


def test_nodes_that_are_fused_otherwise_or_no_more() -> None:
    other = reports.small()
    gone = other["fused"].pop(0)
    other["fused"][0]["rule"] = "conv"
    found = difference(reports.small(), other)
    assert (found.nodes[0].what, found.nodes[0].before, found.nodes[0].after) == (
        gone["tensor"],
        gone["rule"],
        None,
    )
    assert found.nodes[1].after == "conv"
    assert whats(found.choices) == [
        f"{gone['tensor']} kernel {n + 1}" for n in range(len(gone["configs"]))
    ]
    assert "–" in found.text()


def test_choices_are_those_of_a_lock_file() -> None:
    other = reports.small()
    other["fused"][0]["configs"][0] = "sm_80 conv_2x other"
    other["regions"][:0] = [
        {
            "region": "gemm 8x8x8",
            "archs": [80, 90],
            "comparisons": [],
            "fused": False,
            "gain": 0.9,
            "measured": False,
        }
    ]
    other["refusals"].append(
        {
            "node": "n",
            "op": "Add",
            "reason": "why",
            "tensor": "",
            "remedy": "",
            "values": {},
            "apart": False,
            "body": "a branch",
        }
    )
    found = difference(reports.small(), other)
    assert [(c.what, c.after) for c in found.choices] == [
        (f"{other['fused'][0]['tensor']} kernel 1", "sm_80 conv_2x other"),
        ("region gemm 8x8x8", "left to ONNX Runtime"),
        ("not fused: n in a branch", "why"),
    ]


def test_times_say_whether_they_were_measured_and_noise_is_none() -> None:
    other = reports.small()
    first, second, *_ = (node for node in other["fused"] if node["predicted"])
    first["predicted"][0]["measured_us"] = 100.0
    second["predicted"][0]["ours_us"] *= 1.005
    second["predicted"][1]["ours_us"] *= 1.5
    found = difference(reports.small(), other)
    assert whats(found.times) == [f"{first['tensor']} sm_80", f"{second['tensor']} sm_90"]
    assert found.times[0].after == "100.00 us measured"
    assert found.times[0].before.endswith("us predicted")


def test_whole_models() -> None:
    found = difference(reports.small(), reports.tuned())
    assert whats(found.whole) == ["ONNX Runtime, by the tuner", "onnxbolt, by the tuner"]
    assert found.whole[0].after == "25.00 us measured"
    assert whats(found.about) == ["measured on"]


def test_verdicts_and_errors() -> None:
    other = reports.small()
    rows = other["verification"]["rows"]
    rows[0] |= {"passed": False, "reason": "too large", "error": 3.0}
    rows[1]["error"] = None
    other["verification"]["verdict"] = "FAILED"
    found = difference(reports.small(), other)
    assert whats(found.errors)[0] == "verdict"
    assert found.errors[1].after.startswith("failed, error 3.0e+00 of ")
    assert "not finite" in found.errors[2].after
    assert len(found.errors) == 3
    without = difference(changed(verification=None), reports.small())
    assert len(without.errors) == 1 + len(rows)


def test_a_node_that_was_judged_and_is_not_any_more() -> None:
    other = reports.small()
    other["verification"]["rows"][0] |= {"passed": False, "unjudged": "rounding"}
    found = difference(reports.small(), other)
    assert found.errors[0].after.startswith("not judged")


@pytest.mark.parametrize("form", ["text", "markdown", "json"])
def test_names_that_mean_something_elsewhere_are_written(form: str) -> None:
    found: Difference = difference(reports.small(), reports.renamed(reports.small()))
    written = getattr(found, form)()
    assert "__proto__" in written
    if form == "json":
        values = json.loads(written)
        assert values["format"] == 1
        assert {"about", "choices", "errors", "nodes", "times", "whole"} <= values.keys()
    if form == "text":
        titles = [line for line in written.splitlines() if line.startswith("fused nodes: ")]
        assert titles == [f"fused nodes: {len(found.nodes)}"]
    if form == "markdown":
        assert "## fused nodes: " in written


def test_names_are_code_in_markdown_and_take_one_line_everywhere() -> None:
    other = reports.small()
    name = "<img src=x> [a](b) `c` | \n# d\x1b[31m"
    other["fused"][0]["tensor"] = name
    found = difference(reports.small(), other)
    shown = r"<img src=x> [a](b) `c` | \n# d\x1b[31m"
    assert any(line.startswith(shown) for line in found.text().splitlines())
    rows = [line for line in found.markdown().splitlines() if "img" in line]
    assert rows
    for row in rows:
        assert row.startswith("| `` <img src=x> [a](b) `c` \\| \\n# d\\x1b[31m")
