"""The benchmark of varying sizes, on the CPU: function bodies in place of kernels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

from benchmarks import varying, varying_pytorch, whole_models
from benchmarks.varying import (
    NEW,
    PEER,
    REVISITED,
    SIZES,
    SUBJECTS,
    Side,
    Sides,
    Subject,
    largest_step,
    main,
    relative,
)
from benchmarks.varying_pytorch import WAYS, Times, in_steps, timed
from onnxbolt.tune.sessions import Arrays
from tests.support import Net
from tests.zoo import stored


def small() -> ModelProto:
    net = Net({"x": (1, 3, "h", "w")})
    y = net.node("Relu", net.conv("x", 3, 8, 3, strides=[2, 2], pads=[1] * 4))
    return net.model(net.conv(y, 8, 8, 1))


SMALL = Subject("small", small, ((1, 3, "h", "w"),), {"h": (32, 96, 32), "w": (32, 128, 8)}, "none")
QUICK = ["--provider", "cpu", "--quick", "--fuse", "all", "--out"]


@pytest.fixture(autouse=True)
def _one_small_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(varying, "SUBJECTS", {"small": SMALL})
    times = Times((0.5, 0.25, 0.125), (0.1, 0.1, 0.1))
    found = {way: times if number else "failed" for number, way in enumerate(WAYS)}
    monkeypatch.setattr(varying_pytorch, "ways", lambda *arguments: found)


def test_a_new_size_and_a_revisited_one(tmp_path: Path) -> None:
    out = tmp_path / "results.json"
    assert main(["small", *QUICK, str(out)]) == 0
    document = json.loads(out.read_text())
    rows = document["rows"]
    assert [row["name"] for row in rows] == ["small, new", "small, revisited"]
    assert document["planned"] == [["small, new", 0], ["small, revisited", 0]]
    for row in rows:
        values = row["values"]
        assert row["config"] == "onnxbolt fp16, DEFAULT"
        assert row["peer"] in (
            "ONNX Runtime fp32, DEFAULT, NCHW",
            "ONNX Runtime fp16, DEFAULT, NCHW",
        )
        assert row["peer_us"] == pytest.approx(1e3 * values["ms"][row["peer"]], rel=1e-3)
        assert row["ratio"] == pytest.approx(row["peer_us"] / row["ours_us"], rel=1e-2)
        assert 0 < row["error"] < 1e-2
        assert "onnxbolt keep, DEFAULT" in values["ms"]
        assert set(values["ms_of_first_sizes"]) == {
            f"ONNX Runtime {precision}, DEFAULT, NCHW" for precision in ("fp32", "fp16")
        }
        assert set(values["first_sizes"].values()) == {3}
        assert set(values["rounds"].values()) == {2}
        assert len(values["ours_ms"]) == len(values["peer_ms"]) == len(set(values["elements"])) == 3
        assert list(values["pytorch_failed"]) == list(WAYS)[:1]
    way = list(WAYS)[1]
    assert [row["values"]["ms"][way] for row in rows] == [250.0, 100.0]


def test_each_size_is_new_once_and_comes_again_in_other_orders() -> None:
    seen: list[int] = []
    feeds = [{"x": np.full(1, place)} for place in range(5)]
    times = timed(lambda arrays: seen.append(int(arrays["x"][0])), feeds[0], feeds[1:], 3)
    assert len(times.new) == len(times.revisited) == 4
    assert seen[:6] == [0, 0, 1, 2, 3, 4]
    later = [seen[start : start + 4] for start in (6, 10, 14)]
    assert all(sorted(order) == [1, 2, 3, 4] for order in later)
    assert len(seen) == 18
    assert len(set(map(tuple, later))) > 1


def test_rounds_end_after_the_limit_but_for_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(varying_pytorch, "LIMIT", 0.0)
    seen: list[int] = []
    feeds = [{"x": np.full(1, place)} for place in range(4)]
    times = timed(lambda arrays: seen.append(int(arrays["x"][0])), feeds[0], feeds[1:], 5)
    assert times.rounds == 1
    assert seen[:5] == [0, 0, 1, 2, 3]
    assert sorted(seen[5:]) == [1, 2, 3]


def test_steps_alternate_between_a_new_size_and_the_one_before() -> None:
    seen: list[int] = []
    feeds = [{"x": np.full(1, place)} for place in range(4)]
    steps = list(in_steps(lambda arrays: seen.append(int(arrays["x"][0])), feeds[0], feeds[1:]))
    assert seen == [0, 1, 0, 2, 1, 3, 2]
    assert [len(times.new) for times in steps] == [len(times.revisited) for times in steps]
    assert [len(times.new) for times in steps] == [1, 2, 3]


@pytest.mark.parametrize("subject", SUBJECTS.values(), ids=SUBJECTS)
def test_sizes_are_seeded_and_within_their_ranges(subject: Subject) -> None:
    found = subject.drawn(SIZES + 1, False)
    assert found == subject.drawn(SIZES + 1, False)
    assert len(set(found)) == SIZES + 1
    least, most = subject.extremes()
    for shapes in found:
        for shape, low, high in zip(shapes, least, most, strict=True):
            assert all(a <= size <= b for a, size, b in zip(low, shape, high, strict=True))
    assert len(set(subject.drawn(4, True))) == 4


def test_the_models_of_the_table_are_there() -> None:
    assert len(SUBJECTS) == 6
    names = set(stored.names())
    assert "bert_base.ts17.sdpa.mask.dynamic" in names
    bert = SUBJECTS["bert_base"]
    assert list(bert.inputs) == [(1, "s")] * 2


def test_the_largest_step_compares_neighbours_by_elements() -> None:
    assert largest_step([3, 1, 2], [4.0, 1.0, 3.0]) == 0.75
    assert largest_step([3, 1, 2], [2.0, 1.0, 3.0]) == 1.5
    assert largest_step([1], [2.0]) == 1.0


def test_a_wrong_answer_is_a_failure_that_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(whole_models, "LIMIT", 0.0)
    out = tmp_path / "results.json"
    assert main([*QUICK, str(out)]) == 1
    (row,) = json.loads(out.read_text())["rows"]
    assert "exceeds 0.0" in row["values"]["failure"]
    assert "small: RuntimeError: relative error" in capsys.readouterr().out


def test_rows_are_written_before_pytorch_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, before = tmp_path / "results.json", list[dict[str, Any]]()

    def ways(*_: object) -> dict[str, Times | str]:
        before.extend(json.loads(out.read_text())["rows"])
        return dict.fromkeys(WAYS, Times((0.5,) * 3, (0.1,) * 3))

    monkeypatch.setattr(varying_pytorch, "ways", ways)
    assert main([*QUICK, str(out)]) == 0
    after = json.loads(out.read_text())["rows"]
    assert [row["name"] for row in before] == [row["name"] for row in after]
    for early, late in zip(before, after, strict=True):
        assert early["ratio"] == late["ratio"]
        assert early["values"]["pytorch_failed"] == dict.fromkeys(WAYS, "not run")
        assert set(late["values"]["ms"]) - set(early["values"]["ms"]) == set(WAYS)


class Clock:
    """A clock that only the runs of its sides advance."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.runs = 0.0, dict[str, int]()
        monkeypatch.setattr("benchmarks.varying_pytorch.time.perf_counter", lambda: self.now)

    def side(
        self, precision: str, setting: str, new: float, again: float, fails_at: int = 99
    ) -> Side:
        label, seen = f"{PEER} {precision}, {setting}", set[int]()

        def run(arrays: Arrays) -> None:
            size = int(arrays["x"][0])
            self.now += again if size in seen else new
            self.runs[label] = self.runs.get(label, 0) + 1
            if size == fails_at:
                raise RuntimeError("no such size")
            seen.add(size)

        return Side(label, (setting,), lambda: run)


