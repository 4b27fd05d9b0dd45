"""A cost model's file: what it predicts, when it does not count, and which files are refused."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from onnxbolt import pipeline
from onnxbolt.archs import get
from onnxbolt.codegen import digest
from onnxbolt.errors import InputError
from onnxbolt.families import named
from onnxbolt.families.gemm_sm90 import GemmSm90
from onnxbolt.families.row import SLOTS
from onnxbolt.learned import model as learned
from onnxbolt.learned.model import CostModel
from onnxbolt.plan import cost
from onnxbolt.tune.lockfile import Lock
from onnxbolt.tune.tasks import tasks_of
from tests.support import Net
from tests.tune.fakes import gemm
from tests.tune.learning import written

H200 = get(90)
PROBLEM = gemm(2048, 1024, 640)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return written(tmp_path / "model.json")


def test_a_learned_family_gets_its_factor_and_the_others_their_formula(path: Path) -> None:
    formula = {config: us for us, config in cost.ranked(PROBLEM, H200)}
    with cost.learned_from(path):
        ranked = cost.ranked(PROBLEM, H200)
        assert ranked[0] == cost.predict(PROBLEM, 90)[::-1]
        by_trees = {config for config in formula if cost.predicted_by(config)}
        for us, config in ranked:
            factor = 1.0
            if config in by_trees:
                factor = 2.0 if config.row()[SLOTS.index("tile_n")] > 128 else 0.5
            assert math.isclose(us, formula[config] * factor)
            assert cost.fused_us(PROBLEM, config, H200) == us
        assert [us for us, _ in ranked] == sorted(us for us, _ in ranked)
    assert {config.family.name for config in by_trees} == {"gemm_sm90"}
    assert cost.ranked(PROBLEM, H200)[0][0] == min(formula.values())


def test_the_scheduler_gets_the_spread_of_held_out_problems(path: Path) -> None:
    with cost.learned_from(path):
        (task,) = tasks_of([PROBLEM], H200)
    spreads = {c.config.family.name: c.spread for c in task.candidates}
    assert spreads.pop("gemm_sm90") == 0.1
    assert set(spreads.values()) == {0.25}


def test_another_architecture_keeps_the_formula(path: Path) -> None:
    model = CostModel.read(path)
    (config, *_) = named("gemm_2x").candidates(PROBLEM, get(80))
    assert model.of(config) is None


def test_a_family_whose_kernels_have_changed_keeps_the_formula(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learned, "same_kernels", lambda name, sources: False)
    model = CostModel.read(path)
    assert (dict(model.families), model.outdated) == ({}, ("gemm_sm90",))


def test_a_family_whose_formula_has_changed_keeps_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GemmSm90, "terms", lambda *_: {"another": 1.0})
    assert CostModel.read(path).outdated == ("gemm_sm90",)


def test_the_digest_of_a_family_is_over_what_its_unit_includes() -> None:
    own, others = (digest.family_sources_digest(name) for name in ("gemm_sm90", "conv_sm90"))
    assert len({own, others, ""}) == 3
    assert digest.family_sources_digest("of_an_extension") == ""


def test_lock_file_and_report_name_the_model(path: Path, tmp_path: Path) -> None:
    net = Net({"x": (512, 528)})
    source = net.model(net.node("Relu", net.linear("x", 528, 544)))
    lock, out = tmp_path / "onnxbolt.lock", tmp_path / "out.onnx"
    report = pipeline.optimize(
        source,
        out,
        cost_model=path,
        lock=lock,
        archs="sm_90a",
        fuse="all",
        library=False,
        verify=False,
    )
    name = CostModel.read(path).digest
    assert [p.model for row in report.fused for p in row.predicted] == [name]
    assert f"times are predicted, those of some kernels by cost model {name}" in report.text()
    report.save(tmp_path / "report.html")
    assert f"cost model {name}" in (tmp_path / "report.html").read_text()
    (choice,) = Lock.read(lock).choices.values()
    assert (choice.model, choice.measured) == (name, False)
    pipeline.optimize(
        source, out, lock=lock, archs="sm_90a", fuse="all", library=False, verify=False
    )
    (choice,) = Lock.read(lock).choices.values()
    assert choice.model == ""
    assert '"model"' not in lock.read_text()


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"format": "another"}, "not a cost model"),
        ({"schema": 2}, "schema version 2.*train it again"),
        ({"families": [{}]}, "not a cost model, or damaged"),
        ({"families": 1}, "not a cost model, or damaged"),
    ],
)
def test_a_file_that_is_no_cost_model_is_one_clear_error(
    path: Path, change: dict[str, Any], what: str
) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(InputError, match=what), cost.learned_from(path):
        pass


@pytest.mark.parametrize("spread", [0, 1e-320, 2**31])
def test_a_spread_with_which_the_tuner_cannot_calculate_is_refused(
    path: Path, spread: float
) -> None:
    held = json.loads(path.read_text())
    held["families"][0]["spread"] = spread
    path.write_text(json.dumps(held))
    with pytest.raises(InputError, match=r"a number from 0\.001 to 10\.0 is expected"):
        CostModel.read(path)


def test_times_stay_within_a_factor_of_the_formulas(path: Path) -> None:
    held = json.loads(path.read_text())
    held["families"][0]["trees"].update(roots=[0] * 20, value=[0.0, -100.0, 100.0])
    path.write_text(json.dumps(held))
    with cost.learned_from(path):
        for us, config in cost.ranked(PROBLEM, H200):
            factor = us / cost.formula_us(PROBLEM, config, H200)
            expected = (0.001, 1000) if cost.predicted_by(config) else (1,)
            assert any(math.isclose(factor, each) for each in expected)


def test_a_family_whose_probe_is_no_problem_of_today_keeps_the_formula(path: Path) -> None:
    held = json.loads(path.read_text())
    held["families"][0]["probes"][0]["problem"]["inner"] = "unknown"
    path.write_text(json.dumps(held))
    assert CostModel.read(path).outdated == ("gemm_sm90",)


def test_a_missing_file_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.json"):
        pipeline.tune("none.onnx", cost_model=tmp_path / "none.json")


def test_deployment_imports_no_cost_model() -> None:
    code = (
        "import sys, onnxbolt; onnxbolt.session_options;"
        "print([m for m in sys.modules if 'lightgbm' in m or 'learned' in m])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
