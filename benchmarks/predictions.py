"""Predictions of kernels' times on problems that nothing was learned from: the formulas' and a
learned cost model's, side by side.

    # from what benchmarks/collect.py measured; writes results/predictions-<gpu>.json
    python -m benchmarks.predictions measurements.jsonl.gz
    # the model that was judged, too
    python -m benchmarks.predictions measurements.jsonl.gz --model model.json

Held out are all problems of the models HELD, quantized ones included, and a fifth of the others,
which a seed chooses. A model is trained on the rest, without the layers of these problems at
another batch, whose times would tell too much; a family keeps its formula where cross-validation
within the rest says so, as in `onnxbolt cache train`. A problem's regret is the measured time of
the kernel that is predicted to be the fastest, divided by that of the fastest one; a row has the
geometric mean over its problems, and the mean rank correlation (Spearman's) of those with at least
three kernels. A row of a model also has the times of all its kernels together, each as often as the
model runs it. No GPU is needed.
"""

from __future__ import annotations

import argparse
import dataclasses
import random
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import collect
from benchmarks.common import Row
from benchmarks.documents import write_results
from benchmarks.racing import say
from onnxbolt.archs import get
from onnxbolt.errors import InputError, OnnxboltError
from onnxbolt.learned.model import CostModel
from onnxbolt.measurements.strategy import Task
from onnxbolt.options import Options
from onnxbolt.plan.cost import candidates
from onnxbolt.problems import Problem
from onnxbolt.tune.database import Database
from onnxbolt.tune.training import Measured, Trained, measured_in, quality_of, trained_on

HELD = ("bert_base", "resnet50")
_SHARE = 0.2
# the field that has the batch, by class; of other classes it is the rows' number m
_BATCH: Mapping[str, str] = {
    "AttentionProblem": "batch",
    "ConvProblem": "n",
    "QuantizedConvProblem": "n",
}
FORMULA, LEARNED = "formula", "learned"
Model = tuple[str, int, str]  # name, batch, precision


@dataclass(frozen=True)
class Judged:
    """A held-out problem with the times that the learned model predicts for its kernels."""

    measured: Measured
    learned: Sequence[float]

    @property
    def chosen_us(self) -> dict[str, float]:
        """The measured times of the first choices."""
        predicted = {FORMULA: self.measured.formula, LEARNED: self.learned}
        return {
            name: self.measured.us[min(range(len(times)), key=times.__getitem__)]
            for name, times in predicted.items()
        }

    @property
    def feasible(self) -> int:
        """The number of the problem's kernels, with those that were not measured or do not run."""
        arch = get(self.measured.kernels[0].arch)
        return len(candidates(self.measured.problem, arch))


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = _parser().parse_args(arguments)
    try:
        problems = read(chosen.measurements)
        models = of_held_models()
        held, rest = divided(problems, {problem for each in models.values() for problem in each})
        trained = trained_on(rest, str(chosen.measurements))
        if chosen.model:
            chosen.model.write_text(trained.text)
        found = judged(held, trained)
        gpu = gpu_of(problems, chosen.measurements)
        say(f"{len(rest)} problems to learn from, {len(held)} held out")
        for family in trained.families:
            say(f"{family.name}: {LEARNED if family.kept else FORMULA}")
        rows = [*of_kinds(found), *of_models(found, models)]
        for row in rows:
            say(f"{row.name} {row.batch}: {row.values}")
        write_results("predictions", rows, chosen.out, gpu=gpu)
    except OnnxboltError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def read(path: Path) -> list[Measured]:
    """The measured problems of an exported file."""
    with (
        tempfile.TemporaryDirectory(prefix="onnxbolt-") as directory,
        Database(Path(directory, "measured.sqlite")) as database,
    ):
        database.merge(path)
        return measured_in(database)


def gpu_of(problems: Sequence[Measured], path: Path) -> str:
    """The GPU that all problems of the file were measured on. Raises InputError for several."""
    gpus = {measured.gpu for measured in problems}
    if len(gpus) != 1:
        raise InputError(f"{path} has times of {len(gpus)} kinds of GPU")
    return gpus.pop()


