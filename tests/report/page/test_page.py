"""The page's bytes: the same for the same report, nothing from a model outside of what is escaped,
and a policy that allows this style and script alone. tests/report/test_browser.py opens pages."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest

from onnxbolt.report.page import embedded, numbers, page, tables
from onnxbolt.report.reading import check
from tests.report import reports


class Parsed(HTMLParser):
    """The tags of a page, and the texts of its styles and scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {"style": [], "script": []}
        self.inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag in self.texts:
            self.inside = tag
            self.texts[tag].append("")

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.texts[self.inside][-1] += data

    def data(self) -> Any:
        return json.loads(self.texts["script"][0])


def hash_of(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@pytest.mark.parametrize("report", [reports.small(), reports.renamed(reports.tuned())])
def test_the_policy_allows_this_style_and_script_alone(report: dict[str, Any]) -> None:
    parsed = Parsed(page(report))
    (policy,) = (
        attributes["content"]
        for tag, attributes in parsed.tags
        if attributes.get("http-equiv") == "Content-Security-Policy"
    )
    style, (data, script) = "".join(parsed.texts["style"]), parsed.texts["script"]
    assert policy == (
        f"default-src 'none'; style-src {hash_of(style)}; script-src {hash_of(script)};"
        " base-uri 'none'; form-action 'none'"
    )
    assert json.loads(data)
    names = {tag for tag, _ in parsed.tags}
    assert not names & {"img", "link", "iframe", "object", "base", "form", "b"}
    assert not [
        attribute
        for _, attributes in parsed.tags
        for attribute in attributes
        if attribute == "style" or attribute == "src" or attribute.startswith("on")
    ]


def test_the_page_reads_nothing_from_elsewhere() -> None:
    text = page(reports.tuned())
    addresses = set(re.findall(r"\b\w+://[^\s\"'<)]+", text))
    assert addresses == {"http://www.w3.org/2000/svg"}  # the name of a language


def test_the_script_writes_texts_by_text_content_alone() -> None:
    (_, script) = Parsed(page(reports.small())).texts["script"]
    for risky in (
        "innerHTML",
        "outerHTML",
        "insertAdjacent",
        "document.write",
        "eval(",
        "Function(",
    ):
        assert risky not in script


@pytest.mark.parametrize("name", reports.HOSTILE)
def test_embedded_json_cannot_end_its_script(name: str) -> None:
    text = embedded({"name": name})
    assert json.loads(text) == {"name": name}
    assert not set("<>&\u2028\u2029") & set(text)


def test_half_of_a_surrogate_pair_is_written() -> None:
    report = reports.small()
    report["original"] = report["after"]["blocks"][0]["name"] = "half \ud800"
    assert page(report).encode()
    assert json.loads(embedded(["\ud800"])) == ["\ud800"]


def test_names_reach_the_page_as_they_are() -> None:
    report = reports.renamed(reports.small())
    check(report, "the report")
    graphs = Parsed(page(report)).data()["graphs"]
    for side in ("before", "after"):
        assert [block["name"] for block in graphs[side]["blocks"]] == [
            block["name"] for block in report[side]["blocks"]
        ]


def test_equal_reports_give_equal_bytes() -> None:
    report = reports.tuned()
    again = json.loads(json.dumps(report, sort_keys=True))
    assert page(report) == page(dict(reversed(again.items())))


def test_fused_nodes_and_their_sources_name_each_other() -> None:
    report = reports.small()
    graphs = Parsed(page(report)).data()["graphs"]
    before, after = graphs["before"]["blocks"], graphs["after"]["blocks"]
    names = {node["name"]: node["source_nodes"] for node in report["fused"]}
    fused = [(place, block) for place, block in enumerate(after) if block["kind"] == "fused"]
    assert {block["name"] for _, block in fused} == set(names)
    for place, block in fused:
        title, side, places = block["link"]
        assert (title, side) == ("Source nodes", "before")
        assert sorted(before[at]["name"] for at in places) == sorted(names[block["name"]])
        assert all(before[at]["link"] == ["Fused into", "after", [place]] for at in places)


def test_each_time_says_whether_it_was_measured() -> None:
    report = reports.tuned()
    rows = Parsed(page(report)).data()["tables"]["nodes"]
    titles = [title for title, _ in rows["columns"]]
    ours = titles.index("sm_90, µs")
    theirs = ours + 1
    assert titles[theirs] == "ONNX Runtime, µs"
    shown = {row[ours][1] for row in rows["rows"] if row[2] == "fused node"}
    assert shown == {"1.25"}
    fused = [row for row in rows["rows"] if row[2] == "fused node"]
    assert all(row[theirs][1].startswith(numbers.PREDICTED) for row in fused)
    text = page(report)
    assert "Numbers without ≈ were measured on NVIDIA H200 (700 W) with CUDA 13.0.88" in text
    assert "≈ marks a predicted number for sm_80 (A100) or sm_90 (H200)." in text
    assert "No time was measured." in page(reports.small())


def test_the_speed_up_is_the_best_known_one() -> None:
    report = reports.tuned()
    assert "2.50×" in page(report)
    side = {"name": "a", "setting": "", "us": 8.0, "spread": 0.1, "times": [8.0]}
    side |= {"p90_us": 8.0, "p99_us": 8.0, "per_second": 125_000.0}
    benchmark = {"ours": side, "peers": [side | {"us": 24.0}, side | {"us": 26.0}]}
    report["speed"] = benchmark | {"failed": {}, "nodes": [], "speedup": 3.0, "spread": 0.1}
    check(report, "the report")
    assert "3.00×" in page(report)
    assert "2.50×" not in page(report)


def test_a_node_tells_the_error_nearest_to_its_limit_at_each_level() -> None:
    report = reports.small()
    node = report["fused"][0]
    row = next(row for row in report["verification"]["rows"] if row["level"] == "node")
    row = row | {"node": node["name"], "level": "node", "limit": 1.0, "provider": "CPU"}
    failed = {"error": None, "passed": False, "reason": "not finite"}
    report["verification"]["rows"] = [row | {"error": 0.25}, row | {"error": 0.5}]
    assert ("Error, node, CPU, the largest of 2", "5.00e-01 of limit 1.00e+00") in facts(report)
    report["verification"]["rows"] += [row | failed]
    assert (
        "Error, node, CPU, the largest of 3",
        "not finite of limit 1.00e+00: not finite",
    ) in facts(report)


def facts(report: dict[str, Any]) -> list[tuple[str, str]]:
    """All facts of the optimized model's blocks."""
    data = Parsed(page(report)).data()
    return [
        (title, data["texts"][text] if isinstance(text, int) else text)
        for block in data["graphs"]["after"]["blocks"]
        for title, text in block["facts"]
    ]


def test_parts_without_contents_are_left_out() -> None:
    report = reports.small()
    assert 'id="tab-tuning"' not in page(report)
    assert 'id="tab-tuning"' in page(reports.tuned())
    report["verification"] = None
    assert 'id="tab-accuracy"' not in page(report)
    report["before"] = report["after"] = None
    report["passed_through"] = "no operator has a newer form"
    text = page(report)
    assert "no operator has a newer form" in text
    assert 'id="tab-model"' not in text


def test_columns_without_a_value_are_left_out() -> None:
    report = reports.small()
    refusal = {"node": "a", "body": "", "op": "Conv", "reason": "no kernel", "remedy": ""}
    report["refusals"] = [{**refusal, "apart": False, "tensor": "t", "values": {}}]
    assert [title for title, _ in tables.refusals(report)["columns"]] == [
        "Node",
        "Operator",
        "Reason",
    ]
    report["refusals"][0]["values"] = {"sm_90 ours_us": 2.0}
    assert ["Ours, µs", "number"] in tables.refusals(report)["columns"]


def test_a_failed_comparison_is_shown_as_failed() -> None:
    report = reports.small()
    row = report["verification"]["rows"][0]
    row |= {"passed": False, "reason": "error 2.00e+00 is above the limit", "error": None}
    report["verification"] |= {"passed": False, "verdict": "FAILED: function bodies only"}
    text = page(report)
    assert "verification failed" in text
    verdicts = [cells[-1] for cells in Parsed(text).data()["tables"]["errors"]["rows"]]
    assert verdicts[0] == "FAILED: error 2.00e+00 is above the limit"


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (numbers.time(0.0123), "≈ 0.0123 µs"),
        (numbers.time(12.34, True), "12.3 µs"),
        (numbers.time(1234.0, True), "1.23 ms"),
        (numbers.size(0), "–"),
        (numbers.size(1536), "1.5 KiB"),
        (numbers.size(3 * 2**40), "3 TiB"),
        (numbers.flops(0), ""),
        (numbers.flops(2_000_000_000), "2 G"),
        (numbers.ratio(2.0), "≈ 2.00×"),
        (numbers.error(None), "not finite"),
    ],
)
def test_numbers(shown: str, expected: str) -> None:
    assert shown.replace("\N{NO-BREAK SPACE}", " ") == expected
