"""A learned cost model: for some kernel families, the logarithm of measured over predicted time.

The file is ours: JSON with the trees of each family. A family's trees count as long as they are
about the kernels and the formula that they were made for: the digest of the sources of its kernels
must be today's, and so must that of the features of a few of its kernels (`Probe`), the formula's
time among them. Otherwise the family is predicted by its formula.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from onnxbolt import checks
from onnxbolt.archs import get
from onnxbolt.codegen.digest import same_kernels
from onnxbolt.errors import InputError
from onnxbolt.families import Family, KernelConfig, config_from, named
from onnxbolt.files import read_whole
from onnxbolt.learned import features
from onnxbolt.learned.trees import Trees
from onnxbolt.measurements.keys import canonical, plain, problem_from
from onnxbolt.problems import Problem

FORMAT, SCHEMA = "onnxbolt cost model", 1
_LARGEST = 2**26  # bytes of a file
_MOST_ARCHS, _MOST_FEATURES, _MOST_PROBES = 2**31, 1000, 100
_DIGEST = 12  # digits that name a model
_FARTHEST = math.log(1000)  # no kernel is as much faster or slower than its formula says
_SPREADS = 1e-3, 10.0  # the least and the largest with which the tuner can calculate


@dataclass(frozen=True)
class Probe:
    """A kernel whose features tell whether those that trees were made for are today's."""

    problem: Problem
    config: KernelConfig

    @classmethod
    def of(cls, held: Mapping[str, Any]) -> Probe:
        return cls(problem_from(held["kind"], held["problem"]), config_from(held["config"]))

    def as_dict(self) -> dict[str, object]:
        kind = type(self.problem).__name__
        return {"kind": kind, "problem": plain(self.problem), "config": self.config.row()}

    @property
    def features(self) -> dict[str, float]:
        arch = get(self.config.arch)
        us = self.config.family.predicted_us(self.problem, self.config, arch)
        common = features.of_problem(self.problem, arch)
        return features.of_kernel(common, self.problem, self.config, us, arch)


def digest_of(probes: Sequence[Probe]) -> str:
    """A digest of the features of probes, to seven digits, as trees see them."""
    seen = [{name: f"{value:.6e}" for name, value in p.features.items()} for p in probes]
    return hashlib.sha256(canonical(seen).encode()).hexdigest()


@dataclass(frozen=True, eq=False)
class FamilyModel:
    """The trees for one family's kernels, the architectures that they were measured on, and the
    spread of log(measured / predicted) within a problem that was not learned from."""

    archs: tuple[int, ...]
    features: tuple[str, ...]  # names, in the order of the trees' numbers
    spread: float
    trees: Trees

    def factors(self, problem: Problem, kernels: Sequence[tuple[float, KernelConfig]]) -> Any:
        """The factors between the formula's times and the learned ones."""
        logarithms = self.trees.sums(matrix(problem, kernels, self.features))
        return np.exp(np.clip(logarithms, -_FARTHEST, _FARTHEST))


def matrix(
    problem: Problem, kernels: Sequence[tuple[float, KernelConfig]], names: Sequence[str]
) -> Any:
    """A row with the features `names` of each kernel, given with the formula's time. A feature
    that a kernel has not counts as -1."""
    arch = get(kernels[0][1].arch)
    common = features.of_problem(problem, arch)
    rows = [features.of_kernel(common, problem, config, us, arch) for us, config in kernels]
    return np.array([[row.get(name, -1.0) for name in names] for row in rows], np.float32)


@dataclass(frozen=True, eq=False)
class CostModel:
    """The learned model of a file. `families` are those whose trees count today."""

    digest: str
    families: Mapping[Family[Any], FamilyModel]
    outdated: tuple[str, ...] = ()  # names of families whose sources or formula have changed

    @classmethod
    def read(cls, path: Path) -> CostModel:
        """Raises InputError if the file is no cost model, or damaged."""
        text = read_whole(path, _LARGEST)
        try:
            values = checks.parsed_json(text)
            if values["format"] != FORMAT:
                raise ValueError(values["format"])
            if checks.integer("schema", values["schema"], 0, 2**31) != SCHEMA:
                raise InputError(
                    f"{path} has schema version {values['schema']}, this version of onnxbolt knows"
                    f" {SCHEMA}: train it again by `onnxbolt cache train`"
                )
            found = dict(_families(values["families"]))
        except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError) as error:
            raise InputError(
                f"{path} is not a cost model, or damaged ({error}): make it with"
                " `onnxbolt cache train`"
            ) from error
        holding = {named(name): model for name, model in found.items() if model is not None}
        outdated = tuple(sorted(name for name, model in found.items() if model is None))
        return cls(hashlib.sha256(text.encode()).hexdigest()[:_DIGEST], holding, outdated)

    def of(self, config: KernelConfig) -> FamilyModel | None:
        """The model that predicts a kernel; None if the formula does."""
        model = self.families.get(config.family)
        return model if model is not None and config.arch in model.archs else None

    def predicted(
        self, problem: Problem, kernels: Sequence[tuple[float, KernelConfig]]
    ) -> list[tuple[float, KernelConfig]]:
        """The kernels with their learned times in the place of the formula's."""
        found = list(kernels)
        for family in dict.fromkeys(config.family for _, config in kernels):
            places = [i for i, (_, config) in enumerate(kernels) if config.family is family]
            model = self.of(kernels[places[0]][1])
            if model is not None:
                own = [kernels[i] for i in places]
                for i, factor in zip(places, model.factors(problem, own), strict=True):
                    us, config = kernels[i]
                    found[i] = (us * float(factor), config)
        return found


def _families(held: Any) -> Iterator[tuple[str, FamilyModel | None]]:
    """The families of a file; None in the place of trees that are about other kernels."""
    for each in held:
        name = checks.name("family", each["family"])
        names = tuple(checks.text("feature", feature) for feature in each["features"])
        if len(names) > _MOST_FEATURES or len(each["probes"]) > _MOST_PROBES:
            raise ValueError(f"{name} has too many features or probes")
        model = FamilyModel(
            tuple(checks.integer("arch", arch, 0, _MOST_ARCHS) for arch in each["archs"]),
            names,
            _spread(each["spread"]),
            Trees.of(each["trees"], len(names)),
        )
        yield name, model if _holds(name, each) else None


def _spread(value: object) -> float:
    spread, (least, most) = checks.number("spread", value), _SPREADS
    if not least <= spread <= most:
        raise ValueError(f"spread {spread}: a number from {least} to {most} is expected")
    return spread


def _holds(name: str, held: Mapping[str, Any]) -> bool:
    """True if the family's kernels, formula and features are those of the file."""
    if not same_kernels(name, held["sources"]):
        return False
    try:
        return digest_of([Probe.of(probe) for probe in held["probes"]]) == held["formula"]
    except (ValueError, LookupError, TypeError, ArithmeticError, StopIteration):
        return False  # a problem or configuration of another version


def text_of(families: Sequence[Mapping[str, object]], gpus: Sequence[str]) -> str:
    """The file with these families: keys sorted, a family to a line."""
    lines = ",\n".join(json.dumps(each, sort_keys=True, separators=(",", ":")) for each in families)
    head = f'"format": "{FORMAT}",\n"gpus": {json.dumps(list(gpus))},\n"schema": {SCHEMA}'
    return f'{{"families": [\n{lines}\n],\n{head}}}\n'
