"""Lock files and measurements with one value in them that onnxbolt would not have written."""

from __future__ import annotations

import copy
import itertools
import json
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from onnxbolt.dtypes import DType
from onnxbolt.families.blocks.mma_sync import Walk
from onnxbolt.families.conv_2x import Conv2xConfig
from onnxbolt.families.gemm_2x import Gemm2xConfig
from onnxbolt.measurements.keys import kernel_key
from onnxbolt.measurements.records import Machine, Measurement, Status
from onnxbolt.measurements.timings import Choice, Comparison, Cut, Timings
from onnxbolt.options import Options
from onnxbolt.problems import GemmProblem
from onnxbolt.tune.database import Database
from onnxbolt.tune.lockfile import Lock
from tests.tune.fakes import CONV

Item = TypeVar("Item")
MACHINE = Machine("NVIDIA H200", 90, 700, "13.0", "4.2.0", "t0")
GEMM = GemmProblem(1024, 768, 3072, DType.F16, DType.F32, ("Bias",))
CONFIG = Gemm2xConfig(
    arch=90, tile=(128, 128, 32), warp=(64, 64, 32), instruction=(16, 8, 16), stages=3
)
CONV_2X = Conv2xConfig(
    arch=90,
    tile=(128, 128, 32),
    warp=(64, 64, 32),
    instruction=(16, 8, 16),
    stages=3,
    walk=Walk.OPTIMIZED,
)
USED = Timings(
    {(GEMM, 90): Choice(CONFIG, 12.5, 0.125), (CONV, 90): Choice(CONV_2X, 7.0)},
    {"aa": Comparison(10.0, 0.1, 20.0, 0.2, region="sm_90 2 fused nodes", reason="it is slower")},
    MACHINE,
    cuts={"cc": Cut(2, "gemm 1024x64-16x256, f16")},
)
LOCK = Lock().updated(USED, Options(), ["sm_90a"])
MEASUREMENTS = (
    Measurement(kernel_key(GEMM, MACHINE), CONFIG, Status.OK, 5.0, 0.1, 10, 1e-4, 1980),
    Measurement(kernel_key(GEMM, MACHINE), None, Status.CRASHED, detail="signal 11"),
)
NUMBERS: tuple[Any, ...] = (
    None,
    True,
    -1,
    2**31,
    2**64,
    10**400,
    1.5,
    float("inf"),
    float("nan"),
    "1",
    [],
    [1] * 1000,
    {},
    {"a": 1},
)


def hostile_locks(words: list[str], share: int = 1) -> Iterator[tuple[str, str]]:
    """Texts of lock files, each with a name that says what is in it: each value of a sound one
    replaced by each hostile one, or by one of `share`."""
    yield from (
        (f"lock {name}", json.dumps(values))
        for name, values in _some(changed(json.loads(LOCK.text()), [*words, *NUMBERS]), share)
    )
    yield from whole_texts(LOCK.text())


def hostile_exports(words: list[str], share: int = 1) -> Iterator[tuple[str, str]]:
    """Texts of exported measurements: likewise."""
    header, line, *others = _exported_lines()
    for name, values in _some(changed(json.loads(line), [*words, *NUMBERS]), share):
        yield f"export {name}", "\n".join([header, json.dumps(values), *others, ""])
    for name, values in _some(changed(json.loads(header), [*words, *NUMBERS]), share):
        yield f"export header {name}", "\n".join([json.dumps(values), line, *others, ""])
    yield from whole_texts("\n".join([header, line, *others, ""]))


def hostile_databases(
    words: list[str], directory: Path, share: int = 1
) -> Iterator[tuple[str, Path]]:
    """SQLite files: each column of a row replaced, and tables that are programs."""
    columns = (
        "id",
        "key",
        "config",
        "status",
        "us",
        "mad",
        "runs",
        "error",
        "clock_mhz",
        "detail",
        "time_ns",
        "origin",
    )
    for column in columns:
        values = [
            *(word for word in words if "\ud800" not in word),
            b"\xff\xfe",
            -1,
            2**62,
            1e308,
            1.5,
        ]
        for i, value in _some(enumerate(values), share):
            yield (
                f"column {column} {i}",
                _edited(
                    directory,
                    (f"UPDATE measurements SET {column} = ? WHERE config IS NOT NULL", (value,)),
                ),
            )
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)"
    names = ", ".join(f"'{column}' AS {column}" for column in columns)
    for name, statement in {
        "an endless view": f"CREATE VIEW measurements AS {endless} SELECT {names} FROM n",
        "a column of gigabytes": (
            "CREATE TABLE measurements ("
            + ", ".join(f"{c} AS (zeroblob(1000000000))" for c in columns[1:])
            + ", id)"
        ),
        "no table": "CREATE TABLE other (id)",
    }.items():
        yield name, _edited(directory, ("DROP TABLE measurements", ()), (statement, ()))
    trigger = "CREATE TRIGGER t AFTER INSERT ON measurements BEGIN DELETE FROM measurements; END"
    yield "a trigger", _edited(directory, (trigger, ()))
    for version in (-1, 0, 1, 99, 2**31 - 1):
        yield f"schema {version}", _edited(directory, (f"PRAGMA user_version = {version}", ()))
    for count in (0, 16, 100, 5000):
        path = _edited(directory)
        path.write_bytes(path.read_bytes()[:count] + b"\xff" * 100)
        yield f"cut off after {count}", path


def changed(value: Any, others: list[Any], where: str = "") -> Iterator[tuple[str, Any]]:
    """Copies of a JSON value, each with one part of it replaced by one of `others`."""
    for i, other in enumerate(others):
        yield f"{where} = {i}", other
    places = (
        list(value.items())
        if isinstance(value, dict)
        else list(enumerate(value))
        if isinstance(value, list)
        else []
    )
    for key, part in places:
        for name, new in changed(part, others, f"{where}/{key}"):
            copied = copy.copy(value)
            copied[key] = new
            yield name, copied


def _some(items: Iterable[Item], share: int) -> Iterator[Item]:
    """One of `share`: with the values of one place in turn, each place has its share of them,
    and each value its share of places."""
    return itertools.islice(items, 0, None, share)


def whole_texts(text: str) -> Iterator[tuple[str, str]]:
    """Files that a parser might not survive."""
    yield from {
        "empty": "",
        "deep lists": "[" * 200_000,
        "deep objects": '{"schema":' * 100_000,
        "no text": "\0" * 1000,
        "long number": '{"schema": ' + "9" * 1_000_000 + "}",
        "half": text[: len(text) // 2],
        "twice": text + text,
    }.items()


def _exported_lines() -> list[str]:
    with (
        tempfile.TemporaryDirectory() as directory,
        Database(Path(directory, "tuning.sqlite")) as database,
    ):
        database.add(*MEASUREMENTS)
        path = Path(directory, "exported.jsonl")
        database.export(path)
        return path.read_text().splitlines()


def _edited(directory: Path, *statements: tuple[str, tuple[object, ...]]) -> Path:
    path = directory / "other.sqlite"
    for old in directory.glob("other.sqlite*"):
        old.unlink()
    with Database(path) as database:
        database.add(*MEASUREMENTS)
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = DELETE")
    for statement, values in statements:
        connection.execute(statement, values)
    connection.close()
    return path
