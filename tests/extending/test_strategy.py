"""An extension's strategy is named by an option, and what it proposes is measured if a kernel has
it."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import onnx
import pytest

from onnxbolt import Options
from onnxbolt.archs import get
from onnxbolt.cli import main
from onnxbolt.errors import InputError
from onnxbolt.families import KernelConfig, only
from onnxbolt.measurements.records import Measurement
from onnxbolt.measurements.strategy import Strategy, Task
from onnxbolt.measurements.timings import Timings
from onnxbolt.tune.database import Database
from onnxbolt.tune.guided import Guided, strategy_named
from onnxbolt.tune.summary import Tuning
from onnxbolt.tune.tasks import tasks_of
from onnxbolt.tune.tuner import tune
from tests.extending import extended_by
from tests.extending.strategy import EXTENSION, BestFamily
from tests.support import Net
from tests.tune.fakes import MACHINE, Builder, Clock, Profiler, Records, conv, gemm, true_us

TASKS = tasks_of([gemm(), gemm(), conv()], get(90))


class Given:
    """Proposes what it is given, again and again."""

    name = "given"

    def __init__(self, *proposed: object) -> None:
        self.proposed = proposed

    def propose(self, task: Task, measurements: Sequence[Measurement]) -> Iterable[KernelConfig]:
        return self.proposed  # type: ignore[return-value]


def _tuned(
    strategy: Strategy,
    records: Records | Database,
    profiler: Profiler,
    trials: int = 24,
    tasks: Sequence[Task] = TASKS,
) -> tuple[Timings, Tuning]:
    guided = Guided(tasks, strategy, get(90), trials)
    clock = profiler.clock
    return tune(tasks, records, profiler, Builder(), MACHINE, clock=clock, scheduler=guided)


@pytest.fixture
def extended() -> Iterator[None]:
    """The strategy as an extension adds it."""
    with extended_by(EXTENSION):
        yield


@pytest.mark.usefixtures("extended")
def test_an_option_names_it() -> None:
    assert isinstance(strategy_named("best_family"), BestFamily)
    assert strategy_named("") is None
    with pytest.raises(InputError, match=r"has this strategy .they have: best_family"):
        strategy_named("other")


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["--strategy", "best_family"], "give it with --tune"),
        (["--strategy", "best_family", "--tune"], "no extension that is installed has this"),
    ],
)
def test_the_command_line_says_what_is_wrong(
    arguments: list[str],
    what: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("onnxbolt.gpu.local_arch", lambda: "sm_90a")
    net = Net({"x": (8, 16)})
    onnx.save(net.model(net.linear("x", 16, 8)), tmp_path / "in.onnx")
    assert main(
        ["optimize", str(tmp_path / "in.onnx"), str(tmp_path / "out.onnx"), *arguments]
    ) in (1, 2)
    assert what in capsys.readouterr().err


def test_without_tuning_it_is_an_error() -> None:
    with pytest.raises(InputError, match=r"strategy.*tune"):
        Options(strategy="best_family")


def test_what_it_proposes_is_measured_and_the_best_is_the_answer() -> None:
    records, profiler = Records(), Profiler(Clock())
    timings, tuning = _tuned(BestFamily(), records, profiler, trials=100)
    assert tuning.ended_by == "done"
    for task in TASKS:
        measured = {config for problem, config in profiler.measured if problem == task.problem}
        configs = [candidate.config for candidate in task.candidates]
        first = {next(c for c in configs if c.family is f) for f in {c.family for c in configs}}
        fastest = min(first, key=lambda config: true_us(task.problem, config))
        assert measured == first | {c for c in configs if c.family is fastest.family}
        best = min(measured, key=lambda config: true_us(task.problem, config))
        assert timings.choices[task.problem, 90].config == best


def test_measurements_are_remembered_for_it(tmp_path: Path) -> None:
    with Database(tmp_path / "tuning.sqlite") as database:
        first, _ = _tuned(BestFamily(), database, Profiler(Clock()), trials=100)
        again = Profiler(Clock())
        second, _ = _tuned(BestFamily(), database, again, trials=100)
    assert second.choices == first.choices
    assert again.measured == []


def test_the_number_of_trials_is_the_users() -> None:
    profiler = Profiler(Clock())
    _tuned(BestFamily(), Records(), profiler, trials=2)
    assert len(profiler.measured) <= 2 * len(TASKS)


def test_the_budget_is_the_users() -> None:
    profiler, guided = Profiler(Clock()), Guided(TASKS, BestFamily(), get(90), 100)
    clock = profiler.clock
    _, tuning = tune(
        TASKS, Records(), profiler, Builder(), MACHINE, budget=0.3, clock=clock, scheduler=guided
    )
    assert tuning.ended_by == "budget"
    assert len(profiler.measured) < 20


CONFIG = TASKS[0].candidates[0].config


@pytest.mark.parametrize(
    ("proposed", "what"),
    [
        ("a text", "is no configuration of a kernel"),
        (dataclasses.replace(CONFIG, arch=80), "a configuration of architecture 80 for 90"),
        (only("elementwise", 90), "kernels of elementwise do not solve a "),
        (dataclasses.replace(CONFIG, min_m=2, max_m=1), "no kernel of .* has such range"),
        (dataclasses.replace(CONFIG, max_m=1), "a configuration for m from 0 to 1 alone"),
        (StopIteration, "is no configuration of a kernel"),
    ],
)
def test_what_no_kernel_has_is_one_error(proposed: object, what: str) -> None:
    profiler = Profiler(Clock())
    with pytest.raises(InputError, match=f"the strategy given does not work for .*{what}"):
        _tuned(Given(proposed), Records(), profiler, tasks=TASKS[:1])
    assert profiler.measured == []


def test_what_is_measured_is_the_family_s_own_configuration() -> None:
    """A subclass with the same row would be another kernel by its class and its fields."""

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Mine(type(CONFIG)):  # type: ignore[misc]
        extra: int = 0

    fields = {field.name: getattr(CONFIG, field.name) for field in dataclasses.fields(CONFIG)}
    profiler = Profiler(Clock())
    proposed = Given(Mine(**fields, extra=1), Mine(**fields, extra=2))
    _tuned(proposed, Records(), profiler, tasks=TASKS[:1])
    assert profiler.measured == [(TASKS[0].problem, CONFIG)]


def test_what_it_raises_is_one_error() -> None:
    class Broken(Given):
        def propose(self, task: Task, measurements: Sequence[Measurement]) -> list[KernelConfig]:
            raise KeyError("mine")

    with pytest.raises(
        InputError, match=r"the strategy given does not work for .*KeyError: 'mine'"
    ):
        _tuned(Broken(), Records(), Profiler(Clock()))


def test_proposals_without_end_end() -> None:
    class Endless(Given):
        def propose(self, task: Task, measurements: Sequence[Measurement]) -> Iterable[Any]:
            return itertools.repeat(CONFIG)

    profiler = Profiler(Clock())
    _tuned(Endless(), Records(), profiler, tasks=TASKS[:1])
    assert len(profiler.measured) == 1


def test_what_it_proposes_twice_is_measured_once() -> None:
    profiler = Profiler(Clock())
    _, tuning = _tuned(Given(CONFIG, CONFIG), Records(), profiler, tasks=TASKS[:1])
    assert profiler.measured == [(TASKS[0].problem, CONFIG)]
    assert tuning.trials == 1
    assert not math.isnan(tuning.seconds)
