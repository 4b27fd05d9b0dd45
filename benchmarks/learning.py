"""The course of tuning by chance, by the formulas, and by a cost model that has not seen the model:
the best so far against measurements and against seconds.

    # from what benchmarks/collect.py measured; writes results/learning-<gpu>.json, without a GPU
    python -m benchmarks.learning measurements.jsonl.gz

A model's kernels are "measured" by looking their times up in the file. By the formulas and by the
learned model the tuner's own scheduler chooses, and ends, as in `onnxbolt tune`; by chance any
feasible kernels come, each problem's in turn, until all are measured. The model is learned from the
problems of the file that the tuned model has not, at another batch either. Times are those of all
its kernels, each as often as the model runs it. Seconds are an estimate: those of the compiler, by
the seconds that a kernel of a family takes, on all cores, or those of the GPU, at so many for each
measurement, whichever are more. "reached" is the first moment within 1% of the best of all kernels,
"formula's" that of the formulas' final result (AutoGTCO's Table V).
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import collect
from benchmarks.common import Row
from benchmarks.documents import write_results
from benchmarks.predictions import FORMULA, LEARNED, gpu_of, read, unlike
from benchmarks.racing import say
from onnxbolt.archs import Arch, by_name
from onnxbolt.codegen.render import Instance
from onnxbolt.errors import InputError, OnnxboltError
from onnxbolt.families import KernelConfig
from onnxbolt.measurements.records import Measurement, Status
from onnxbolt.measurements.strategy import Task
from onnxbolt.options import Options
from onnxbolt.plan.cost import candidates, learned_from
from onnxbolt.problems import Problem
from onnxbolt.tune.scheduler import Scheduler
from onnxbolt.tune.summary import Best, Moment, history
from onnxbolt.tune.tasks import instance_of, tasks_of
from onnxbolt.tune.training import Measured, trained_on

MODELS = (("resnet50", 32), ("bert_base", 32), ("mobilenet_v3_large", 32))
CHANCE = "chance"
_ARCH = "sm_90a"
_TOGETHER = 16  # kernels that are compiled at once
_CLOSE = 1.01
_POINTS = 60  # moments of a curve in the file

Times = Mapping[Problem, Mapping[KernelConfig, float]]  # microseconds


@dataclass(frozen=True)
class Pace:
    """Cores that compile, and seconds of a GPU for each measurement."""

    cores: int
    seconds: float


class Course:
    """The measurements of one way of tuning."""

    def __init__(self, tasks: Sequence[Task], times: Times, pace: Pace) -> None:
        self._tasks, self._times, self._pace = tasks, times, pace
        self._bests: list[Best] = []
        self._best: dict[int, float] = {}
        self._kernels: set[Instance] = set()
        self._compiling = self._measuring = 0.0
        self.trials = 0

    def measured(self, number: int, config: KernelConfig) -> Measurement:
        """The time of a kernel in the file; one that is not there did not run right."""
        problem = self._tasks[number].problem
        instance = instance_of(problem, config)
        if instance not in self._kernels:
            self._kernels.add(instance)
            self._compiling += config.family.compile_seconds / self._pace.cores
        self._measuring += self._pace.seconds
        self.trials += 1
        us = self._times[problem].get(config)
        if us is None:
            return Measurement("", config, Status.UNCOMPILED)
        if us < self._best.get(number, math.inf):
            self._best[number] = us
            self._bests.append(Best(self.seconds, self.trials, number, us))
        return Measurement("", config, Status.OK, us, 0.0, 1)

    @property
    def seconds(self) -> float:
        return max(self._compiling, self._measuring)

    @property
    def moments(self) -> tuple[Moment, ...]:
        return history(self._bests, [task.occurrences for task in self._tasks])


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = _parser().parse_args(arguments)
    try:
        problems = read(chosen.measurements)
        gpu = gpu_of(problems, chosen.measurements)
        rows = []
        for name, batch in MODELS:
            rows.append(row_of(name, batch, problems, Pace(chosen.cores, chosen.seconds)))
            say(f"{name}: { ({**rows[-1].values, 'curves': '..'}) }")
        write_results("learning", rows, chosen.out, gpu=gpu)
    except OnnxboltError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def row_of(name: str, batch: int, problems: Sequence[Measured], pace: Pace) -> Row:
    """A model's row. Raises InputError if none of its problems, or too few others, were
    measured."""
    arch = by_name(_ARCH)
    counted = collect.of_model(name, batch, Options(archs=(_ARCH,)))
    times = {
        measured.problem: dict(zip(measured.kernels, measured.us, strict=True))
        for measured in problems
        if measured.problem in counted
    }
    if not times:
        raise InputError(f"no problem of {name} was measured")
    known = Counter({problem: counted[problem] for problem in counted if problem in times})
    rest = unlike(problems, counted)
    best = sum(count * min(times[problem].values()) for problem, count in known.items())
    courses = {
        FORMULA: by_scheduler(known, times, pace, arch),
        LEARNED: _learned(known, times, pace, arch, rest),
        CHANCE: by_chance(known, times, pace, arch),
    }
    final = courses[FORMULA].moments[-1].us
    values = {
        "problems": len(known),
        "of": len(counted),
        "cores": pace.cores,
        "seconds_each": pace.seconds,
        **{side: _facts(course, best, final) for side, course in courses.items()},
        "curves": {side: list(_curve(course, best)) for side, course in courses.items()},
    }
    return Row(name, batch, "fp16", values=values)


def by_scheduler(known: Counter[Problem], times: Times, pace: Pace, arch: Arch) -> Course:
    """The tuner's own choice, by whatever predicts."""
    scheduler = Scheduler(tasks_of(known.elements(), arch, extra=lambda *_: ()))
    course, compiled = Course(scheduler.tasks, times, pace), set[Instance]()
    while chosen := scheduler.next(_TOGETHER, compiled):
        for instance, trials in chosen:
            compiled.add(instance)
            for trial in trials:
                scheduler.record(trial.task, course.measured(trial.task, trial.config))
    return course


