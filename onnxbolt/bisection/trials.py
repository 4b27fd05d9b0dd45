"""Trials: a model is written, and a child process judges it, so that a crash or a hang is an
outcome like others."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnxbolt import gpu
from onnxbolt.bisection.models import Maker, Plan
from onnxbolt.bisection.search import LAYOUT, STAGE, Outcome, Step, Verdict
from onnxbolt.errors import AccuracyError, InputError
from onnxbolt.library import build
from onnxbolt.options import Options
from onnxbolt.runtime import get_library_path

SKIPPED = 125  # the exit code by which a check says that it cannot judge a model


@dataclass(frozen=True)
class Judge:
    """The command that judges a model: `onnxbolt verify`, or the user's check."""

    original: Path
    options: Options
    script: Path | None
    seconds: float

    def __call__(self, model: Path) -> Outcome:
        """Raises InputError if the check cannot be run."""
        report = model.with_name("verification.json")
        report.unlink(missing_ok=True)
        command = self._verification(model, report) if self.script is None else self._check(model)
        with tempfile.TemporaryFile() as log:
            code = _ended(command, log, self.seconds)
            log.seek(0)
            lines = log.read()[-100_000:].decode(errors="replace").strip().splitlines()
        if code == 0:
            return Outcome(Verdict.GOOD)
        if code == SKIPPED and self.script is not None:
            return Outcome(Verdict.SKIP)
        if code is None:
            return Outcome(Verdict.BAD, f"no answer within {self.seconds:g} s", local=True)
        if code < 0:
            return Outcome(Verdict.BAD, f"it crashed ({_signal(-code)})", local=True)
        if self.script is None and code == AccuracyError.exit_code:
            return _compared(json.loads(report.read_text(encoding="utf-8")))
        last = f": {lines[-1][:300]}" if lines else ""
        return Outcome(Verdict.BAD, f"exit code {code}{last}", local=True)

    def _check(self, model: Path) -> list[str]:
        assert self.script is not None  # the caller has looked
        return [str(self.script.resolve()), str(model)]

    def _verification(self, model: Path, report: Path) -> list[str]:
        options = self.options
        # -P: no module is imported from the current directory
        command = [sys.executable, "-P", "-m", "onnxbolt", "verify"]
        command += ["--quiet", "--report", str(report), "--seed", str(options.seed)]
        for flag, value in (
            ("--inputs", options.inputs),
            ("--atol", options.atol),
            ("--rtol", options.rtol),
            *(("--custom-ops", path) for path in options.custom_ops),
        ):
            command += [] if value is None else [flag, str(value)]
        for name, shapes in options.asked_shapes.items():
            sizes = (f"{key}:[{','.join(map(str, shape))}]" for key, shape in shapes.items())
            command += [f"--{name.replace('_', '-')}", ",".join(sizes)]
        command += ["--strict"] if options.strict else []
        return [*command, "--", str(self.original), str(model)]


class Trials:
    """The bench of a search: models that `maker` makes, which `judge` judges. With a `library`
    kernels run: one library for each plan, compiled when it is needed first."""

    def __init__(
        self,
        maker: Maker,
        judge: Judge,
        directory: Path,
        library: bool,
        say: Callable[[str], None],
    ) -> None:
        self._maker, self._judge, self._directory = maker, judge, directory
        self._library, self._say, self._count = library, say, 0
        self._plans: dict[frozenset[str], Plan] = {}

    def steps(self, left: Sequence[Step]) -> Sequence[Step]:
        """Without layouts, no step behind them is taken."""
        keys = {step.key for step in left}
        found = self._plan(left).steps
        if (LAYOUT, LAYOUT) in keys:
            return [step for step in found if step.kind == STAGE]
        return [step for step in found if step.key not in keys]

    def run(self, taken: Sequence[Step], left: Sequence[Step]) -> Outcome:
        plan = self._plan(left)
        self._count += 1
        directory = self._directory / str(self._count)
        directory.mkdir()
        model = directory / "model.onnx"
        self._maker.write(model, taken, plan)
        if self._library and any(step.kind != STAGE for step in taken):
            get_library_path(model).symlink_to(self._built(plan))
        outcome = self._judge(model)
        shutil.rmtree(directory, ignore_errors=True)  # with whatever a check left there
        words = f": {outcome.words}" if outcome.words else ""
        last = f", the last one {taken[-1].title}" if taken else ""
        self._say(
            f"run {self._count}: {len(taken)} of {len(plan.steps)} steps{last}:"
            f" {outcome.verdict.value}{words}"
        )
        return outcome

    def _plan(self, left: Sequence[Step]) -> Plan:
        stages = frozenset(step.name for step in left if step.kind == STAGE)
        if stages not in self._plans:
            self._plans[stages] = self._maker.plan(stages)
        return self._plans[stages]

    def _built(self, plan: Plan) -> Path:
        path = self._directory / f"{plan.manifest.digest}.so"
        if not path.exists():
            build(plan.manifest, path, self._say)
        return path


def runs_kernels() -> bool:
    """True if this machine has a GPU that kernels could run on."""
    return gpu.local_arch() is not None


def check_script(script: Path) -> None:
    """Raises InputError if the check cannot be run."""
    if not script.is_file() or not os.access(script, os.X_OK):
        raise InputError(
            f"{script} is not an executable file: give a program that takes the path of a model"
            " (chmod +x)"
        )


def _ended(command: Sequence[str], log: Any, seconds: float) -> int | None:
    """The exit code of the command, negative for a signal; None if it took too long. Whatever the
    command started is ended with it."""
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        raise InputError(
            f"{command[0]} cannot be run: {error.strerror}; a script begins with #! and its"
            " interpreter"
        ) from error
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _compared(report: dict[str, Any]) -> Outcome:
    """The outcome of a verification that failed, with the tensor that is furthest from its limit;
    one of a segment or a node, if there is one, since errors do not add up there."""
    failed = [row for row in report["rows"] if not row["passed"] and not row["unjudged"]]
    local = [row for row in failed if row["level"] != "model"]
    if not failed:
        return Outcome(Verdict.BAD, report["verdict"])
    row = (local or failed)[0]
    return Outcome(Verdict.BAD, f"{row['kind']} {row['name']}: {row['reason']}", bool(local))
