"""Every measurement that was ever made, in one SQLite file that several processes of a machine may use at once.

A row is identified by its content, its time stamp and the connection that made it (`origin`); merging two files is therefore
the union of two sets: the order does not matter, and twice is as good as once. The write-ahead log makes each `add` whole
or absent, whenever the process ends.
"""
from __future__ import annotations

import contextlib
import hashlib
import json
import math
import sqlite3
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from filelock import FileLock

from onnxbolt.errors import InputError
from onnxbolt.files import read_whole, write_whole
from onnxbolt.kernels.config import ROW_WIDTH, KernelConfig
from onnxbolt.options import cache_directory
from onnxbolt.tune.records import Measurement, Status, canonical
from onnxbolt.tune.soundness import check_measurement

_PATIENCE = 60  # seconds that a process waits for another one's transaction
_COLUMNS = ("key", "config", "status", "us", "mad", "runs", "error", "clock_mhz", "detail", "time_ns", "origin")
_FORMAT = "onnxbolt measurements"

# Step i brings schema version i to i + 1. Released steps never change; a new version is a new step.
_MIGRATIONS = (
    (
        """CREATE TABLE measurements (
            id TEXT PRIMARY KEY, key TEXT NOT NULL, config TEXT, status TEXT NOT NULL, us REAL, mad REAL, runs INTEGER NOT NULL, error REAL,
            clock_mhz INTEGER NOT NULL, detail TEXT NOT NULL, time_ns INTEGER NOT NULL, origin TEXT NOT NULL) WITHOUT ROWID""",
        "CREATE INDEX measurements_by_key ON measurements (key)",
    ),
    ("ALTER TABLE measurements ADD COLUMN gpu TEXT AS (CASE WHEN json_valid(key) THEN json_extract(key, '$.machine.gpu') END) VIRTUAL",),
)
SCHEMA = len(_MIGRATIONS)
Row = tuple[Any, ...]  # values in the order of _COLUMNS


def default_path() -> Path:
    """tuning.sqlite in the cache directory."""
    return cache_directory() / "tuning.sqlite"


class Database:
    """The measurements in `path` (default: `default_path()`), created or migrated where needed.

    Every method raises InputError where the file cannot be used.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or default_path()
        self._origin = uuid.uuid4().hex
        self._writing = threading.Lock()
        with self._errors():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # SQLite answers "locked" without waiting where two processes turn on the write-ahead log at once
            with FileLock(f"{self.path}.lock"):
                self._connection = _connect(str(self.path))
                self._connection.execute("PRAGMA journal_mode = WAL")
                self._connection.execute("PRAGMA synchronous = NORMAL")
                _migrate(self._connection, self.path)

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add(self, *measurements: Measurement) -> None:
        """Remember measurements, all of them or none, stamped with the time."""
        now = time.time_ns()
        self._insert([(*_values(measurement), now + i, self._origin) for i, measurement in enumerate(measurements)])

    def measurements(self, key: str) -> list[Measurement]:
        """All of a key, oldest first."""
        return [_measurement(row) for row in self._select("WHERE key = ? ORDER BY time_ns, id", key)]

    def best(self, key: str) -> Measurement | None:
        """The fastest configuration that never failed, None where there is none.

        Where a configuration was measured several times, the measurement of the most runs counts, the newest of equal ones.
        For a key of ONNX Runtime, whose measurements have no configuration, that is the only choice.
        """
        by_config: dict[KernelConfig | None, list[Measurement]] = defaultdict(list)
        for measurement in self.measurements(key):
            by_config[measurement.config].append(measurement)
        sound = [group for group in by_config.values() if all(m.status is Status.OK for m in group)]
        counting = [max(enumerate(group), key=lambda item: (item[1].runs, item[0]))[1] for group in sound]
        return min(counting, key=lambda m: (m.us, m.config.row() if m.config else []), default=None)

    def tried(self, key: str) -> set[KernelConfig]:
        """Configurations with any measurement, failed ones among them."""
        return {m.config for m in self.measurements(key) if m.config is not None}

    def keys(self) -> list[str]:
        """All keys, sorted."""
        with self._errors():
            return [key for (key,) in self._connection.execute("SELECT DISTINCT key FROM measurements ORDER BY key")]

    def __len__(self) -> int:
        with self._errors():
            return int(self._connection.execute("SELECT count(*) FROM measurements").fetchone()[0])

    def export(self, path: Path) -> None:
        """Write everything as JSON lines: the same measurements give the same bytes."""
        rows = self._select("ORDER BY key, config, time_ns, id")
        lines = [{"format": _FORMAT, "schema": SCHEMA}, *(dict(zip(_COLUMNS, row, strict=True)) for row in rows)]
        write_whole(path, "".join(f"{canonical(line)}\n" for line in lines))

    def merge(self, path: Path) -> int:
        """Add what another database or an exported file holds, all of it or nothing, and return how many measurements were new.

        Raises InputError for a configuration that no kernel could have, too: the fastest of a problem ends up in models.
        """
        before = len(self)
        self._insert(_rows_of_database(path) if _is_sqlite(path) else _rows_of_export(path))
        return len(self) - before

    def clear(self, gpu: str | None = None, before: datetime | None = None) -> int:
        """Forget measurements of a GPU, of a time before, of both conditions, or without conditions all; returns how many."""
        conditions: list[str] = ["1"]
        values: list[object] = []
        if gpu is not None:
            conditions.append("gpu = ?")
            values.append(gpu)
        if before is not None:
            conditions.append("time_ns < ?")
            values.append(int(before.timestamp() * 1e9))
        with self._errors(), self._writing:
            return self._connection.execute(f"DELETE FROM measurements WHERE {' AND '.join(conditions)}", values).rowcount

    def _select(self, rest: str, *values: object) -> list[Row]:
        with self._errors():
            return self._connection.execute(f"SELECT {', '.join(_COLUMNS)} FROM measurements {rest}", values).fetchall()

    def _insert(self, rows: Iterable[Row]) -> None:
        places = ", ".join("?" * (len(_COLUMNS) + 1))
        identified = [(_identity(row), *row) for row in rows]
        with self._errors(), self._writing, _transaction(self._connection):
            self._connection.executemany(f"INSERT OR IGNORE INTO measurements (id, {', '.join(_COLUMNS)}) VALUES ({places})", identified)

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise InputError(f"{self.path} cannot be used as the tuning database: {error}; make room, move the file away, or set "
                             "ONNXBOLT_CACHE_DIR to another directory") from error


def _connect(name: str, uri: bool = False) -> sqlite3.Connection:
    # every statement is its own transaction unless _transaction says otherwise; a lock of ours keeps threads apart
    return sqlite3.connect(name, timeout=_PATIENCE, isolation_level=None, check_same_thread=False, uri=uri)


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Bring a file of any earlier schema version to SCHEMA. Raises InputError for a later one."""
    with _transaction(connection):
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version > SCHEMA:
            raise InputError(f"{path} has schema version {version}, this version of onnxbolt knows {SCHEMA}: update onnxbolt, or set "
                             "ONNXBOLT_CACHE_DIR to another directory")
        for statement in (statement for step in _MIGRATIONS[version:] for statement in step):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {SCHEMA}")