def _learned(
    known: Counter[Problem], times: Times, pace: Pace, arch: Arch, rest: Sequence[Measured]
) -> Course:
    """The same by a model that is learned from `rest`."""
    with tempfile.TemporaryDirectory(prefix="onnxbolt-") as directory:
        path = Path(directory, "model.json")
        path.write_text(trained_on(rest, "the rest of the file").text)
        with learned_from(path):
            return by_scheduler(known, times, pace, arch)


def by_chance(known: Counter[Problem], times: Times, pace: Pace, arch: Arch) -> Course:
    """All feasible kernels in any order, a problem's after another's."""
    rng = random.Random("the order of kernels")
    tasks = tasks_of(known.elements(), arch, extra=lambda *_: ())
    queues = [
        rng.sample(configs, len(configs))
        for task in tasks
        for configs in [list(candidates(task.problem, arch))]
    ]
    course = Course(tasks, times, pace)
    for turn in itertools.zip_longest(*queues):
        for number, config in enumerate(turn):
            if config is not None:
                course.measured(number, config)
    return course


def _facts(course: Course, best: float, final: float) -> dict[str, Any]:
    reached, formulas = (_first(course, us) for us in (_CLOSE * best, final))
    return {
        "trials": course.trials,
        "seconds": round(course.seconds, 2),
        "final": round(course.moments[-1].us / best, 4),
        "reached": reached and [reached.trials, round(reached.seconds, 2)],
        "formulas": formulas and [formulas.trials, round(formulas.seconds, 2)],
    }


def _first(course: Course, us: float) -> Moment | None:
    """The first moment at which all problems are measured, and take no more than `us`."""
    return next((moment for moment in course.moments if moment.us <= us * (1 + 1e-9)), None)


def _curve(course: Course, best: float) -> Iterator[list[float]]:
    """Trials, seconds and time over the best, at so many moments as a plot needs."""
    moments = course.moments
    for i in sorted({round(i * (len(moments) - 1) / _POINTS) for i in range(_POINTS + 1)}):
        moment = moments[i]
        yield [moment.trials, round(moment.seconds, 2), round(moment.us / best, 4)]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("measurements", type=Path, metavar="FILE.jsonl.gz")
    parser.add_argument("--cores", type=int, default=16, help="that compile (default: 16)")
    parser.add_argument(
        "--seconds", type=float, default=0.05, help="of a measurement (default: 0.05)"
    )
    parser.add_argument(
        "--out", type=Path, help="result file (default: benchmarks/results/learning-<gpu>.json)"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
