"""Trains a cost model on measurements: for each kernel family, trees for log(measured / formula).

Kernels weigh as much as they are fast: the best time of their problem over their own (AutoGTCO's
equation 5, whose weight is the throughput). Each family's problems are divided into folds, and
each fold is predicted by trees that have not seen it. From these predictions follow the family's
spread, and whether its trees are kept: only if their first choices are better than the formula's.
The same measurements give the same bytes, whatever their order.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from onnxbolt import checks
from onnxbolt.archs import get
from onnxbolt.codegen.digest import family_sources_digest, holds, valid_digests
from onnxbolt.errors import InputError
from onnxbolt.families import Family, KernelConfig
from onnxbolt.learned.features import of_kernel, of_problem
from onnxbolt.learned.model import Probe, digest_of, matrix, text_of
from onnxbolt.measurements.keys import canonical, kernel_of_key, machine_of
from onnxbolt.measurements.records import Measurement, Status
from onnxbolt.plan.cost import formula_us
from onnxbolt.problems import Problem
from onnxbolt.tune.database import Database
from onnxbolt.tune.summary import spearman

LEAST_PROBLEMS = 10  # fewer problems of a family say nothing about others
_FOLDS, _PROBES = 5, 5
_LEAST_SPREAD = 0.02  # as much is noise
_RANKABLE = 3
_ROUNDS = 300
# chosen by cross-validation on the collection's problems, without those that
# benchmarks/predictions.py holds out
_PARAMETERS = {
    "objective": "regression",
    "num_leaves": 15,
    "max_depth": 8,
    "learning_rate": 0.05,
    "min_data_in_leaf": 5,
    "feature_fraction": 0.5,
    "bagging_fraction": 0.7,
    "bagging_freq": 1,
    "use_missing": False,
    "deterministic": True,
    "force_row_wise": True,
    "num_threads": 1,
    "seed": 0,
    "verbosity": -1,
}


@dataclass(frozen=True)
class Measured:
    """The correct kernels of a problem on a machine, in the order of their configurations, with
    measured microseconds and the formula's."""

    id: str  # the problem, whatever the machine
    problem: Problem
    gpu: str
    kernels: tuple[KernelConfig, ...]
    us: tuple[float, ...]
    formula: tuple[float, ...]

    @property
    def best_us(self) -> float:
        return min(self.us)


@dataclass(frozen=True)
class Quality:
    """How well the formula and the learned model order the kernels of problems that were not
    learned from: the time of the first choice over the best one's (geometric mean), and Spearman's
    rank correlation (mean). `kept`: the file has these trees."""

    name: str  # a family, or a kind of problems, whose kernels are of all families
    problems: int
    kernels: int
    regrets: tuple[float, float]
    ranks: tuple[float, float]
    kept: bool


@dataclass(frozen=True)
class Trained:
    """A cost model's file, and what it achieves on held-out problems: by family and by kind."""

    text: str
    families: tuple[Quality, ...]
    kinds: tuple[Quality, ...]


def train(database: Database) -> Trained:
    """A cost model from the measurements of today's kernels. Raises InputError if LightGBM is not
    installed, or if no family has enough measured problems."""
    return trained_on(measured_in(database), str(database.path))


def trained_on(problems: Sequence[Measured], source: str) -> Trained:
    """As `train`, on problems from `source`."""
    lightgbm = _lightgbm()
    by_family: dict[Family[Any], list[tuple[int, list[int]]]] = defaultdict(list)
    for number, found in enumerate(problems):
        own: dict[Family[Any], list[int]] = defaultdict(list)
        for place, config in enumerate(found.kernels):
            own[config.family].append(place)
        for family, places in own.items():
            by_family[family].append((number, places))
    learned = [np.array(found.formula) for found in problems]  # the file's predictions
    held, families = [], []
    for family in sorted(by_family, key=lambda each: each.number):
        parts = [_part(problems[number], places) for number, places in by_family[family]]
        distinct = {part.id for part in parts}
        if len(distinct) < LEAST_PROBLEMS or not family_sources_digest(family.name):
            continue
        one = _Family(family, parts, lightgbm)
        quality = quality_of(family.name, list(zip(parts, one.out_of_fold(), strict=True)))
        families.append(quality)
        if quality.kept:
            held.append(one.as_dict())
            for (number, places), us in zip(by_family[family], one.out_of_fold(), strict=True):
                learned[number][places] = us
    if not families:
        raise InputError(
            f"a cost model needs {LEAST_PROBLEMS} problems of a kernel family with today's"
            f" kernels, and {source} has {len(problems)} in all: measure more by"
            " `onnxbolt tune`, or merge another database by `onnxbolt cache merge`"
        )
    by_kind: dict[str, list[tuple[Measured, Any]]] = defaultdict(list)
    for found, us in zip(problems, learned, strict=True):
        kind = (
            f"{found.problem.operation} chain" if found.problem.inner else found.problem.operation
        )
        by_kind[kind].append((found, us))
    kinds = tuple(quality_of(kind, by_kind[kind]) for kind in sorted(by_kind))
    gpus = sorted({found.gpu for found in problems})
    return Trained(text_of(held, gpus), tuple(families), kinds)