def _is_sqlite(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(16) == b"SQLite format 3\0"
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error


def _rows_of_database(path: Path) -> list[Row]:
    """Read through a migrated copy in memory, so that the file stays as it is."""
    copy = _connect(":memory:")
    try:
        with contextlib.closing(_connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as other:
            other.backup(copy)
        _migrate(copy, path)
        rows: list[Row] = copy.execute(f"SELECT {', '.join(_COLUMNS)} FROM measurements").fetchall()
        for row in rows:
            check_measurement(_measurement(row))
        return rows
    except (sqlite3.Error, ValueError, TypeError) as error:
        raise InputError(f"{path} cannot be merged: {error}") from error
    finally:
        copy.close()


def _rows_of_export(path: Path) -> list[Row]:
    rows: list[Row] = []
    for number, line in enumerate(read_whole(path).splitlines() or [""], 1):
        try:
            values = json.loads(line)
            if number == 1:
                _check_header(values, path)
                continue
            measurement = _measurement(tuple(values[name] for name in _COLUMNS))
            check_measurement(measurement)
            rows.append((*_values(measurement), int(values["time_ns"]), str(values["origin"])))
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"{path} line {number}: not an exported measurement ({error}); make the file with `onnxbolt cache export`") from error
    return rows


def _check_header(values: Any, path: Path) -> None:
    if values["format"] != _FORMAT:
        raise ValueError(values["format"])
    if values["schema"] > SCHEMA:
        raise InputError(f"{path} has schema version {values['schema']}, this version of onnxbolt knows {SCHEMA}: update onnxbolt")


def _values(m: Measurement) -> Row:
    """A measurement as columns; what is not finite, which neither SQLite nor JSON has, is null."""
    us, mad, error = (float(value) if math.isfinite(value) else None for value in (m.us, m.mad, m.error))
    config = canonical(m.config.row()) if m.config else None
    return m.key, config, m.status.value, us, mad, m.runs, error, m.clock_mhz, m.detail


def _measurement(row: Row) -> Measurement:
    key, config, status, us, mad, runs, error, clock_mhz, detail, *_ = row
    us, mad, error = (math.nan if value is None else float(value) for value in (us, mad, error))
    return Measurement(key, _config(config) if config else None, Status(status), us, mad, runs, error, clock_mhz, detail)


def _config(text: str) -> KernelConfig:
    """Rows of earlier versions end before the columns that were added since, whose default is 0."""
    numbers = json.loads(text)
    return KernelConfig.from_row([*numbers, *[0] * (ROW_WIDTH - len(numbers))])


def _identity(row: Row) -> str:
    return hashlib.sha256(canonical(list(row)).encode()).hexdigest()
