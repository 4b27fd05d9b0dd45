"""Measurements whose errors against the formula can be learned. They stand for none of a GPU."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from pathlib import Path

from onnxbolt.archs import get
from onnxbolt.codegen.digest import family_sources_digest, present_sources_digest
from onnxbolt.families import KernelConfig
from onnxbolt.learned.model import Probe, digest_of, text_of
from onnxbolt.measurements.keys import kernel_key
from onnxbolt.measurements.records import Machine, Measurement, Status
from onnxbolt.plan.cost import candidates, formula_us
from onnxbolt.problems import Problem
from tests.tune.fakes import gemm


def machine() -> Machine:
    return Machine("Fake", 90, 700, "13.0", "4.2", present_sources_digest())


def problems(count: int = 12, seed: int = 0) -> list[Problem]:
    rng = random.Random(seed)
    return [
        gemm(64 * rng.randint(2, 40), 64 * rng.randint(2, 40), 64 * rng.randint(2, 40))
        for _ in range(count)
    ]


def kernels(problem: Problem, family: str = "gemm_sm90") -> list[KernelConfig]:
    """Every second candidate of a family."""
    found = [c for c in candidates(problem, get(90)) if c.family.name == family]
    return found[::2]


def true_us(problem: Problem, config: KernelConfig) -> float:
    """The formula is too optimistic for wide tiles and small k-blocks, and noisy."""
    row = dict(zip(("arch", "least", "most", "family", "m", "n", "k"), config.row(), strict=False))
    noise = random.Random(repr((problem, config.row()))).gauss(0.0, 0.01)
    wrong = 0.4 * (row["n"] > 128) + 0.3 * (row["k"] < 64) - 0.2 * (row["m"] > 128)
    return formula_us(problem, config, get(90)) * math.exp(0.1 + wrong + noise)


def measurements(found: Sequence[Problem], family: str = "gemm_sm90") -> list[Measurement]:
    return [
        Measurement(
            kernel_key(problem, machine()),
            config,
            Status.OK,
            true_us(problem, config),
            0.01,
            50,
            1e-4,
            1980,
        )
        for problem in found
        for config in kernels(problem, family)
    ]


def written(path: Path, family: str = "gemm_sm90") -> Path:
    """A cost model that was not trained: kernels of `family` with more than 128 columns take twice
    as long as the formula says, others half."""
    held = [Probe(problem, kernels(problem, family)[0]) for problem in problems(2)]
    trees = {
        "roots": [0],
        "feature": [0, 0, 0],
        "threshold": [128.5, 0.0, 0.0],
        "left": [1, 1, 2],
        "right": [2, 1, 2],
        "value": [0.0, -math.log(2), math.log(2)],
    }
    one = {
        "family": family,
        "archs": [90],
        "features": ["config tile_n"],
        "formula": digest_of(held),
        "probes": [probe.as_dict() for probe in held],
        "sources": family_sources_digest(family),
        "spread": 0.1,
        "trees": trees,
    }
    path.write_text(text_of([one], ["Fake"]))
    return path