def measured_in(database: Database) -> list[Measured]:
    """The problems of a database with kernels of today's sources that compute correct results. Of
    several measurements of a kernel the one with the most runs counts, of equals the newest."""
    valid = valid_digests()
    groups: dict[str, tuple[Problem, str, str, list[Measurement]]] = {}
    for key in database.keys():  # noqa: SIM118 - no mapping
        kernel = kernel_of_key(key)
        if kernel is None:
            continue
        values = checks.parsed_json(key)
        machine = machine_of(values)
        del values["machine"]
        if (sources := str(machine.pop("templates", ""))) in valid:
            of_problem_alone, of_both = canonical(values), canonical([values, machine])
            rows = [row for row in database.measurements(key) if holds(sources, row.family)]
            group = groups.setdefault(of_both, (kernel[0], of_problem_alone, machine["gpu"], []))
            group[3].extend(rows)
    found = [_measured(*groups[text]) for text in sorted(groups)]
    return [each for each in found if each.kernels]


def _measured(problem: Problem, text: str, gpu: str, rows: Iterable[Measurement]) -> Measured:
    best: dict[KernelConfig, Measurement] = {}
    failed: set[KernelConfig] = set()
    for row in rows:
        if row.config is None:
            continue
        if row.status is not Status.OK:
            failed.add(row.config)
        elif row.config not in best or row.runs >= best[row.config].runs:
            best[row.config] = row
    kernels = tuple(sorted(best.keys() - failed))
    return Measured(
        hashlib.sha256(text.encode()).hexdigest(),
        problem,
        gpu,
        kernels,
        tuple(best[config].us for config in kernels),
        tuple(formula_us(problem, config, get(config.arch)) for config in kernels),
    )


def _part(found: Measured, places: Sequence[int]) -> Measured:
    """One family's kernels of a problem."""
    return dataclasses.replace(
        found,
        kernels=tuple(found.kernels[i] for i in places),
        us=tuple(found.us[i] for i in places),
        formula=tuple(found.formula[i] for i in places),
    )


