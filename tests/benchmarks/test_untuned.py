"""The benchmark of plans without a GPU, on the CPU: function bodies in place of kernels, and
made-up times to learn from."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

from benchmarks import all as every
from benchmarks import untuned
from benchmarks.predictions import FORMULA, LEARNED, read
from benchmarks.untuned import (
    CASES,
    MEASUREMENTS,
    MODELS,
    TUNED,
    decisions,
    fused_nodes,
    hide_gpus,
    learn_and_plan,
    main,
    plan,
)
from models import build
from onnxbolt import gpu
from onnxbolt.archs import get
from onnxbolt.measurements.keys import kernel_key
from onnxbolt.measurements.records import Measurement, Status
from onnxbolt.measurements.timings import Comparison
from onnxbolt.options import Options
from onnxbolt.plan.cost import candidates
from onnxbolt.tune.database import Database
from onnxbolt.tune.lockfile import Lock
from onnxbolt.tune.sessions import Source
from onnxbolt.tune.stage import kernel_problems
from onnxbolt.tune.subject import Subject
from onnxbolt.tune.training import trained_on
from tests.tune import learning as made_up

SMALL = "dlrm_bottom-2048"
OPTIONS = Options(archs=("sm_90a",), verify=False)


@pytest.fixture
def measurements(tmp_path: Path) -> Path:
    """All kernels of some problems, and of those of SMALL."""
    pytest.importorskip("lightgbm", reason="the extra [learn] is not installed")
    out = tmp_path / "measurements.jsonl.gz"
    own = kernel_problems(Subject.of(CASES[SMALL].given(), OPTIONS), [90])
    with Database(tmp_path / "tuning.sqlite") as database:
        for problem in dict.fromkeys((*made_up.problems(14), *own)):
            key = kernel_key(problem, made_up.machine())
            database.add(
                *(
                    Measurement(key, config, Status.OK, made_up.true_us(problem, config), 0.01, 6)
                    for config in candidates(problem, get(90))
                )
            )
        database.export(out)
    return out


def test_all_three_plans_of_a_model_run_in_turns(measurements: Path, tmp_path: Path) -> None:
    out = tmp_path / "results.json"
    options = ["--measurements", str(measurements), "--provider", "cpu", "--quick"]
    assert main([SMALL, *options, "--out", str(out)]) == 0
    document = json.loads(out.read_text())
    assert document["planned"] == [[CASES[name].model, CASES[name].batch] for name in MODELS]
    (row,) = document["rows"]
    assert (row["name"], row["batch"]) == ("dlrm_bottom", 2048)
    assert row["ratio"] == pytest.approx(row["peer_us"] / row["ours_us"], rel=1e-2)
    assert 0 < row["error"] < 1e-2
    values = row["values"]
    assert values["formula_ratio"] == pytest.approx(values["formula_us"] / row["ours_us"], rel=1e-2)
    assert (values["left_out"] > 0, values["learned_from"]) == (True, 14)
    assert set(values["nodes"]) == {TUNED, FORMULA, LEARNED}
    # without --tune the third plan is that of the formulas, too
    assert values["other_nodes"][FORMULA] == 0
    assert values["configurations"] == "predicted"
    assert values["decisions"] == values["wrong_decisions"] == {FORMULA: 0, LEARNED: 0}


def test_a_plan_follows_a_model_that_has_not_seen_its_problems(
    measurements: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = list[Options]()
    monkeypatch.setattr(untuned, "plan", lambda name, out, options: used.append(options))
    own = dict.fromkeys(kernel_problems(Subject.of(CASES[SMALL].given(), OPTIONS), [90]))
    counts = learn_and_plan(SMALL, tmp_path / "learned.onnx", OPTIONS, measurements)
    assert counts == (len(own), 14)
    (options,) = used
    assert options.cost_model
    rest = [each for each in read(measurements) if each.problem not in own]
    text = trained_on(rest, "the rest").text
    assert Path(options.cost_model).read_text() == text


def test_nodes_with_other_kernels_are_other_nodes(tmp_path: Path) -> None:
    out = tmp_path / "formula.onnx"
    plan(SMALL, out, OPTIONS)
    model = onnx.load(out)
    before = fused_nodes(Source("before", model.SerializeToString()))
    attributes = {each.name: each for each in model.graph.node[0].attribute}
    attributes["config_source"].s = b"measured"
    assert fused_nodes(Source("measured", model.SerializeToString())) == before
    attributes["configs"].ints[-1] += 1
    assert len(before - fused_nodes(Source("other", model.SerializeToString()))) == 1
    assert not fused_nodes(Source("plain", build("dlrm_bottom", 1).SerializeToString()))


def test_decisions_are_judged_by_measured_times() -> None:
    times = {"fast": 1.5, "slow": 0.8, "close": 0.97, "predicted": 0.5, "unknown": 2.0}

    def lock(fused: bool) -> Lock:
        return Lock(
            comparisons={
                key: Comparison(1.0, 0.0, 2.0 if fused else 0.5, 0.0, measured=False)
                for key in times
                if key != "unknown"
            }
        )

    measured = {
        key: Comparison(1.0, 0.0, us, 0.0, measured=key != "predicted") for key, us in times.items()
    }
    tuned = Lock(comparisons=measured)
    assert decisions(tuned, lock(fused=True)) == (3, 1)
    assert decisions(tuned, lock(fused=False)) == (3, 1)
    assert decisions(Lock(), lock(fused=True)) == (0, 0)


def test_planning_processes_see_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    gpu.compute_capability.cache_clear()
    hide_gpus()
    assert gpu.local_arch() is None


def test_each_model_is_a_task_and_measurements_are_there() -> None:
    tasks = [task.arguments.split()[0] for task in every.TASKS if task.benchmark == "untuned"]
    assert sorted(tasks) == sorted(MODELS)
    assert MEASUREMENTS.exists()


def test_an_unknown_model_is_one_clear_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["vit"])
    assert "no model vit: choose from vit_base-32, " in capsys.readouterr().err
