"""The cache of what was compiled: its limit, what goes first, and what stays."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from onnxbolt.cli import main
from onnxbolt.codegen import cache
from onnxbolt.codegen.artifacts import Unit, compile_units
from onnxbolt.codegen.nvcc import Toolchain
from onnxbolt.errors import InputError
from onnxbolt.measurements.records import Measurement, Status
from onnxbolt.options import cache_size
from onnxbolt.tune.database import Database
from tests.codegen.test_artifacts import UNITS, calls, toolchain

__all__ = ["toolchain"]  # a fixture
LONG_AGO = 2 * cache.KEPT_SECONDS


@pytest.fixture
def filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two objects and a library of candidates of 1,000 bytes each; the first object was used
    last."""
    monkeypatch.setenv("ONNXBOLT_CACHE_DIR", str(tmp_path))
    for number, name in enumerate(("objects/b/unit.o", "candidates/c.so", "objects/a/unit.o")):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(bytes(1000))
        age(file if file.suffix == ".so" else file.parent, LONG_AGO - number)
    return tmp_path


def age(path: Path, seconds: float) -> None:
    os.utime(path, (time.time() - seconds,) * 2)


def names() -> list[str]:
    return [entry.path.name for entry in cache.entries()]


@pytest.mark.parametrize(
    ("limit", "left"),
    [("3KB", ["b", "c.so", "a"]), ("2.5KB", ["c.so", "a"]), ("1KB", ["a"]), ("0B", [])],
)
def test_the_least_recently_used_goes_first(
    filled: Path, limit: str, left: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONNXBOLT_CACHE_SIZE", limit)
    cache.trim()
    assert names() == left
    assert not list(filled.glob("removed-*"))


def test_what_is_used_now_goes_last(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONNXBOLT_CACHE_SIZE", "0B")
    cache.used(filled / "objects" / "b")
    cache.trim()
    assert names() == ["b"]  # a build of the last hour may need it


def test_a_hit_is_a_use_and_a_build_trims(
    toolchain: Toolchain, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_units(UNITS, toolchain)
    for entry in cache.entries():
        age(entry.path, LONG_AGO)
    monkeypatch.setenv("ONNXBOLT_CACHE_SIZE", "0B")
    compile_units(UNITS[:1], toolchain)
    assert len(names()) == 1
    assert calls(toolchain) == 3
    compile_units(UNITS, toolchain)
    assert calls(toolchain) == 5  # the other two were made anew


def test_a_build_larger_than_the_limit_succeeds(
    toolchain: Toolchain, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONNXBOLT_CACHE_SIZE", "1B")
    objects = compile_units([*UNITS, Unit("d.cc", "int d;")], toolchain)
    assert all(path.exists() for path in objects)


@pytest.mark.parametrize(
    ("text", "size"),
    [("2GiB", 2**31), ("500MB", 500_000_000), ("1.5KiB", 1536), ("0B", 0), ("", 2**31)],
)
def test_sizes(text: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONNXBOLT_CACHE_SIZE", text)
    assert cache_size() == size


@pytest.mark.parametrize("text", ["2", "-1GiB", "many", "1e9B", "nanGiB"])
def test_no_sizes(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONNXBOLT_CACHE_SIZE", text)
    with pytest.raises(InputError, match="write it as 500MB or 2GiB"):
        cache_size()


def test_list_and_clear(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Database() as database:
        database.add(Measurement("a key", None, Status.OK, 1.0))
    assert main(["cache", "list", "--compiled"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in lines[1:-1]] == [
        ["object", "b", "1"],
        ["library", "c.so", "1"],
        ["object", "a", "1"],
    ]
    assert lines[-1] == "3 compiled entries, 0.0 of 2048 MiB"
    assert main(["cache", "list", "--compiled", "--json"]) == 0
    assert [row["bytes"] for row in json.loads(capsys.readouterr().out)] == [1000] * 3
    assert main(["cache", "clear", "--compiled", "--yes"]) == 0
    assert capsys.readouterr().out == "3 compiled entries deleted, 0.0 MiB\n"
    assert names() == []
    with Database() as database:
        assert len(database) == 1


def test_clear_what_was_not_used_for_days(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    age(filled / "candidates" / "c.so", 3 * 86400)
    assert main(["cache", "clear", "--compiled", "--older-than", "2", "--yes"]) == 0
    assert names() == ["b", "a"]


def test_clear_asks(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "clear", "--compiled"]) == 2
    assert main(["cache", "clear", "--compiled", "--gpu", "NVIDIA H200", "--yes"]) == 2
    assert len(names()) == 3


def test_an_empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONNXBOLT_CACHE_DIR", str(tmp_path / "none"))
    assert cache.entries() == cache.clear() == []