class _Family:
    """The trees of one family."""

    def __init__(self, family: Family[Any], parts: Sequence[Measured], lightgbm: Any) -> None:
        self._family, self._parts, self._lightgbm = family, parts, lightgbm
        named = {name for part in parts for name in _names(part)}
        names = sorted(named)
        rows = np.concatenate(
            [
                matrix(part.problem, list(zip(part.formula, part.kernels, strict=True)), names)
                for part in parts
            ]
        )
        varies = (rows != rows[:1]).any(axis=0)
        self._names = [name for name, some in zip(names, varies, strict=True) if some]
        self._rows = rows[:, varies]
        self._us = np.concatenate([part.us for part in parts])
        self._formula = np.concatenate([part.formula for part in parts])
        self._weights = np.concatenate([part.best_us / np.array(part.us) for part in parts])
        self._starts = np.cumsum([0, *(len(part.us) for part in parts)])
        self._held_out: list[Any] | None = None

    def out_of_fold(self) -> list[Any]:
        """For each part, microseconds that trees predict which have not seen its problem."""
        if self._held_out is None:
            order = sorted({part.id for part in self._parts})
            fold = {of: place % _FOLDS for place, of in enumerate(order)}
            folds = np.repeat([fold[part.id] for part in self._parts], np.diff(self._starts))
            factors = np.ones(len(self._us))
            for number in range(_FOLDS):
                inside = folds == number
                booster = self._boosted(~inside)
                factors[inside] = np.exp(booster.predict(self._rows[inside]))
            us = self._formula * factors
            self._held_out = [us[a:b] for a, b in zip(self._starts, self._starts[1:], strict=False)]
        return self._held_out

    def as_dict(self) -> dict[str, object]:
        """The family as a file holds it."""
        probes = [
            Probe(part.problem, part.kernels[0])
            for part in self._parts[:: max(len(self._parts) // _PROBES, 1)][:_PROBES]
        ]
        return {
            "family": self._family.name,
            "archs": sorted({config.arch for part in self._parts for config in part.kernels}),
            "features": self._names,
            "formula": digest_of(probes),
            "probes": [probe.as_dict() for probe in probes],
            "sources": family_sources_digest(self._family.name),
            "spread": _rounded(self._spread()),
            "trees": _flat(self._boosted(np.ones(len(self._us), bool)).dump_model()),
        }

    def _spread(self) -> float:
        """The spread of log(measured / predicted) within a problem that trees have not seen."""
        squares, freedom = 0.0, 0
        for part, us in zip(self._parts, self.out_of_fold(), strict=True):
            errors = np.log(np.array(part.us) / us)
            squares += float(((errors - errors.mean()) ** 2).sum())
            freedom += len(errors) - 1
        return max(math.sqrt(squares / max(freedom, 1)), _LEAST_SPREAD)

    def _boosted(self, chosen: Any) -> Any:
        data = self._lightgbm.Dataset(
            self._rows[chosen],
            np.log(self._us[chosen] / self._formula[chosen]),
            weight=self._weights[chosen],
            params=_PARAMETERS,
        )
        return self._lightgbm.train(_PARAMETERS, data, _ROUNDS)


def _names(part: Measured) -> Iterable[str]:
    config = part.kernels[0]
    arch = get(config.arch)
    common = of_problem(part.problem, arch)
    return of_kernel(common, part.problem, config, part.formula[0], arch)


def quality_of(name: str, found: Sequence[tuple[Measured, Any]]) -> Quality:
    """The formula's and the learned model's; `found` has each problem with the learned times."""
    formula = _order([(part, part.formula) for part, _ in found])
    learned = _order([(part, list(map(float, us))) for part, us in found])
    kernels = sum(len(part.kernels) for part, _ in found)
    regrets, ranks = zip(formula, learned, strict=True)
    return Quality(name, len(found), kernels, regrets, ranks, learned[0] < formula[0])


def _order(found: Sequence[tuple[Measured, Sequence[float]]]) -> tuple[float, float]:
    """Regret and rank correlation of the predicted times of problems."""
    regrets, ranks = [], []
    for part, times in found:
        first = min(range(len(times)), key=times.__getitem__)
        regrets.append(part.us[first] / part.best_us)
        if len(times) >= _RANKABLE:
            ranks.append(spearman(times, part.us) or 0.0)
    return statistics.geometric_mean(regrets), statistics.fmean(ranks) if ranks else 0.0


def _flat(model: Mapping[str, Any]) -> dict[str, list[Any]]:
    """LightGBM's trees as `learned.trees.Trees` reads them."""
    nodes: list[tuple[int, float, int, int, float]] = []

    def add(node: Mapping[str, Any]) -> int:
        place = len(nodes)
        if "leaf_value" in node:
            nodes.append((0, 0.0, place, place, _rounded(node["leaf_value"])))
            return place
        nodes.append((0, 0.0, place, place, 0.0))
        left, right = add(node["left_child"]), add(node["right_child"])
        nodes[place] = (node["split_feature"], node["threshold"], left, right, 0.0)
        return place

    roots = [add(tree["tree_structure"]) for tree in model["tree_info"]]
    parts = zip(*nodes, strict=True)
    names = ("feature", "threshold", "left", "right", "value")
    return {"roots": roots, **dict(zip(names, map(list, parts), strict=True))}


def _rounded(value: float) -> float:
    return float(f"{value:.6e}")


def _lightgbm() -> Any:
    try:
        return importlib.import_module("lightgbm")
    except (ImportError, OSError) as error:
        raise InputError(
            f"`onnxbolt cache train` needs LightGBM ({error}): pip install 'onnxbolt[learn]'."
            " Planning with a cost model needs nothing more"
        ) from error


HEADER = (
    "family, kind",
    "problems",
    "kernels",
    "regret: formula",
    "learned",
    "rank: formula",
    "learned",
    "better",
)


def lines(trained: Trained) -> Iterator[tuple[str, ...]]:
    """Rows of a table: what was achieved on held-out problems."""
    for quality in (*trained.families, *trained.kinds):
        yield (
            quality.name,
            str(quality.problems),
            str(quality.kernels),
            *(f"{regret:.3f}" for regret in quality.regrets),
            *(f"{rank:.2f}" for rank in quality.ranks),
            "learned" if quality.kept else "formula",
        )
