"""Training on measurements that are made up: no figure here says anything of a GPU."""

from __future__ import annotations

import dataclasses
import importlib
import json
import random
from pathlib import Path
from typing import Any

import pytest

from benchmarks import collect
from onnxbolt.archs import get
from onnxbolt.cli import main
from onnxbolt.codegen import digest
from onnxbolt.codegen.digest import families_digests
from onnxbolt.errors import InputError
from onnxbolt.learned.model import CostModel
from onnxbolt.measurements.keys import canonical, kernel_key
from onnxbolt.measurements.records import Measurement, Status
from onnxbolt.plan import cost
from onnxbolt.tune import listing, training
from onnxbolt.tune.database import Database
from onnxbolt.tune.training import measured_in, train
from tests.tune import learning
from tests.tune.fakes import gemm

H200 = get(90)


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database(tmp_path / "tuning.sqlite")


def lightgbm() -> None:
    pytest.importorskip("lightgbm", reason="the extra [learn] is not installed")


def test_a_model_orders_held_out_problems_as_the_measurements_do(
    database: Database, tmp_path: Path
) -> None:
    lightgbm()
    database.add(*learning.measurements(learning.problems()))
    trained = train(database)
    (family,), (kind,) = trained.families, trained.kinds
    assert (family.name, kind.name, family.problems) == ("gemm_sm90", "gemm", 12)
    assert family.kept
    formula, learned = family.regrets
    assert learned < 1.02 < formula
    assert family.ranks[1] > 0.9 > family.ranks[0]
    path = tmp_path / "model.json"
    path.write_text(trained.text)
    other = gemm(2048, 1024, 640)  # a problem that nobody measured
    with cost.learned_from(path):
        times = {config: us for us, config in cost.ranked(other, H200)}
    for config in learning.kernels(other):
        assert times[config] == pytest.approx(learning.true_us(other, config), rel=0.15)


def test_the_same_measurements_give_the_same_bytes_in_any_order(
    database: Database, tmp_path: Path
) -> None:
    lightgbm()
    rows = learning.measurements(learning.problems())
    database.add(*rows)
    random.Random(0).shuffle(rows)
    with Database(tmp_path / "other.sqlite") as other:
        for row in rows[:7]:
            other.add(row)
        other.add(*rows[7:])
        assert train(other).text == train(database).text


