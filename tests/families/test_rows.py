"""Rows of numbers near valid ones: a row is refused by a ValueError, or means one configuration,
which has that row."""

from __future__ import annotations

import copy
import itertools
import json
import pickle
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from onnxbolt.families import FAMILIES, Family, KernelConfig, config_from
from onnxbolt.families.row import LARGEST

# rows of each family, as tests/same_results.py compares them
UNITS = json.loads((Path(__file__).parents[1] / "same_results.json").read_text())["units"]
NUMBERS = (0, 1, 2, 3, 5, 8, 16, 17, 32, 64, 65, 128, 255, 256, 1024, 1025, LARGEST)
OTHERS = (LARGEST + 1, 2**63, -1, True, 64.0, None, "1", [1])
OWN = [family for family in FAMILIES.values() if family.number < 1000]


def _near(row: list[int], generator: random.Random) -> Iterator[list[Any]]:
    """The row with up to three other numbers, with two exchanged, longer, shorter, or with
    what is no number of a row."""
    for count in (1, 1, 1, 2, 3):
        changed: list[Any] = list(row)
        for place in generator.sample(range(len(row)), count):
            changed[place] = generator.choice((*NUMBERS, row[place] + 1, row[place] * 2))
        yield changed
    one, other = generator.sample(range(len(row)), 2)
    changed = list(row)
    changed[one], changed[other] = changed[other], changed[one]
    yield changed
    changed = list(row)
    changed[one] = generator.choice(OTHERS)
    yield changed
    yield row[:one] + row[one + 1 :]
    yield [*row[:one], generator.choice(NUMBERS), *row[one:]]


def _decoded(row: list[Any]) -> KernelConfig | None:
    try:
        return config_from(row)
    except ValueError:
        return None


@pytest.mark.parametrize("family", OWN, ids=str)
def test_a_row_is_refused_or_comes_back(family: Family[Any]) -> None:
    generator, found = random.Random(family.number), 0
    for row in UNITS[family.name]["rows"] * 60:
        for changed in _near(row, generator):
            config = _decoded(changed)
            if config is not None:
                found += 1
                assert config.row() == changed
                assert all(type(number) is int for number in changed)
                assert config.family is FAMILIES[changed[3]]
    assert found


def test_configurations_are_equal_if_their_rows_are() -> None:
    configs = [config_from(row) for unit in UNITS.values() for row in unit["rows"]]
    for one, other in itertools.product(configs, repeat=2):
        assert (one == other) == (one.row() == other.row())
        assert (one < other) == (one.row() < other.row())
    for config in configs:
        for same in (copy.deepcopy(config), pickle.loads(pickle.dumps(config))):
            assert same == config
            assert hash(same) == hash(config)
            assert same.row() == config.row()
            assert same.family is config.family


# 27: gemm_norm_sm90, which is gone (docs/decisions/norms-in-products.md)
@pytest.mark.parametrize("number", [0, 27, 999, 1000, LARGEST])
def test_an_unknown_family_is_one_clear_error(number: int) -> None:
    (row, *_) = UNITS["gemm_2x"]["rows"]
    with pytest.raises(ValueError, match=rf"there is no kernel family {number}\b"):
        config_from([*row[:3], number, *row[4:]])


@pytest.mark.parametrize("value", [None, [], (), "x" * 25, {"a": 1}, range(25), 1])
def test_what_is_no_row_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="configuration"):
        config_from(value)