def of_held_models() -> dict[Model, Counter[Problem]]:
    """The problems of the models that are held out, and how often each runs; of quantized ones the
    products of codes."""
    options = Options(archs=("sm_90a",))
    return {
        (name, batch, "fp16"): collect.of_model(name, batch, options)
        for name, batch in collect.WHOLE
        if name in HELD
    } | {
        (name, batch, precision): collect.of_quantized(name, precision, batch)
        for name, precision, (batch, *_) in collect.QUANTIZED
        if name in HELD
    }


def divided(
    problems: Sequence[Measured], of_models: set[Problem]
) -> tuple[list[Measured], list[Measured]]:
    """Those that are held out, and those of the rest that may be learned from."""
    others = [measured for measured in problems if measured.problem not in of_models]
    rng = random.Random("held out")
    ids = sorted({measured.id for measured in others})
    fifth = set(rng.sample(ids, round(_SHARE * len(ids))))
    rest = [measured for measured in others if measured.id not in fifth]
    kept = {measured.id for measured in rest}
    held = [measured for measured in problems if measured.id not in kept]
    return held, unlike(rest, [measured.problem for measured in held])


def unlike(problems: Sequence[Measured], known: Iterable[Problem]) -> list[Measured]:
    """The measured problems that are none of `known`, and no layer of these at another batch."""
    layers = set(map(_layer, known))
    return [measured for measured in problems if _layer(measured.problem) not in layers]


def _layer(problem: Problem) -> Problem:
    """The problem at a batch of 1."""
    name = _BATCH.get(type(problem).__name__, "m")
    found = any(field.name == name for field in dataclasses.fields(problem))
    return dataclasses.replace(problem, **{name: 1}) if found else problem


def judged(held: Sequence[Measured], trained: Trained) -> list[Judged]:
    model = model_of(trained)
    found = []
    for measured in held:
        kernels = list(zip(measured.formula, measured.kernels, strict=True))
        learned = [us for us, _ in model.predicted(measured.problem, kernels)]
        found.append(Judged(measured, learned))
    return found


def model_of(trained: Trained) -> CostModel:
    """The model as a command reads it from its file."""
    with tempfile.TemporaryDirectory(prefix="onnxbolt-") as directory:
        path = Path(directory, "model.json")
        path.write_text(trained.text)
        return CostModel.read(path)


def of_kinds(found: Sequence[Judged]) -> Iterator[Row]:
    """A row for each kind of problems."""
    kinds: dict[str, list[Judged]] = defaultdict(list)
    for each in found:
        kinds[Task(each.measured.problem, 1, (), 0.0).kind].append(each)
    for kind in sorted(kinds):
        precision = "8 bits" if kind in collect.CODE_COUNTS else "fp16"
        yield Row(kind, 0, precision, values=_values(kind, kinds[kind]))


def of_models(found: Sequence[Judged], models: Mapping[Model, Counter[Problem]]) -> Iterator[Row]:
    """A row for each model that is held out, as far as its problems were measured."""
    for (name, batch, precision), counted in models.items():
        own = [each for each in found if each.measured.problem in counted]
        if not own:
            continue
        best = sum(counted[each.measured.problem] * each.measured.best_us for each in own)
        together = {
            side: round(
                sum(counted[each.measured.problem] * each.chosen_us[side] for each in own) / best, 4
            )
            for side in (FORMULA, LEARNED)
        }
        values = {**_values(name, own), "together": together, "of": len(counted)}
        shown = name if precision == "fp16" else f"{name} {precision}"
        yield Row(shown, batch, precision, values=values)


def _values(name: str, found: Sequence[Judged]) -> dict[str, Any]:
    quality = quality_of(name, [(each.measured, each.learned) for each in found])
    worst = {
        side: round(max(each.chosen_us[side] / each.measured.best_us for each in found), 4)
        for side in (FORMULA, LEARNED)
    }
    names = (FORMULA, LEARNED)
    return {
        "problems": quality.problems,
        "kernels": quality.kernels,
        "feasible": sum(each.feasible for each in found),
        "regret": dict(zip(names, (round(value, 4) for value in quality.regrets), strict=True)),
        "worst": worst,
        "rank": dict(zip(names, (round(value, 3) for value in quality.ranks), strict=True)),
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("measurements", type=Path, metavar="FILE.jsonl.gz")
    parser.add_argument("--model", type=Path, metavar="FILE.json", help="keep the model")
    parser.add_argument(
        "--out", type=Path, help="result file (default: benchmarks/results/predictions-<gpu>.json)"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
