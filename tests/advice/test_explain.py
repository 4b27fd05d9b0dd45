"""`explain` as a whole: combined advice, one node alone, what is written, and its forms."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest

import onnxbolt
from models.unfriendly import unfriendly
from onnxbolt.advice import _forecaster, explain, explained, measuring, words
from onnxbolt.advice.channels import Channels
from onnxbolt.advice.draft import Draft
from onnxbolt.advice.explanation import FORMAT, Explanation
from onnxbolt.advice.findings import APART, LAYOUT, UNALIGNED, UNFUSED
from onnxbolt.advice.forecast import opt_point
from onnxbolt.advice.inputs import FixedSizes
from onnxbolt.cli import main
from onnxbolt.errors import AdviceError, InputError
from onnxbolt.graph.importer import load_model
from onnxbolt.graph.weights import complete, is_apart
from onnxbolt.options import Options
from onnxbolt.report import Report
from onnxbolt.tune.summary import Tuning, WholeModel
from tests.support import Net, feeds_of, run

ARCH = "sm_90a"


def odd() -> onnx.ModelProto:
    """46 channels in two groups, and Softplus: two advices that go together."""
    net = Net({"x": [32, 16, 56, 56]})
    y = net.node("Softplus", net.conv("x", 16, 46, 3, pads=[1, 1, 1, 1]))
    for group in (2, 46, 2, 46, 46):
        y = net.node("Softplus", net.conv(y, 46, 46, 3, group=group, pads=[1, 1, 1, 1]))
        y = net.node("Softplus", net.conv(y, 46, 46, 1))
    return net.model(net.conv(y, 46, 16, 1))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("explain") / "odd.onnx"
    onnx.save(odd(), path)
    return path


@pytest.fixture(scope="module")
def whole(path: Path) -> Explanation:
    return explain(path, archs=ARCH)


def test_advices_that_go_together_are_combined(whole: Explanation) -> None:
    keys = {advice.key: advice for advice in whole.advices}
    assert whole.total is not None
    first, second = whole.total.key.split(" + ")
    assert first == whole.advices[0].key == "channels/8"
    assert second.startswith("activation/Softplus/")
    assert whole.total.gain > keys["channels/8"].gain > 0
    assert whole.total.needs_retraining
    assert whole.total.words == f"{keys[first].words}; {keys[second].words}"


def test_findings_name_their_advices(whole: Explanation) -> None:
    grouped = [f for f in whole.findings if f.state == UNFUSED and f.op == "Conv"]
    assert len(grouped) == 2
    for finding in grouped:
        assert finding.reason == "grouped convolutions of such widths stay with ONNX Runtime"
        assert finding.remedy.startswith("groups whose channels are multiples of 8")
        assert "channels/8" in finding.advices
        assert finding.ms[0] > 0
    assert {finding.state for finding in whole.findings} <= {UNFUSED, APART, LAYOUT, UNALIGNED}


def test_one_node_alone(path: Path, whole: Explanation) -> None:
    node = next(f.node for f in whole.findings if f.state == UNFUSED)
    alone = explain(path, archs=ARCH, nodes=node)
    assert {finding.node for finding in alone.findings} == {node}
    assert {advice.kind for advice in alone.advices} == {"channels"}
    with pytest.raises(InputError, match=r"node='conv'.*no such node. Near: conv"):
        explain(path, archs=ARCH, nodes="conv")


def test_the_written_model_follows_the_advice(tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    net = Net({"x": [32, 16, 28, 28]})
    y = net.node("Relu", net.conv("x", 16, 46, 3, pads=[1, 1, 1, 1]))
    y = net.node("Relu", net.conv(y, 46, 46, 3, group=2, pads=[1, 1, 1, 1]))
    model = net.model(net.conv(y, 46, 16, 1))
    found = explain(model, archs=ARCH, write_model=out)
    assert found.advices[0].key == "channels/8"
    feeds = feeds_of(model)
    np.testing.assert_allclose(run(out, feeds)[0], run(model, feeds)[0], rtol=1e-3, atol=1e-4)
    assert explain(out, archs=ARCH).advices == ()


@pytest.mark.parametrize("form", ["", "--json", "--sarif", "--quiet"])
def test_without_advice_the_explanation_is_printed_and_nothing_is_written(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    net, source, out = Net({"x": [4, 64]}), tmp_path / "in.onnx", tmp_path / "out.onnx"
    onnx.save(net.model(net.linear("x", 64, 64)), source)
    with pytest.raises(AdviceError, match="no advice to follow") as raised:
        explain(source, archs=ARCH, write_model=out)
    given = ["explain", str(source), "--arch", ARCH, *filter(None, [form])]
    assert main(given) == 0
    printed = capsys.readouterr().out
    assert main([*given, "--write-model", str(out)]) == raised.value.exit_code == 1
    found = capsys.readouterr()
    assert found.out == printed
    assert bool(printed) == (form != "--quiet")
    assert found.err.splitlines()[-1].endswith(
        f"--write-model {out}: no model is written, since there is no advice to follow: no change"
        " that was tried saves 3% of the time"
    )
    assert raised.value.explanation == explain(source, archs=ARCH)
    assert list(tmp_path.iterdir()) == [source]


def test_large_weights_that_stay_are_read_from_their_file(tmp_path: Path) -> None:
    """The layer in front has 2 MiB of weights that do not change, the others become wider."""
    net = Net({"x": [64, 1024]})
    y = net.node("Relu", net.linear("x", 1024, 512))
    y = net.node("Reshape", net.linear(y, 512, 46 * 64), net.const([64, 46, 8, 8], np.int64))
    y = net.node("Relu", net.conv(y, 46, 46, 3, group=2, pads=[1, 1, 1, 1]))
    model, path = net.model(net.conv(y, 46, 16, 1)), tmp_path / "in.onnx"
    onnx.save(model, path, save_as_external_data=True)
    draft = Draft(load_model(path))
    change = next(each for each in Channels.find(draft) if isinstance(each, Channels))
    changed = change.applied(load_model(path))
    apart = [t.name for t in changed.graph.initializer if is_apart(t)]
    assert apart == ["c0"]
    feeds = feeds_of(model)
    whole = complete(changed, {})
    np.testing.assert_allclose(run(whole, feeds)[0], run(path, feeds)[0], rtol=1e-3, atol=1e-4)


def test_the_original_is_not_overwritten(path: Path) -> None:
    before = path.read_bytes()
    with pytest.raises(InputError, match="never overwritten"):
        explain(path, archs=ARCH, write_model=path)
    assert path.read_bytes() == before


def test_a_draft_that_contradicts_itself_is_no_model() -> None:
    net = Net({"x": [4, 16]})
    draft = Draft(net.model(net.node("Relu", net.linear("x", 16, 8))))
    constant = draft.tensor("c0")
    constant.values = constant.values[:12]
    with pytest.raises(InputError, match="the changed model contradicts itself"):
        draft.model()


def test_changed_models_are_measured_beside_the_original(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "_ROUNDS", 2)
    monkeypatch.setattr(measuring, "_RUNS", 2)
    monkeypatch.setattr(measuring, "_SEARCH_RUNS", 1)
    model = unfriendly("three_channel_stem", 4)
    options = Options(archs=(ARCH,), verify=False)
    found = explained(model, (), True, None, options, None, lambda line: None)
    (advice,) = found.advices
    before, after = found.measured, advice.measured
    assert before is not None
    assert after is not None
    assert {before.gpu, after.gpu} == {"CPU"}
    assert min(before.ms, after.ms) > 0
    text = words.text(found)
    assert "measured on CPU: " in text
    assert f"    measured: {after.ms:.4f} ms instead of {before.ms:.4f}" in text


def test_planned_times_are_those_of_the_models_that_are_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The models share the budget, and the first alone is verified."""
    asked, reports = list[Options](), list[Report]()

    def built(model: onnx.ModelProto, path: Path, *, options: Options, progress: object) -> Report:
        asked.append(options)
        slow = dataclasses.replace(options, verify=False, budget=None)
        report = onnxbolt.optimize(model, path, options=slow)
        whole = WholeModel(70.0 + len(reports), 90.0, ("a region",))
        estimates = [
            dataclasses.replace(each, ours_us=len(reports) + 50.0) for each in report.whole
        ]
        reports.append(
            dataclasses.replace(report, whole=tuple(estimates), tuning=Tuning(whole=whole))
        )
        return reports[-1]

    monkeypatch.setattr(measuring, "optimize", built)
    for name in ("_ROUNDS", "_RUNS", "_SEARCH_RUNS"):
        monkeypatch.setattr(measuring, name, 2)
    model = unfriendly("three_channel_stem", 4)
    options = Options(archs=(ARCH,), budget=30.0)
    found = explained(model, (), True, None, options, None, lambda line: None, deepen=False)
    (advice,) = found.advices
    assert found.free is None
    assert [each.verify for each in asked] == [True, False]
    assert [each.budget for each in asked] == [15.0, 15.0]
    for measured, number in ((found.measured, 0), (advice.measured, 1)):
        assert measured is not None
        assert measured.planned_ms == (50 + number) / 1000
        assert measured.whole == WholeModel(70.0 + number, 90.0, ("a region",))
        assert measured.nothing_fused == ""


