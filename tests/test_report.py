"""The contents of the report in each of its formats, and that names from a model cannot break
it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, numpy_helper

from onnxbolt.candidates import Refusal
from onnxbolt.errors import InputError
from onnxbolt.measurements.timings import Comparison
from onnxbolt.pipeline import optimize
from onnxbolt.plan import verdicts
from onnxbolt.plan.verdicts import Verdict
from onnxbolt.precision import Kept
from onnxbolt.report import Report
from onnxbolt.report.coverage import coverage
from onnxbolt.report.data import FORMAT
from onnxbolt.report.products import products
from onnxbolt.tune.summary import Tuning, WholeModel
from onnxbolt.verify import Row, VerifyResult
from onnxbolt.verify.result import NOT_FINITE
from tests.support import Net


def model_of(signature: str, body: str, weights: dict[str, np.ndarray]) -> ModelProto:
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17]> g {signature} {{ {body} }}'
    )
    model.graph.initializer.extend(numpy_helper.from_array(v, name) for name, v in weights.items())
    for node in model.graph.node:
        node.name = f"{node.op_type}_{node.output[0]}"
    return model


@pytest.fixture(scope="module")
def mixed() -> ModelProto:
    """One convolution that can be fused, one grouped, one product with a weight, one without, which
    is fused as well."""
    body = """a = Conv(x, w) r = Relu(a) d = Conv<group=2>(r, k)
              g = GlobalAveragePool(d) f = Flatten(g) m = MatMul(f, v)
              t = Transpose<perm=[1,0]>(m) s = MatMul(m, t) y = Exp(s)"""
    rng = np.random.default_rng(0)
    weights = {
        name: (rng.standard_normal(shape) / 8).astype(np.float32)
        for name, shape in {"w": (8, 8, 3, 3), "k": (6, 4, 1, 1), "v": (6, 16)}.items()
    }
    return model_of("(float[2,8,10,10] x) => (float[2,2] y)", body, weights)


@pytest.fixture(scope="module")
def report(mixed: ModelProto) -> Report:
    return optimize(mixed, precision="fp16", fuse="all", library=False, archs=("sm_80", "sm_90a"))


def test_report_of_a_run(mixed: ModelProto, report: Report) -> None:
    assert [node.op for node in report.fused if node.flops] == [
        "FusedConv_Relu_f16",
        "FusedGemm_f16_pad2",
        "FusedGemm_CastF32_f16",
    ]
    convolution = report.fused[0]
    assert convolution.flops == 2 * (2 * 8 * 8 * 8) * (8 * 3 * 3)
    assert (convolution.tensor, convolution.source_nodes) == ("r", ("Conv_a", "Relu_r"))
    assert [p.arch for p in convolution.predicted] == [80, 90]
    assert len(convolution.configs) == 2
    assert report.coverage is not None
    assert report.coverage == coverage(products(mixed, {}), {"Conv_a", "MatMul_m", "MatMul_s"})
    assert report.coverage < 1
    assert ("Conv_d", "grouped convolutions of such widths stay with ONNX Runtime") in [
        (r.node, r.reason) for r in report.refusals
    ]
    assert [kept.node for kept in report.kept] == ["Exp_y"]
    assert report.passed
    assert report.failure() == ""


def test_a_node_that_takes_a_concat_s_place_keeps_its_configuration_and_times() -> None:
    body = "a = Conv(x, w) b = Conv(x, w) c = Concat<axis=1>(a, b) y = Conv(c, v)"
    weights = {"w": np.ones((8, 8, 1, 1), np.float32), "v": np.ones((8, 16, 1, 1), np.float32)}
    model = model_of("(float[2,8,10,10] x) => (float[2,8,10,10] y)", body, weights)
    into = optimize(model, fuse="all", library=False, verify=False, archs=("sm_80",)).fused[1]
    assert into.source_nodes == ("Conv_b", "Concat_c")
    assert into.flops == 2 * (2 * 10 * 10 * 8) * 8
    assert len(into.configs) == len(into.predicted) == 1


def test_text_begins_with_the_precision_and_ends_with_the_verdict(report: Report) -> None:
    lines = report.text().splitlines()
    assert lines[0].startswith(
        "precision fp16: weights and compute in fp16, accumulation and epilogues in fp32"
    )
    assert lines[-1].startswith("PASSED: function bodies only")
    assert dataclasses.replace(report, verification=None).text().endswith("not verified")


def test_paths_are_shown_where_there_are_files(
    mixed: ModelProto, report: Report, tmp_path: Path
) -> None:
    assert (report.original, report.optimized) == ("", "")
    source, out = tmp_path / "in.onnx", tmp_path / "out.onnx"
    onnx.save(mixed, source)
    of_files = optimize(source, out, library=False, verify=False)
    assert f"{source} -> {out}" in of_files.text().splitlines()
    assert (
        f"a model in memory -> `{out}`"
        in optimize(mixed, out, library=False, verify=False).markdown().splitlines()
    )


def test_reasons_are_grouped_by_what_they_have_in_common(report: Report) -> None:
    reasons = (
        "its other operand's shape is not known: a [1]",
        "its other operand's shape is not known: b [2]",
        "predicted slower",
    )
    refusals = tuple(
        Refusal(f"n{i}", "Add", reason, values={"ours_us": 2.0}) for i, reason in enumerate(reasons)
    )
    lines = dataclasses.replace(report, refusals=refusals).markdown().splitlines()
    assert (
        "| `Add` | 2 | `its other operand's shape is not known` |  | `n0` | `a [1], ours 2.0 us` |"
        in lines
    )
    assert "| `Add` | 1 | `predicted slower` |  | `n2` | `ours 2.0 us` |" in lines


def test_text_of_a_large_model_stays_short(report: Report) -> None:
    many = dataclasses.replace(
        report,
        fused=report.fused * 500,
        refusals=tuple(Refusal(f"node{i}", "MatMul", f"reason {i % 40}") for i in range(3000)),
        kept=tuple(
            Kept(f"node{i}", "Add", f"its input may exceed fp16's range: constant {i}")
            for i in range(3000)
        ),
    )
    text = many.text()
    assert len(text.splitlines()) < 80
    assert "left to ONNX Runtime: 3000" in text
    assert "and 27 more groups" in text


def test_layers_apart_are_not_left_to_onnx_runtime(report: Report) -> None:
    refusals = (
        Refusal("a", "MatMul", "its second operand varies"),
        Refusal("b", "MatMul", "predicted slower", apart=True),
    )
    text = dataclasses.replace(report, refusals=refusals).text()
    assert "left to ONNX Runtime: 1" in text
    assert "not merged with a neighbouring layer: 1" in text


def test_names_with_markup_are_shown_as_they_are(report: Report) -> None:
    strange = dataclasses.replace(report, kept=(Kept("node[bold]", "Add", "reason [/x]"),))
    assert "node[bold]" in strange.text()
    assert "reason [/x]" in strange.text()


@pytest.mark.parametrize("name", ["[/decoder]", "[dec]/y", "layer:key:0"])
def test_names_of_tensors_are_shown_letter_by_letter(name: str, report: Report) -> None:
    assert report.verification is not None
    row = dataclasses.replace(report.verification.rows[0], name=name)
    verification = VerifyResult("fp16", (row,), (f"note {name}",))
    strange = dataclasses.replace(
        report, kept=(Kept(name, "Add", "reason"),), verification=verification
    )
    verdict, everything = verification.text(), strange.text()
    assert verdict.splitlines()[2].startswith(name)
    assert f"note {name}" in verdict
    assert everything.count(name) == 4  # the kept node, the row, the summary's nearest, the note


def test_json_holds_everything(report: Report, tmp_path: Path) -> None:
    report.save(tmp_path / "r.json")
    values = json.loads((tmp_path / "r.json").read_text())
    assert list(values) == sorted(values)
    assert values["format"] == FORMAT
    assert values["verification"]["passed"] is True
    times = {"arch", "ours_us", "ort_us", "measured_us", "floor_us", "model", "published"}
    assert values["fused"][0]["predicted"][0].keys() == times
    assert [path.name for path in tmp_path.iterdir()] == ["r.json"]


def test_measured_times_are_told_from_predicted_ones(mixed: ModelProto, report: Report) -> None:
    assert "times are predicted" in report.text()
    first = report.fused[0]
    predicted = (first.predicted[0], dataclasses.replace(first.predicted[1], measured_us=123.4))
    one, two = Comparison(5.0, 0.1, 9.0, 0.1), Comparison(9.0, 0.0, 5.0, 0.0, measured=False)
    regions = (Verdict("one", (90,), (one,)), Verdict("two", (90,), (two,)))
    fused = (dataclasses.replace(first, predicted=predicted), *report.fused[1:])
    measured = dataclasses.replace(report, fused=fused, regions=regions)
    assert "kernels measured on sm_90, all other times predicted" in measured.text()
    assert "two" not in measured.text()
    lines = measured.markdown().splitlines()
    assert "| `one` | 5.0 | 9.0 | 1.80 | measured | fused |" in lines
    assert "| `two` | 9.0 | 5.0 | 0.56 | predicted | left to ONNX Runtime |" in lines
    assert any(
        line.startswith(f"| `{first.name}` |") and line.endswith("| sm_90 123.4 |")
        for line in lines
    )
    assert any("123.4" in line for line in lines if line.startswith("| `FusedConv_Relu_f16` |"))


def test_every_decision_of_a_plan_is_reported(mixed: ModelProto) -> None:
    winning = optimize(mixed, precision="fp16", library=False, verify=False, archs=("sm_90a",))
    assert len(winning.regions) >= 2
    assert all(not region.measured and region.region for region in winning.regions)


def test_each_architecture_has_its_columns(mixed: ModelProto) -> None:
    report = optimize(
        mixed, precision="fp16", library=False, verify=False, archs=("sm_80", "sm_90a")
    )
    assert (
        "| sm_80 us | sm_90 us | ORT, sm_80 us | ORT, sm_90 us | sm_80 gain | sm_90 gain |"
        in report.markdown()
    )
    assert (
        "| region | sm_80 us | ORT, sm_80 us | sm_90 us | ORT, sm_90 us | gain | times | decision |"
        in report.markdown()
    )
    assert all(
        region["archs"] == [80, 90] and len(region["comparisons"]) == 2
        for region in json.loads(report.json())["regions"]
    )


def test_json_writes_nan_as_null(report: Report) -> None:
    row = Row(
        "t", "output", "CPU", float("nan"), 0.0, float("nan"), float("nan"), reason="shape"
    ).judged()
    values = json.loads(report.verified(VerifyResult("fp16", (row,))).json())
    assert values["verification"]["rows"][0]["error"] is None


def test_markdown_lists_every_fused_node(report: Report, tmp_path: Path) -> None:
    report.save(tmp_path / "r.md")
    text = (tmp_path / "r.md").read_text()
    assert all(f"| `{node.name}` |" in text for node in report.fused)
    assert text.rstrip().splitlines()[-1].startswith("PASSED: ")


@pytest.mark.parametrize("name", ["r.txt", "missing/r.json"])
def test_places_that_cannot_be_written(name: str, report: Report, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=name):
        report.save(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_failure_names_the_worst_tensor(report: Report) -> None:
    rows = tuple(
        Row(name, "output", "CPU", error, 1e-2, 0.0, 1.0).judged()
        for name, error in (("a", 0.5), ("b", 0.001), ("c", 0.9))
    )
    failed = report.verified(VerifyResult("fp16", rows))
    assert not failed.passed
    assert failed.failure().startswith(
        "2 of 3 tensors differ from the original by more than allowed, e.g. output c: error"
        " 9.00e-01"
    )


def test_strict_names_what_was_not_judged(report: Report) -> None:
    row = dataclasses.replace(
        Row("a", "segment", "CPU", 0.5, 1.0, 0.0, 1.0, level="segment"),
        unjudged="its limit is too wide",
    )
    found = VerifyResult("fp16", (row,))
    assert dataclasses.replace(report, strict=False).verified(found).passed
    assert (
        dataclasses.replace(report, strict=True).verified(found).failure()
        == "a part of the model could not be judged: segment a: its limit is too wide; give"
        " inputs that allow a verdict with inputs"
    )


def test_nothing_compared_is_a_failure(report: Report) -> None:
    assert "there was nothing to compare" in report.verified(VerifyResult("fp16", ())).failure()


KEEP = "precision='keep' rounds only the factors of products, to TF32, "


@pytest.mark.parametrize(
    ("precision", "reason", "remedies"),
    [
        (
            "fp16",
            NOT_FINITE,
            f"fp16 ends at 65504, and precision='bf16' has the range of fp32, {KEEP}",
        ),
        ("fp16", "", KEEP),
        ("bf16", NOT_FINITE, KEEP),
        ("keep", "", ""),
    ],
)
def test_failure_says_what_helps(
    precision: str, reason: str, remedies: str, report: Report
) -> None:
    row = Row("a", "output", "CPU", 0.5, 1e-2, 0.0, 1.0, reason=reason).judged()
    assert (
        report.verified(VerifyResult(precision, (row,)))
        .failure()
        .endswith(f"; {remedies}keep_failed=True keeps the file")
    )


def test_coverage_counts_the_flops_of_all_products(mixed: ModelProto) -> None:
    convolution, grouped, product, square = (
        2 * (2 * 8 * 8 * 8) * (8 * 3 * 3),
        2 * (2 * 6 * 8 * 8) * 4,
        2 * (2 * 16) * 6,
        2 * (2 * 2) * 16,
    )
    total, work = convolution + grouped + product + square, products(mixed, {})
    assert coverage(work, {"Conv_a"}) == pytest.approx(convolution / total)
    assert coverage(work, {"Conv_d"}) == pytest.approx(grouped / total)
    assert coverage(work, {"Conv_a", "Conv_d", "MatMul_m"}) == pytest.approx(1 - square / total)
    assert coverage(work, set()) == 0


def test_coverage_of_weights_that_are_computed_from_constants() -> None:
    body = "t = Transpose<perm=[1,0]>(w) y = MatMul(x, t)"
    model = model_of("(float[2,4] x) => (float[2,3] y)", body, {"w": np.ones((3, 4), np.float32)})
    assert coverage(products(model, {}), set()) == 0


def test_a_model_without_products_has_no_share() -> None:
    report = optimize(
        model_of("(float[2,4] x) => (float[2,4] y)", "y = Relu(x)", {}), library=False
    )
    assert report.coverage is None
    assert json.loads(report.json())["coverage"] is None
    assert "fused: 0 nodes, FLOPs n/a: no products or convolutions" in report.text()
    assert report.nothing_fused == "the model has no matrix products or convolutions"


def test_one_line_says_what_the_whole_model_gains(report: Report) -> None:
    lines = report.text().splitlines()
    (line,) = [
        line
        for line in lines
        if line.startswith(
            "whole model, predicted against ONNX Runtime's CUDA execution provider: "
        )
    ]
    assert line in report.markdown().splitlines()
    assert [estimate.arch for estimate in report.whole] == [80, 90]
    for estimate in report.whole:
        fused = [p for node in report.fused for p in node.predicted if p.arch == estimate.arch]
        assert estimate.ours_us > sum(p.ours_us for p in fused)  # nodes that stay take time, too
        saved = sum(p.ort_us - p.ours_us for p in fused)
        assert estimate.ort_us - estimate.ours_us <= saved  # less the changes of layout
        assert f"{estimate.gain:.2f} times as fast on sm_{estimate.arch}" in line
    measured = Tuning(whole=WholeModel(50.0, 100.0))
    assert (
        "at its best: 2.00 times as fast (50.0 us instead of 100.0)"
        in dataclasses.replace(report, tuning=measured).text()
    )


def test_a_gemm_that_planning_leaves_has_planning_s_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Canonicalization writes it as MatMul and Add, by another name."""
    net = Net({"x": (32, 64), "z": (64, 64)})
    weight, bias = net.normal(64, 40), net.normal(40)
    net.node("Gemm", "x", weight, bias)
    net.node("Gemm", "z", weight, bias, transA=1, alpha=0.5)
    monkeypatch.setattr(verdicts, "ort_us", lambda problem, arch: 0.125)
    found = optimize(
        net.model("gemm0", "gemm1"), archs=("sm_80",), library=False, verify=False
    ).refusals
    assert [(row.node, row.op) for row in found] == [("gemm0", "Gemm"), ("gemm1", "Gemm")]
    for row in found:
        assert row.reason.startswith("predicted slower than ONNX Runtime")
        assert row.values["ours_us"] > row.values["ort_us"] == 0.125