def test_a_family_keeps_the_formula_where_that_is_no_worse(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    lightgbm()
    monkeypatch.setattr(learning, "true_us", lambda p, c: cost.formula_us(p, c, H200) * 1.5)
    database.add(*learning.measurements(learning.problems()))
    trained = train(database)
    assert [family.kept for family in trained.families] == [False]
    assert json.loads(trained.text)["families"] == []


@pytest.mark.parametrize(
    "family", ["quantized_conv_sm90", "quantized_gemm_sm90", "quantized_depthwise"]
)
def test_kernels_of_codes_can_be_learned(database: Database, tmp_path: Path, family: str) -> None:
    lightgbm()
    able = [problem for problem in collect.read() if learning.kernels(problem, family)]
    database.add(*learning.measurements(able[:20], family))
    trained = train(database)
    (quality,) = trained.families
    assert quality.name == family
    (tmp_path / "model.json").write_text(trained.text)
    model = CostModel.read(tmp_path / "model.json")
    assert [each.name for each in model.families] == [family] * quality.kept
    assert quality.ranks[1] >= quality.ranks[0]


def test_what_counts_is_what_computes_correct_results_with_todays_kernels(
    database: Database,
) -> None:
    (problem,) = learning.problems(1)
    rows = learning.measurements([problem])
    first, second, third, *_ = rows
    assert first.config
    old = first.key.replace(learning.machine().templates, "another digest")
    database.add(
        first,
        Measurement(first.key, first.config, Status.WRONG),
        second,
        Measurement(second.key, second.config, Status.OK, 77.0, runs=second.runs + 1),
        third,
        Measurement(old, rows[3].config, Status.OK, 5.0, runs=9),
        Measurement("of no kernel", None, Status.OK, 5.0, runs=9),
    )
    (found,) = measured_in(database)
    assert found.problem == problem
    assert dict(zip(found.kernels, found.us, strict=True)) == {
        second.config: 77.0,
        third.config: third.us,
    }


def test_measurements_with_other_sources_count_for_the_families_that_stayed(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both where they are looked up and where they are learned from."""
    (problem,) = learning.problems(1)
    rows = [
        dataclasses.replace(row, key=row.key.replace(learning.machine().templates, "before"))
        for family in ("gemm_sm90", "gemm_2x")
        for row in learning.measurements([problem], family)
    ]
    database.add(*rows)
    sources = families_digests() | {"gemm_2x": "others"}
    monkeypatch.setattr(digest, "_earlier", lambda: {"before": sources})
    kept = {row.config for row in rows if row.family == "gemm_sm90"}
    assert 0 < len(kept) < len(rows)
    assert database.tried(kernel_key(problem, learning.machine())) == kept
    (found,) = measured_in(database)
    assert set(found.kernels) == kept
    assert database.measurements(rows[0].key) == rows  # as they are stored


UNKNOWN: list[Any] = [None, [], "H200", 90, {}, {"gpu": []}, {"templates": []}]


@pytest.mark.parametrize("machine", UNKNOWN, ids=json.dumps)
@pytest.mark.parametrize("part", ["machine", "templates", "gpu"])
def test_keys_without_a_machine_are_passed_over(
    database: Database, tmp_path: Path, machine: Any, part: str
) -> None:
    """Also where such a file is merged, and shown."""
    good, other = learning.measurements(learning.problems(2))[::40][:2]
    key = json.loads(other.key)
    if part == "machine":
        key["machine"] = machine
    else:
        key["machine"][part] = machine
    other = dataclasses.replace(other, key=canonical(key), config=None)
    with Database(tmp_path / "other.sqlite") as merged:
        merged.add(other)
    database.add(good)
    assert database.merge(tmp_path / "other.sqlite") == 1
    assert [found.kernels for found in measured_in(database)] == [(good.config,)]
    assert {entry.gpu for entry in listing.entries(database)} <= {"", "Fake", "H200"}


def test_deep_and_unsound_keys_are_listed_or_refused(database: Database, tmp_path: Path) -> None:
    good = learning.measurements(learning.problems(1))[0]
    deep = dataclasses.replace(good, key="[" * 90_000, config=None)
    model = dataclasses.replace(good, key='{"model":"m"}', config=None)
    database.add(deep, model)
    assert len([entry.summary() for entry in listing.entries(database)]) == 2
    key = json.loads(good.key)
    key["kernel"]["m"] = "many"
    with Database(tmp_path / "other.sqlite") as other:
        other.add(dataclasses.replace(good, key=canonical(key), config=None))
    with pytest.raises(InputError, match="m is 'many'"):
        database.merge(tmp_path / "other.sqlite")


def test_too_few_problems_are_one_clear_error(database: Database) -> None:
    lightgbm()
    database.add(*learning.measurements(learning.problems(training.LEAST_PROBLEMS - 1)))
    with pytest.raises(InputError, match=r"needs 10 problems .* has 9 in all.*cache merge"):
        train(database)


def test_without_lightgbm_training_is_one_clear_error(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> Any:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(InputError, match=r"needs LightGBM .*pip install 'onnxbolt\[learn\]'"):
        train(database)


def test_cache_train_writes_a_model_of_an_export(
    database: Database,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    lightgbm()
    monkeypatch.setenv("ONNXBOLT_CACHE_DIR", str(tmp_path / "cache"))
    database.add(*learning.measurements(learning.problems()))
    export, out = tmp_path / "export.jsonl", tmp_path / "model.json"
    database.export(export)
    assert main(["cache", "train", str(out), "--export", str(export)]) == 0
    shown = capsys.readouterr().out
    assert "gemm_sm90" in shown
    assert "learned" in shown
    first = out.read_bytes()
    assert main(["cache", "train", str(out), "--export", str(export), "--quiet"]) == 0
    assert out.read_bytes() == first
    assert [family.name for family in CostModel.read(out).families] == ["gemm_sm90"]
    assert not (tmp_path / "cache" / "tuning.sqlite").exists()