def test_times_are_those_of_the_device_in_a_cuda_graph_where_one_can_be_captured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[object] = []

    class Queued:
        def measure(self, count: int) -> list[float]:
            pytest.fail("the host's cost counts")

        def measure_queued(self, count: int) -> list[float]:
            return [70.0]

    def search(*arguments: object) -> SimpleNamespace:
        tried.append(arguments[-1])
        if arguments[-1] == (True,) and "1.onnx" in str(arguments[0]):
            raise RuntimeError("no setting runs")
        return SimpleNamespace(session=Queued())

    monkeypatch.setattr(measuring, "search", search)
    model = unfriendly("three_channel_stem", 4)
    options = Options(archs=(ARCH,), verify=False)
    found = explained(model, (), True, None, options, None, lambda line: None)
    assert found.measured is not None
    assert found.measured.ms == 0.07
    assert tried == [(True,), (True,), (False,)]  # the second cannot be captured


def test_measuring_needs_a_gpu(path: Path) -> None:
    with pytest.raises(Exception, match=r"[Cc][Uu][Dd][Aa]|GPU"):
        explain(path, archs=ARCH, measure=True)


@pytest.mark.parametrize("batch", [4, 16])
def test_changes_are_compared_at_the_point_of_the_plan(batch: int) -> None:
    """Fixing one open size leaves the others, and the images, as they were."""
    net = Net({"x": ["n", 8, "h", "w"], "y": ["n", 16]})
    image = net.node("Flatten", net.node("GlobalAveragePool", net.conv("x", 8, 16, 3)), axis=1)
    model = net.model(net.node("Add", image, "y"))
    shapes = {"x": (batch, 8, 64, 96), "y": (batch, 16)}
    options = Options(archs=(ARCH,), opt_shapes=shapes)
    assert opt_point(model, options) == shapes
    forecaster = _forecaster(model, options)
    base = forecaster.of(model)
    for change in FixedSizes.find(Draft(model, base.point)):
        assert isinstance(change, FixedSizes)
        fixed = forecaster.of(change.applied(model))
        assert fixed.point == base.point == shapes
        assert fixed.ms == pytest.approx(base.ms, rel=1e-6)


