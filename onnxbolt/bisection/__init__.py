"""Finds the steps of `optimize` that make verification, or a user's check, fail."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from onnxbolt.bisection.models import opened_maker
from onnxbolt.bisection.search import FUSION, NODE, STAGE, Culprit, Found, Step, Verdict, search
from onnxbolt.bisection.trials import Judge, Trials, check_script, runs_kernels
from onnxbolt.errors import InputError
from onnxbolt.options import Options

__all__ = ["TIMEOUT", "Bisection", "bisect"]

TIMEOUT = 600.0  # seconds for each run
_KINDS = {STAGE: "stage", NODE: "node that follows from layouts", FUSION: "fusion"}


@dataclass(frozen=True)
class Bisection:
    """The result of a search, and what judged the models."""

    found: Found
    kernels: bool  # True if kernels ran, False if function bodies did

    def text(self) -> str:
        """The steps that were found, with their remedies; the last line counts the runs."""
        return "\n".join(self._lines())

    def json(self) -> str:
        """The same as JSON."""
        found = self.found
        culprits = [
            {
                "steps": [dataclasses.asdict(step) for step in each.steps],
                "outcome": each.outcome.words,
                "fails_alone": None if each.alone is None else not each.alone,
            }
            for each in found.culprits
        ]
        values = {
            "culprits": culprits,
            "accumulates": found.accumulates,
            "passes_without_them": found.rest.verdict is Verdict.GOOD,
            "steps": found.count,
            "runs": found.runs,
            "kernels": self.kernels,
        }
        return json.dumps(values, indent=2)

    def _lines(self) -> Iterator[str]:
        found = self.found
        for culprit in found.culprits:
            yield from _described(culprit)
        if found.accumulates:
            yield (
                "the error only accumulates: no step fails by itself, and leaving these out keeps"
                " the sum of all errors below the limit"
            )
        if found.culprits and found.rest.verdict is Verdict.GOOD:
            yield "all other steps together pass"
        elif found.culprits:
            why = found.rest.words or "it cannot be judged"
            yield f"all other steps together do not pass, either: {why}"
        else:
            yield "nothing fails: the model with all steps passes"
        ran = "kernels" if self.kernels else "function bodies only, no kernels"
        yield f"{_count(found.runs, 'run')} for {_count(found.count, 'step')}; {ran}"


def bisect(
    source: str | Path,
    *,
    script: str | Path | None = None,
    timeout: float = TIMEOUT,
    options: Options | None = None,
    progress: Callable[[str], None] | None = None,
) -> Bisection:
    """The steps on the way from the model at `source` to its optimized form that make `onnxbolt
    verify` fail, or the program `script`, which gets the path of a model: exit code 0 is good, 125
    skips the model, anything else is bad. A run of more than `timeout` seconds is bad as well.

    `options` are those of `optimize`. Kernels run where there is a GPU, unless Options.library is
    False: one library is compiled. Raises InputError if the original itself fails, and for a model,
    an option or a script that cannot be used.
    """
    source, options, say = Path(source), options or Options(), progress or _say_nothing
    check = None if script is None else Path(script)
    if check is not None:
        check_script(check)
    kernels = options.library and runs_kernels()
    judge = Judge(source, options, check, timeout)
    with (
        tempfile.TemporaryDirectory(prefix="onnxbolt-bisect-") as directory,
        opened_maker(source, options) as maker,
    ):
        found = search(Trials(maker, judge, Path(directory), kernels, say))
    if found.original is not None:
        raise InputError(f"{source} itself fails, before any step is taken: {found.original.words}")
    if not found.culprits and found.rest.verdict is Verdict.SKIP:
        raise InputError(
            f"{check} skips the model with all steps (exit code 125), so there is nothing to find"
        )
    return Bisection(found, kernels)


def _count(number: int, word: str) -> str:
    return f"1 {word}" if number == 1 else f"{number} {word}s"


def _described(culprit: Culprit) -> Iterator[str]:
    several = len(culprit.steps) > 1
    if several:
        yield f"one of these, which cannot be told apart: {culprit.outcome.words}"
    for step in culprit.steps:
        why = "" if several else f": {culprit.outcome.words}"
        yield f"{_name(step)}{why}"
        if step.remedy:
            yield f"  leave it out: {step.remedy}"


def _name(step: Step) -> str:
    kind = _KINDS.get(step.kind, "")
    return " ".join(filter(None, [kind, step.name, f"({step.words})" if step.words else ""]))


def _say_nothing(message: str) -> None:
    pass
