"""The benchmark of a service's memory, on the CPU: function bodies in place of kernels."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto

from benchmarks import serving_memory, varying
from benchmarks.columns import TABLES
from benchmarks.serving_memory import LIMIT, MODELS, PARTS, Trace, growth, main
from tests.benchmarks.test_varying import SMALL

CPU = ["--provider", "cpu", "--quick", "--fuse", "all", "--out"]


@pytest.fixture(autouse=True)
def _one_small_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(varying, "SUBJECTS", {"small": SMALL})


def test_memory_is_read_after_each_part_of_the_runs(tmp_path: Path) -> None:
    out = tmp_path / "results.json"
    code = main(["small", "--runs", "47", *CPU, str(out)])
    document = json.loads(out.read_text())
    assert document["planned"] == [[name, 0] for name in MODELS]
    (row,) = document["rows"]
    values = row["values"]
    assert (row["name"], row["dtype"], values["runs"]) == ("small", "fp16", 47)
    assert 1 < values["sizes"] < 47
    assert len(values["new_sizes"]) == PARTS
    assert sum(values["new_sizes"]) == values["sizes"]
    assert len(values["host_mib"]) == PARTS
    assert min(values["host_mib"]) > 10
    assert values["host_growth"] == pytest.approx(growth(values["host_mib"]), abs=1e-3)
    assert code == (values["host_growth"] >= LIMIT)
    assert "device_mib" not in values
    assert row["ours_us"] > 0


@pytest.mark.parametrize(
    ("host", "device", "code"),
    [((100.0, 100.5, 100.2), (50.0, 50.4), 0), ((100.0, 101.5, 100.2), (50.0, 50.4), 1),
     ((100.0, 100.5), (50.0, 50.6), 1)],
)  # fmt: skip
def test_too_much_growth_is_a_failure(
    host: tuple[float, ...],
    device: tuple[float, ...],
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trace = Trace(host, device, (5, 7), 0.25)
    monkeypatch.setattr(serving_memory, "isolated", lambda *arguments: trace)
    out = tmp_path / "results.json"
    assert main(["small", "--runs", "10", *CPU, str(out)]) == code
    (row,) = json.loads(out.read_text())["rows"]
    assert row["values"]["host_growth"] == growth(host)
    assert row["values"]["device_growth"] == growth(device)
    assert row["values"]["new_sizes"] == [5, 2]
    cells = [cell(row) for cell in TABLES["serving_memory"].columns.values()]
    assert cells[1:4] == ["10", "7", f"100 to {host[-1]:.0f}"]
    assert re.fullmatch(r"\d\.\d\d%", cells[4])
    assert cells[-1] == "250.000"


def test_growth_counts_the_most_after_the_first_part() -> None:
    assert growth([200.0, 210.0, 190.0]) == 0.05
    assert growth([200.0, 100.0]) == -0.5


def test_every_run_gets_the_inputs_of_its_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In sizes and values those of the model, in one process here."""
    seen = list[dict[str, np.ndarray]]()

    class Session:
        def __init__(self, *arguments: object, **options: object) -> None: ...

        def run(self, names: None, feeds: dict[str, np.ndarray]) -> None:
            seen.append(feeds)

    path = tmp_path / "model.onnx"
    model: ModelProto = SMALL.graph()
    path.write_bytes(model.SerializeToString())
    monkeypatch.setattr(onnxruntime, "InferenceSession", Session)
    largest = varying.feeds_of(model, ((1, 3, 96, 128),), 0)
    shapes = [{"x": (1, 3, h, 8)} for h in (*range(32, 44), *range(36, 44))]
    trace = serving_memory.served(path, largest, shapes, False)
    assert [feeds["x"].shape for feeds in seen] == [at["x"] for at in shapes]
    assert np.array_equal(seen[0]["x"].ravel(), largest["x"].ravel()[: 3 * 32 * 8])
    assert (len(trace.host), trace.device) == (PARTS, ())
    assert trace.sizes == (2, 4, 6, 8, 10, 12, 12, 12, 12, 12)


def test_unknown_models_and_too_few_runs_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, told in (
        (["alexnet"], "no model alexnet: choose from small"),
        (["small", "--runs", "9"], "--runs 9: give at least 10"),
    ):
        with pytest.raises(SystemExit):
            main(arguments)
        assert told in capsys.readouterr().err
