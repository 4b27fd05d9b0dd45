"""Reports fit the published schema, and what does not is refused with one clear line."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import onnx
import pytest

from onnxbolt.errors import InputError
from onnxbolt.measurements.benchmark import Benchmark, NodeTime, Side
from onnxbolt.pipeline import optimize
from onnxbolt.report.data import ReportData
from onnxbolt.report.diff import difference
from onnxbolt.report.page import page
from onnxbolt.report.reading import SCHEMA, check, read
from tests.report import reports
from tests.report.damage import damaged
from tests.support import Net

Edit = Callable[[dict[str, Any]], object]


def test_the_schema_is_one_and_describes_every_field() -> None:
    schema = json.loads(SCHEMA.read_text())
    jsonschema.Draft7Validator.check_schema(schema)
    assert schema["properties"].keys() == {field.name for field in dataclasses.fields(ReportData)}
    assert sorted(schema["properties"]) == sorted(schema["required"])
    for name, part in schema["definitions"].items():
        assert part.get("description"), name


@pytest.mark.parametrize("report", [reports.small(), reports.tuned(), reports.large(3)])
def test_reports_fit_the_schema(report: dict[str, Any]) -> None:
    jsonschema.Draft7Validator(json.loads(SCHEMA.read_text())).validate(report)
    check(report, "the report")


def test_every_kind_of_report_that_a_run_writes_fits(tmp_path: Path) -> None:
    net = Net({"x": ("batch", 16)})
    model = net.model(net.node("Relu", net.linear("x", 16, 8)))
    found = optimize(model, library=False, verify=False, archs=("sm_90a",))
    side = Side("a", "no graph", 2.0, 0.1, (1.0, 2.0, 3.0))
    node = NodeTime("n", "FusedGemm", (8, 8), 1.0, 0.5, 0.1)
    measured = dataclasses.replace(found, speed=Benchmark(side, (side,), {"b": "why"}, (node,)))
    lifted = onnx.ModelProto()
    lifted.CopyFrom(model)
    del lifted.opset_import[:]
    lifted.opset_import.extend([onnx.helper.make_opsetid("com.microsoft", 1)])
    unchanged = optimize(lifted, library=False, verify=False)
    for place, report in enumerate((found, measured, unchanged)):
        path = tmp_path / f"{place}.json"
        report.save(path)
        values = read(path)
        assert values == json.loads(report.json())
    assert unchanged.passed_through


def test_a_number_that_is_not_finite_is_null() -> None:
    report = reports.small()
    report["verification"]["rows"][0]["error"] = None
    check(report, "the report")


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda report: report.pop("fused"), "fused"),
        (lambda report: report.update(surprise=1), "surprise"),
        (lambda report: report.update(coverage=2), "coverage"),
        (lambda report: report["fused"][0].update(flops="many"), "flops"),
        (lambda report: report["fused"][0].update(flops=-1), "flops"),
        (lambda report: report["fused"][0]["predicted"][0].update(ours_us=None), "ours_us"),
        (lambda report: report["after"]["blocks"][0].update(inputs=[0]), "node 0 reads"),
        (lambda report: report["after"]["blocks"][0].update(us=[1.0]), "other architectures"),
        (lambda report: report.update(archs=[]), "other architectures"),
    ],
)
def test_other_values_are_refused(edit: Edit, words: str) -> None:
    report = reports.small()
    edit(report)
    with pytest.raises(InputError, match=words) as error:
        check(report, "r.json")
    assert str(error.value).startswith("r.json is not a report: ")


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999", f"1{'0' * 400}"])
def test_numbers_that_no_page_can_hold_are_refused(number: str, tmp_path: Path) -> None:
    report = reports.small()
    report["verification"]["rows"][0]["error"] = "a number"
    path = tmp_path / "r.json"
    path.write_text(json.dumps(report).replace('"a number"', number))
    with pytest.raises(InputError, match=f"is not JSON .{number[:20]} is not a finite number"):
        read(path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is not JSON"),
        ("[]", "has no format"),
        ("{}", "has no format"),
        ('{"format": 1}', "of format 1. Write it again with this version: onnxbolt optimize"),
        ('{"format": "</script>"}', "of format '</script>'"),
        ("[" * 100_000, "is not JSON"),
        (
            '{"format": 2}',
            "properties. Write it again with this version: onnxbolt optimize --report x.json",
        ),
    ],
)
def test_other_files_are_refused(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        read(path)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_damaged_reports_are_refused_or_shown(first: int) -> None:
    before, shown = reports.tuned(), 0
    for seed in range(first, first + 100):
        report = damaged(reports.tuned(), seed)
        with contextlib.suppress(InputError):
            check(report, "the report")
            assert page(report).encode()
            found = difference(before, report)
            assert all((found.text(), found.markdown(), found.json()))
            shown += 1
    assert 5 < shown < 95


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read(tmp_path / "missing.json")
    with pytest.raises(InputError, match="regular file"):
        read(tmp_path)
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe{")
    with pytest.raises(InputError, match="is not a"):
        read(tmp_path / "bytes.json")
