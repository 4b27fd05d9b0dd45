"""The measurements of the collection, and the cost model that was trained on them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from benchmarks import collect, predictions
from onnxbolt.codegen.digest import valid_digests
from onnxbolt.learned.model import CostModel

FOLDER = Path(collect.__file__).parent
MEASURED = sorted(FOLDER.glob("collection-*.jsonl.gz"))
MODELS = sorted(FOLDER.glob("cost_model-*.json"))


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_the_model_can_be_read(path: Path) -> None:
    model = CostModel.read(path)
    assert model.families or model.outdated
    assert {family.name for family in model.families}.isdisjoint(model.outdated)


@pytest.mark.parametrize("path", MEASURED, ids=lambda path: path.name)
def test_the_measurements_are_of_the_collection(path: Path) -> None:
    found = {measured.problem for measured in predictions.read(path)}
    assert found <= set(collect.read())  # none, once kernels have changed
    assert path.stat().st_size < 5 * 2**20


@pytest.mark.parametrize("path", MEASURED, ids=lambda path: path.name)
def test_the_measurements_of_families_that_stay_hold(path: Path) -> None:
    """`python -m tests.same_results note` has noted the sources that they were measured with."""
    lines = gzip.decompress(path.read_bytes()).decode().splitlines()[1:]
    keys = {json.loads(line)["key"] for line in lines}
    assert {json.loads(key)["machine"]["templates"] for key in keys} <= valid_digests()
