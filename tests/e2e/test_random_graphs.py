"""Models that nobody thought of, through the main job. A seed names its model: a failure is
reproduced by its number."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.checking import ARCHS, HOPPER, check
from tests.e2e.random_graphs import random_model

SEEDS = range(60)


@pytest.mark.parametrize("seed", SEEDS)
def test_random_model(seed: int, tmp_path: Path) -> None:
    model, archs = random_model(seed), (ARCHS, HOPPER)[seed % 2]
    check(model, tmp_path, "keep", "all", archs)
    check(
        model, tmp_path, *(("fp16", "all"), ("bf16", "all"), ("fp16", "winning"))[seed % 3], archs
    )


def test_a_seed_names_one_model() -> None:
    assert random_model(1).SerializeToString(deterministic=True) == random_model(
        1
    ).SerializeToString(deterministic=True)
