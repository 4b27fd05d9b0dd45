"""Which measurements stay valid when kernels' sources change, as tests/same_results.py notes it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from onnxbolt.codegen import digest
from onnxbolt.codegen.digest import (
    families_digests,
    family_sources_digest,
    holds,
    kernel_sources_digest,
)
from tests import same_results

EVERY = families_digests()


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Facts about earlier sources, which differ from today's in two families."""
    path = tmp_path / "equal_kernels.json"
    sources = {"before": EVERY | {"pool": "a", "norm": "b"}}
    equal = {"pool": [["a", "older"], ["b", "c"]]}
    path.write_text(json.dumps({"equal": equal, "sources": sources}))
    for module in (digest, same_results):
        monkeypatch.setattr(module, "EQUAL", path)
    digest._table.cache_clear()
    yield path
    digest._table.cache_clear()


def test_todays_sources_are_noted(table: Path) -> None:
    same_results.note()
    assert json.loads(table.read_text())["sources"][kernel_sources_digest()] == EVERY


def test_families_of_equal_machine_code_are_noted(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those alone whose sources are not the recorded ones are compiled."""
    compiled = []

    def tasks(only: str) -> Iterator[tuple[str, object, tuple[str]]]:
        compiled.append(only)
        yield only, str, ("code",)

    monkeypatch.setattr(same_results, "tasks", tasks)
    document = {
        "sources": {"pool": "a", "norm": "b", "layout": family_sources_digest("layout")},
        "found": {"kernels/pool": "code", "kernels/norm": "other", "kernels/layout": "other"},
    }
    assert same_results.rekey(document) == ["kernels/norm: other instructions"]
    assert compiled == ["kernels/pool", "kernels/norm"]
    digest._table.cache_clear()
    today = family_sources_digest("pool")
    assert json.loads(table.read_text())["equal"] == {
        "pool": [["b", "c"], sorted(["a", "older", today])]
    }
    assert [name for name in ("pool", "norm", "layout") if holds("before", name)] == [
        "pool",
        "layout",
    ]


def test_the_package_knows_the_sources_of_its_measurements() -> None:
    known = json.loads(digest.EQUAL.read_text())["sources"]
    assert all(len(name) == len(kernel_sources_digest()) for name in known)
    assert all(found.keys() for found in known.values())