def test_models_with_nothing_to_compute_are_explained() -> None:
    empty, scalar = Net({"x": [0, 8, 4, 4]}), Net({"x": []})
    for model in (
        empty.model(empty.conv("x", 8, 12, 3, pads=[1, 1, 1, 1])),
        scalar.model(scalar.node("Relu", "x")),
    ):
        found = explain(model, archs=ARCH)
        assert found.advices == ()
        assert words.text(found)


def test_names_of_a_model_are_no_markup(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    net = Net({"x": [8, 8, 28, 28]})
    y = net.conv("x", 8, 46, 3)
    net.nodes[-1].name = "</script>\x1b[31m"
    y = net.conv(y, 46, 46, 3, group=2)
    path = tmp_path / "in.onnx"
    onnx.save(net.model(net.conv(y, 46, 8, 1)), path)
    assert main(["explain", str(path), "--arch", ARCH]) == 0
    out = capfd.readouterr().out
    assert "\x1b" not in out
    assert "</script>\\x1b[31m" in out


# --- forms ----------------------------------------------------------------------------------------


def test_the_text_has_advices_first(whole: Explanation) -> None:
    lines = words.text(whole).splitlines()
    assert lines[0].startswith(whole.model)
    assert "fp16 (predicted)" in lines[0]
    assert lines[2:4] == ["advice:", f"  {whole.advices[0].words}"]
    assert "needs no retraining; results: the same" in lines[4]
    assert "together:" in lines
    assert "not fused, or not at its best:" in lines


def test_the_text_says_that_there_is_no_advice() -> None:
    net = Net({"x": [512, 256]})
    text = words.text(explain(net.model(net.linear("x", 256, 256)), archs=ARCH))
    assert "no advice: no change that was tried saves 3% of the time" in text


def test_names_with_line_ends_stay_in_their_line() -> None:
    model = odd()
    for node in model.graph.node:
        node.name = f"\n{node.name}\x1b"
    lines = words.text(explain(model, archs=ARCH)).splitlines()
    assert any(line.startswith(r"    concerns \nconv0\x1b, ") for line in lines)
    assert any(r" \nconv2\x1b" in line for line in lines)
    assert not [line for line in lines if re.match("conv|softplus", line)]


def test_json_has_all_fields_and_its_format(whole: Explanation) -> None:
    found = json.loads(words.as_json(whole))
    assert found["format"] == FORMAT
    assert [advice["key"] for advice in found["advices"]] == [a.key for a in whole.advices]
    assert found["ms"] == list(whole.ms)


def test_sarif_has_the_essentials_of_its_schema(whole: Explanation) -> None:
    log = json.loads(words.sarif(whole))
    assert log["version"] == "2.1.0"
    assert log["$schema"].endswith("sarif-schema-2.1.0.json")
    (run,) = log["runs"]
    driver = run["tool"]["driver"]
    assert driver["name"] == "onnxbolt"
    rules = [rule["id"] for rule in driver["rules"]]
    assert len(set(rules)) == len(rules)
    assert all(rule["shortDescription"]["text"] for rule in driver["rules"])
    assert len(run["results"]) == len(whole.findings) + len(whole.advices)
    for result in run["results"]:
        assert set(result) == {"ruleId", "level", "message", "locations"}
        assert result["ruleId"] in rules
        assert result["level"] in ("none", "note", "warning", "error")
        assert result["message"]["text"]
        (location,) = result["locations"]
        assert location["physicalLocation"]["artifactLocation"]["uri"].startswith("file:///")
        for logical in location["logicalLocations"]:
            assert logical["fullyQualifiedName"]


@pytest.mark.parametrize(
    ("flags", "read"),
    [
        ([], lambda text: "advice:" in text),
        (["--json"], lambda text: json.loads(text)["format"] == FORMAT),
        (["--sarif"], lambda text: json.loads(text)["version"] == "2.1.0"),
        (["--log-format", "json"], lambda text: json.loads(text)["event"] == "explanation"),
        (["--quiet"], lambda text: text == ""),
    ],
)
def test_the_command_prints_each_form(
    flags: list[str],
    read: Callable[[str], Any],
    path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    node = ["--node", "conv2"]
    assert main(["explain", str(path), "--arch", ARCH, *node, *flags]) == 0
    assert read(capfd.readouterr().out)


def test_a_node_in_a_body_is_named_with_or_without_its_place() -> None:
    branches = {}
    for branch in ("then_branch", "else_branch"):
        net = Net({"x": [8, 46, 28, 28]})
        y = net.conv("x", 46, 46, 3, group=2, pads=[1, 1, 1, 1])
        net.nodes[-1].name = f"{branch}_conv"
        branches[branch] = net.model(y).graph
        del branches[branch].input[:]
    whole = Net({"x": [8, 46, 28, 28], "condition": []}, types={"condition": onnx.TensorProto.BOOL})
    model = whole.model(whole.node("If", "condition", **branches))
    (found,) = explain(model, nodes="then_branch_conv", archs=ARCH).findings
    assert found.node.startswith("then_branch_conv in then_branch of If")
    assert explain(model, nodes=found.node, archs=ARCH).findings == (found,)
    assert len(explain(model, archs=ARCH).findings) == 2


def test_wrong_usage(path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(path), "--json", "--sarif"]) == 2
    assert "give one of them" in capfd.readouterr().err
    assert main(["explain", str(path), "--frozen"]) != 0
    assert main(["explain", str(path), "--arch", ARCH, "--node", "nothing"]) == 1
    assert "--node nothing: the model has no such node" in capfd.readouterr().err


def test_options_are_those_of_optimize(path: Path) -> None:
    kept = explain(path, options=Options(archs=(ARCH, "sm_80"), precision="keep"))
    assert (kept.precision, kept.archs) == ("keep", (90, 80))
    assert all(len(advice.after_ms) == 2 for advice in (*kept.advices, *kept.tried))


def test_a_change_that_two_kinds_of_multiples_make_is_tried_once() -> None:
    """46 channels become 48 for multiples of 8 and of 16; 20 become 24 and 32."""
    net = Net({"x": [1, 16, 14, 14]})
    same = net.model(net.conv(net.node("Relu", net.conv("x", 16, 46, 3)), 46, 16, 1))
    net = Net({"x": [1, 16, 14, 14]})
    apart = net.model(net.conv(net.node("Relu", net.conv("x", 16, 20, 3)), 20, 16, 1))
    for model, expected in ((same, ["use 48"]), (apart, ["use 24", "use 32"])):
        changes = [c for c in Channels.find(Draft(model)) if isinstance(c, Channels)]
        assert [change.words[: len("use 48")] for change in changes] == expected
        found = explain(model, archs=ARCH)
        listed = [each.words for each in (*found.advices, *found.tried)]
        assert len(listed) == len(set(listed))


def test_reasons_that_differ_in_names_alone_share_a_row() -> None:
    net = Net({"x": (2, 64, 256), "a": (2, 1, 256), "b": (2, 1, 256)})
    first = net.node("Mul", net.linear("x", 256, 256), "a")
    second = net.node("Mul", net.linear(first, 256, 256), "b")
    text = words.text(explain(net.model(net.linear(second, 256, 256)), archs=ARCH))
    (row,) = (line for line in text.splitlines() if line.startswith("Mul "))
    assert re.search(r"^Mul +2 +.*shape differs from the result's ", row)
    net = Net({"x": (2, 64, 256), "a": (2, 1, 256)})
    y = net.linear(net.node("Mul", net.linear("x", 256, 256), "a"), 256, 256)
    single = words.text(explain(net.model(y), archs=ARCH))
    assert re.search(
        r"^Mul +1 +.*shape differs from the result's: a_f16 \[2, 1, 256\]", single, re.M
    )