def test_sides_run_at_as_many_sizes_as_are_worth_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock(monkeypatch)
    sides = [
        clock.side("fp16", "quick", 0.1, 0.1),
        clock.side("fp32", "quick", 0.1, 0.1, fails_at=5),
        clock.side("fp16", "searching", 0.9, 0.05),
        clock.side("fp16", "behind", 0.4, 0.4),
        clock.side("fp32", "behind", 0.2, 0.2),
        clock.side("fp16", "hopeless", 4.0, 4.0),
        clock.side("fp32", "hopeless", 4.0, 4.0),
    ]
    warm_up, *feeds = ({"x": np.full(1, place)} for place in range(9))
    found = varying._tried(SMALL, sides, warm_up, feeds)
    assert {label: len(times.new) for label, times in found.items()} == {
        f"{PEER} fp16, quick": 8,
        f"{PEER} fp16, searching": 4,  # over three seconds
        f"{PEER} fp16, behind": 2,
        f"{PEER} fp32, behind": 8,
        f"{PEER} fp16, hopeless": 1,
    }
    assert clock.runs[f"{PEER} fp16, hopeless"] == 3
    told = capsys.readouterr().out
    assert f"{PEER} fp32, quick: no such size" in told
    assert f"{PEER} fp32, hopeless: not run, since another precision is hopeless" in told
    early = Sides("", found)
    assert early.close(NEW) == [f"{PEER} fp16, quick"]
    assert early.close(REVISITED) == [f"{PEER} fp16, searching"]


def test_those_close_to_the_fastest_of_each_kind_run_at_all_sizes() -> None:
    """A side may search for long and be fast afterwards."""
    times = {
        f"{PEER} {name}": Times((new,), (revisited,))
        for name, new, revisited in (("a", 9.0, 1.0), ("b", 1.0, 3.0), ("c", 1.05, 1.2))
    }
    sides = Sides("ours", {"ours": Times((0.1,), (0.1,)), **times})
    assert sides.close(NEW) == [f"{PEER} b", f"{PEER} c"]
    assert sides.close(REVISITED) == [f"{PEER} a"]
    assert sides.fastest(REVISITED) == [f"{PEER} a", f"{PEER} c", f"{PEER} b"]


def test_sides_are_compared_at_the_sizes_that_both_ran() -> None:
    many = Times((1.0, 2.0, 9.0), (1.0, 1.0, 9.0))
    few = Times((3.0, 3.0), (2.0, 2.0))
    assert relative(few, many, NEW) == 2.0
    assert relative(many, few, REVISITED) == 0.5
    sides = Sides("", {f"{PEER} many": many, f"{PEER} few": few})
    assert sides.fastest(NEW) == [f"{PEER} many", f"{PEER} few"]


def test_unknown_models_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["alexnet"])
    assert "no model alexnet: choose from small" in capsys.readouterr().err
