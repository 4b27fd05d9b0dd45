"""The whole model against ONNX Runtime: sessions on the CPU where a race is run, planted times
where its outcome matters."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest

from onnxbolt.measurements.records import Machine, Measurement, Status
from onnxbolt.measurements.timings import Comparison, Timings
from onnxbolt.options import Options
from onnxbolt.plan.choose import Plan
from onnxbolt.plan.regions import regions
from onnxbolt.tune import whole
from onnxbolt.tune.baseline import Bench
from onnxbolt.tune.database import Database
from onnxbolt.tune.listing import entries
from onnxbolt.tune.subject import Subject
from onnxbolt.tune.whole import SLOWER, settle
from tests.support import Net

MACHINE = Machine("test", 90, 700, "13.0", "4.2", "")


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with Database(tmp_path / "tuning.sqlite") as opened:
        yield opened


def net(batch: int | str = 64) -> onnx.ModelProto:
    """Four products of different sizes, too wide for one kernel, so that each is a region."""
    net = Net({"x": (batch, 64)})
    y = "x"
    for k, n in ((64, 528), (528, 544), (544, 560), (560, 576)):
        y = net.node("Tanh", net.linear(y, k, n))
    return net.model(y)


def planned(model: onnx.ModelProto) -> tuple[Subject, Timings, Plan]:
    """All fused, the k-th region k + 2 times faster as measured."""
    subject = Subject.of(model, Options())
    found = regions(subject.plan([90], "all", Timings()).assignment, 90, subject.ranges.opt)
    comparisons = {
        region.key: Comparison(1.0, 0.0, 2.0 + k, 0.0, region=region.description)
        for k, region in enumerate(found)
    }
    timings = Timings(comparisons=comparisons, machine=MACHINE)
    return subject, timings, subject.plan([90], "winning", timings)


def bench(
    timings: Timings, database: Database, seconds: float = 600, said: list[str] | None = None
) -> Bench:
    lines: list[str] = [] if said is None else said
    return Bench(timings, database, MACHINE, time.monotonic() + seconds, None, lines.append)


@pytest.mark.parametrize("batch", [64, "batch"])
def test_both_sides_run_as_sessions_and_are_remembered(
    batch: int | str, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject, timings, chosen = planned(net(batch))
    assert len(chosen.candidates) == 4
    monkeypatch.setattr(whole, "wins", lambda *_: False)  # independent of the measured times
    said: list[str] = []
    again, found = settle(
        subject, [90], "winning", timings, chosen, bench(timings, database, said=said)
    )
    assert again is chosen
    assert found is not None
    assert found.ours_us > 0 < found.ort_us
    assert said[0].startswith("whole model: ")
    assert {entry.what.partition(" ")[0] for entry in entries(database)} == {"model"}
    monkeypatch.setattr(whole._Race, "_measure", lambda *_: pytest.fail("measured again"))
    assert (
        settle(subject, [90], "winning", timings, chosen, bench(timings, database, -math.inf))[1]
        == found
    )


def test_where_it_is_slower_the_least_convincing_half_goes(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject, timings, chosen = planned(net())
    races: list[int] = []

    def planted(race: whole._Race, plan: Plan, ours: str, theirs: str) -> None:
        races.append(len(plan.candidates))
        for key, us in ((ours, 5.0 + 10 * len(plan.candidates)), (theirs, 30.0)):
            database.add(Measurement(key, None, Status.OK, us, 0.1, 10))

    monkeypatch.setattr(whole._Race, "_measure", planted)
    settled, found = settle(subject, [90], "winning", timings, chosen, bench(timings, database))
    assert races == [4, 2]
    # those that gain most
    assert [c.anchor.weight.shape for c in settled.candidates] == [(544, 560), (560, 576)]
    assert found is not None
    assert (found.ours_us, found.ort_us, len(found.dropped)) == (25.0, 30.0, 2)
    assert {refusal.reason.partition(",")[0] for refusal in settled.refusals} == {SLOWER}
    again, known = settle(
        subject, [90], "winning", timings, chosen, bench(timings, database, -math.inf)
    )
    assert (again.configs.keys(), known) == (settled.configs.keys(), found)
    assert races == [4, 2]


def test_a_model_that_is_slower_with_any_fusion_gets_none(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject, timings, chosen = planned(net())

    def planted(race: whole._Race, plan: Plan, ours: str, theirs: str) -> None:
        for key, us in ((ours, 100.0), (theirs, 30.0)):
            database.add(Measurement(key, None, Status.OK, us, 0.1, 10))

    monkeypatch.setattr(whole._Race, "_measure", planted)
    settled, found = settle(subject, [90], "winning", timings, chosen, bench(timings, database))
    assert not settled.candidates
    assert found is not None
    assert (found.ours_us, len(found.dropped)) == (30.0, 4)


def assert_all_goes(database: Database, subject: Subject, timings: Timings, chosen: Plan) -> None:
    """Nothing stays fused, the report says so, and another run knows it."""
    settled, found = settle(subject, [90], "winning", timings, chosen, bench(timings, database))
    assert not settled.candidates
    assert found is not None
    assert (found.ours_us, found.ort_us, len(found.dropped)) == (30.0, 30.0, 4)
    assert (
        settle(subject, [90], "winning", timings, chosen, bench(timings, database, -math.inf))[1]
        == found
    )


def test_what_was_slower_and_cannot_be_measured_again_goes(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject, timings, chosen = planned(net())

    def planted(race: whole._Race, plan: Plan, ours: str, theirs: str) -> None:
        if len(plan.candidates) < 4:
            raise RuntimeError("no memory")
        for key, us in ((ours, 100.0), (theirs, 30.0)):
            database.add(Measurement(key, None, Status.OK, us, 0.1, 10))

    monkeypatch.setattr(whole._Race, "_measure", planted)
    assert_all_goes(database, subject, timings, chosen)


def test_without_time_to_find_out_more_all_goes_that_was_slower(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject, timings, chosen = planned(net())

    def planted(race: whole._Race, plan: Plan, ours: str, theirs: str) -> None:
        for key, us in ((ours, 100.0), (theirs, 30.0)):
            database.add(Measurement(key, None, Status.OK, us, 0.1, 10))
        object.__setattr__(race._bench, "deadline", -math.inf)

    monkeypatch.setattr(whole._Race, "_measure", planted)
    assert_all_goes(database, subject, timings, chosen)


def test_what_does_not_run_is_remembered_and_stays(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject, timings, chosen = planned(net())

    def broken(*_: object) -> None:
        raise RuntimeError("no memory")

    said: list[str] = []
    with monkeypatch.context() as patched:
        patched.setattr(whole._Race, "_measure", broken)
        assert settle(
            subject, [90], "winning", timings, chosen, bench(timings, database, said=said)
        ) == (chosen, None)
    assert said == ["the whole model cannot be compared with ONNX Runtime: no memory"]
    monkeypatch.setattr(whole._Race, "_measure", lambda *_: pytest.fail("tried again"))
    assert settle(subject, [90], "winning", timings, chosen, bench(timings, database)) == (
        chosen,
        None,
    )


def test_a_spent_budget_measures_nothing(database: Database) -> None:
    subject, timings, chosen = planned(net())
    assert settle(subject, [90], "winning", timings, chosen, bench(timings, database, -1.0)) == (
        chosen,
        None,
    )
