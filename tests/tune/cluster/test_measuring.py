"""Tuning on the GPUs of a cluster: which one measures a problem, and how the run goes on when a
worker dies, hangs or joins."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Iterator

import pytest

from onnxbolt.archs import get
from onnxbolt.measurements.timings import NOTHING, Timings
from onnxbolt.options import Options
from onnxbolt.tune.baseline import Bench, compare
from onnxbolt.tune.cluster import gpus, tasks
from onnxbolt.tune.cluster.gpus import ClusterGpus
from onnxbolt.tune.cluster.opening import cluster_gpus
from onnxbolt.tune.database import Database
from onnxbolt.tune.subject import Subject
from onnxbolt.tune.summary import Tuning
from onnxbolt.tune.tasks import tasks_of
from onnxbolt.tune.tuner import tune
from onnxbolt.tune.whole import settle
from tests.tune.cluster.conftest import Cluster
from tests.tune.fakes import MODEL, Records, true_us
from tests.tune.test_baseline import convolutional, regions_of

TASKS = tasks_of(MODEL, get(90), trials=12)
UUIDS = ("GPU-0", "GPU-1")


@contextlib.contextmanager
def opened(said: list[str], uuids: tuple[str, ...] = UUIDS) -> Iterator[ClusterGpus]:
    with cluster_gpus(uuids, [90], Options(tune=True, gpus="all"), said.append) as started:
        (gpus,) = started()
        yield gpus


def tuned(cluster: Cluster, gpus: ClusterGpus, records: Records) -> tuple[Timings, Tuning]:
    return tune(TASKS, records, gpus, cluster.build, gpus.machine)


def is_right(timings: Timings, records: Records) -> bool:
    """True if every task has its fastest measured kernel."""
    return len(timings.choices) == len(TASKS) and all(
        choice.us == true_us(problem, choice.config)
        for (problem, _), choice in timings.choices.items()
    )


def test_two_gpus_share_the_problems_and_remember_them(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Measuring takes long enough for both to begin, also on a busy machine."""
    monkeypatch.setenv("FAKE_SECONDS", "0.3")
    said: list[str] = []
    records = Records()
    with opened(said) as gpus:
        timings, tuning = tuned(cluster, gpus, records)
        sent = len(cluster.measured)
        again, nothing = tuned(cluster, gpus, records)
    assert (tuning.ended_by, said) == ("done", ["2 GPUs measure"])
    assert is_right(timings, records)
    assert {line["gpu"] for line in cluster.measured} == set(UUIDS)
    assert not any(line["watched"] for line in cluster.measured)
    assert (again, nothing.trials, len(cluster.measured)) == (timings, 0, sent)


def test_a_worker_that_dies_costs_its_own_request(cluster: Cluster) -> None:
    said: list[str] = []
    records = Records()
    with opened(said) as gpus:
        cluster.tell("die")
        timings, tuning = tuned(cluster, gpus, records)
    assert tuning.ended_by == "done"
    assert is_right(timings, records)
    assert len([line for line in said if "is lost" in line]) == 1
    lost, *others = cluster.measured
    again = [
        line
        for line in others
        if line["problem"] == lost["problem"]
        and line["configs"][: len(lost["configs"])] == lost["configs"]
    ]
    assert len(again) == 1
    assert again[0]["pid"] != lost["pid"]
    seen = {(lost["problem"], config) for config in lost["configs"]}
    for line in (each for each in others if each is not again[0]):
        configs = {(line["problem"], config) for config in line["configs"]}
        assert len(configs & seen) <= 1  # the incumbent, where the problem has moved
        seen |= configs


def test_a_worker_that_hangs_is_started_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpus, "_PROBLEM", 10.0)
    monkeypatch.setattr(gpus, "_CANDIDATE", 0.0)
    monkeypatch.setattr(tasks, "LOCK_SECONDS", 0.0)
    said: list[str] = []
    records = Records()
    with opened(said, UUIDS[:1]) as found:
        cluster.tell("hang")
        timings, tuning = tuned(cluster, found, records)
    assert tuning.ended_by == "done"
    assert is_right(timings, records)
    assert "the worker GPU-0 is lost: it does not answer" in said
    assert len({line["pid"] for line in cluster.measured}) > 1


def test_both_sides_of_regions_and_of_the_model_race_on_workers(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the CPU, where fused nodes run as function bodies, without a library."""
    monkeypatch.setattr(Bench, "builds", False)
    said: list[str] = []
    model = convolutional()
    found = regions_of(model)
    with opened(said) as gpus, Database() as database:
        bench = Bench(
            NOTHING,
            database,
            gpus.machine,
            time.monotonic() + 600,
            None,
            said.append,
            gpus.racing,
        )
        answers = compare(found, model, "fp16", bench)
        again = compare(found, model, "fp16", dataclasses.replace(bench, deadline=-math.inf))
        subject = Subject.of(model, Options())
        chosen = subject.plan([90], "all", NOTHING)
        _, whole = settle(subject, [90], "all", NOTHING, chosen, bench)
    assert answers.keys() == {region.key for region in found}
    assert again == answers
    assert whole is not None
    assert whole.ours_us > 0 < whole.ort_us
    assert len([line for line in said if "ONNX Runtime" in line]) > len(answers)
