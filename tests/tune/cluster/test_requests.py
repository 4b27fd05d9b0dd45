"""The requests that measurements are, and the replies that are refused; no worker runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from onnxbolt.archs import get
from onnxbolt.families import config_from
from onnxbolt.measurements.keys import kernel_key
from onnxbolt.measurements.records import Measurement, Status
from onnxbolt.tune.cluster.compilers import Compilers
from onnxbolt.tune.cluster.gpus import ClusterGpus
from onnxbolt.tune.cluster.pool import Job, Pool, Worker
from onnxbolt.tune.rows import values_of
from onnxbolt.tune.tasks import tasks_of
from tests.tune.fakes import MACHINE, gemm, true_us

PROBLEM = gemm()
CONFIGS = [each.config for each in tasks_of([PROBLEM], get(90))[0].candidates[:4]]
Row = Sequence[Any]


class Asked:
    """A pool whose only worker measures at once; `change` damages its rows."""

    def __init__(self, change: Callable[[list[Row]], list[Row]] = lambda rows: rows) -> None:
        self.jobs: list[Job] = []
        self.requests: list[list[Any]] = []
        self._change = change

    def submit(self, job: Job) -> None:
        self.jobs.append(job)

    def cancel(self, _: object) -> list[Job]:
        return []

    def send(self, _: Worker, library: Path) -> str:
        return library.name

    def ask(self, _: Worker, __: object, ___: float, **values: Any) -> Any:
        self.requests.append(values["candidates"])
        configs = [config_from(row) for row, _ in values["candidates"]]
        key = kernel_key(PROBLEM, MACHINE)
        rows = [
            values_of(Measurement(key, config, Status.OK, true_us(PROBLEM, config), 0.1, 50))
            for config in configs
        ]
        return {"measurements": self._change([list(row) for row in rows])}


def asked(pool: Asked) -> ClusterGpus:
    return ClusterGpus(cast(Pool, pool), MACHINE, cast(Compilers, None))


def test_a_problem_that_moves_measures_its_incumbent_again() -> None:
    pool, worker = Asked(), Worker("tcp://127.0.0.1:1", "GPU-0")
    gpus = asked(pool)
    gpus.submit(0, PROBLEM, [(config, Path(f"{i}.so")) for i, config in enumerate(CONFIGS[:2])])
    gpus.submit(0, PROBLEM, [(CONFIGS[2], Path("2.so"))])
    gpus.submit(0, PROBLEM, [(CONFIGS[3], Path("3.so"))])
    first, second, third = pool.jobs
    assert len(first.run(worker, False)) == 2
    assert len(second.run(worker, False)) == 1
    found = third.run(worker, True)
    best = min(CONFIGS[:3], key=lambda config: true_us(PROBLEM, config))
    assert [measurement.config for measurement in found] == [CONFIGS[3], best]
    assert pool.requests[-1][-1] == [best.row(), f"{CONFIGS.index(best)}.so"]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda rows: rows[:1], "of other candidates"),
        (lambda rows: rows[::-1], "of other candidates"),
        (lambda rows: [[row[0].replace("1280", "1281"), *row[1:]] for row in rows], "of another"),
        (lambda rows: [[*row[:3], 0.0, *row[4:]] for row in rows], "time of 0"),
        (lambda rows: [[*row[:2], "fast", *row[3:]] for row in rows], "status 'fast'"),
        (lambda rows: [row[:4] for row in rows], "not enough values"),
    ],
)
def test_replies_that_no_worker_makes_are_refused(
    change: Callable[[list[Row]], list[Row]], why: str
) -> None:
    pool = Asked(change)
    asked(pool).submit(0, PROBLEM, [(config, Path("k.so")) for config in CONFIGS[:2]])
    with pytest.raises(ValueError, match=why):
        pool.jobs[0].run(Worker("tcp://127.0.0.1:1", "GPU-0"), False)
