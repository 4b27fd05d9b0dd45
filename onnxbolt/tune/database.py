"""All measurements, in one SQLite file that several processes of a machine may use at once.

A row is identified by its content, its time stamp and the connection that made it (`origin`);
merging two files is therefore the union of two sets, in any order and any number of times. The
write-ahead log makes each `add` whole or absent, whenever the process ends.
"""

from __future__ import annotations

import contextlib
import gzip
import sqlite3
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path

from filelock import FileLock

from onnxbolt import extensions
from onnxbolt.codegen.digest import holds, present_sources_digest, valid_digests
from onnxbolt.errors import InputError
from onnxbolt.families import KernelConfig
from onnxbolt.files import write_whole
from onnxbolt.measurements.keys import canonical
from onnxbolt.measurements.records import Measurement, Status
from onnxbolt.options import cache_directory
from onnxbolt.registry import NotInstalledError
from onnxbolt.tune.merging import HEADER, checked_rows
from onnxbolt.tune.rows import COLUMNS, Row, identity, measurement_of, values_of
from onnxbolt.tune.schema import connect, migrate, transaction

_PAGES = 65536  # KiB of pages in memory: merging a million rows writes fewer of them twice


def default_path() -> Path:
    """tuning.sqlite in the cache directory."""
    return cache_directory() / "tuning.sqlite"


class Database:
    """The measurements in `path` (default: `default_path()`), created or migrated where needed.

    Every method raises InputError where the file cannot be used.
    """

    def __init__(self, path: Path | None = None) -> None:
        extensions.load()  # rows hold configurations of their families
        self.path = path or default_path()
        self._origin = uuid.uuid4().hex
        self._writing = threading.Lock()
        with self._errors():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # SQLite fails with "locked" instead of waiting if two processes turn on the write-ahead
            # log at once
            with FileLock(f"{self.path}.lock"):
                self._connection = connect(str(self.path))
                self._connection.execute("PRAGMA journal_mode = WAL")
                self._connection.execute("PRAGMA synchronous = NORMAL")
                self._connection.execute(f"PRAGMA cache_size = -{_PAGES}")
                migrate(self._connection, self.path)

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add(self, *measurements: Measurement) -> None:
        """Remember measurements, all of them or none, stamped with the time."""
        now = time.time_ns()
        self._insert(
            (identity(row), *row)
            for row in [
                (*values_of(measurement), now + i, self._origin)
                for i, measurement in enumerate(measurements)
            ]
        )

    def measurements(self, key: str) -> list[Measurement]:
        """All measurements of a key, oldest first, including those made with other sources as far
        as they hold for today's kernels."""
        today = present_sources_digest()
        sources = {key.replace(today, digest): digest for digest in valid_digests()}
        keys = sorted({key, *sources})
        places = ", ".join("?" * len(keys))
        rows = self._select(f"WHERE key IN ({places}) ORDER BY time_ns, id", *keys)
        return [
            each
            for each in map(self._measurement, rows)
            if each.key == key or holds(sources[each.key], each.family)
        ]

    def best(self, key: str) -> Measurement | None:
        """The fastest configuration that never failed; None if there is none.

        Of several measurements of a configuration, the one with the most runs counts, and the
        newest of equals. Measurements of ONNX Runtime have no configuration and count as one.
        """
        by_config: dict[KernelConfig | None, list[Measurement]] = defaultdict(list)
        for measurement in self.measurements(key):
            by_config[measurement.config].append(measurement)
        sound = [group for group in by_config.values() if all(m.status is Status.OK for m in group)]
        counting = [
            max(enumerate(group), key=lambda item: (item[1].runs, item[0]))[1] for group in sound
        ]
        return min(counting, key=lambda m: (m.us, m.config.row() if m.config else []), default=None)

    def tried(self, key: str) -> set[KernelConfig]:
        """All configurations that were measured, including failed ones."""
        return {m.config for m in self.measurements(key) if m.config is not None}

    def keys(self) -> list[str]:
        """All keys, sorted."""
        with self._errors():
            return [
                key
                for (key,) in self._connection.execute(
                    "SELECT DISTINCT key FROM measurements ORDER BY key"
                )
            ]

    def __len__(self) -> int:
        with self._errors():
            return int(self._connection.execute("SELECT count(*) FROM measurements").fetchone()[0])

    def export(self, path: Path) -> None:
        """Write everything as JSON lines, compressed if the name ends in .gz: the same measurements
        give the same bytes."""
        rows = self._select("ORDER BY key, config, time_ns, id")
        lines = [HEADER, *(dict(zip(COLUMNS, row, strict=True)) for row in rows)]
        text = "".join(f"{canonical(line)}\n" for line in lines).encode()
        write_whole(path, gzip.compress(text, mtime=0) if path.suffix == ".gz" else text)

    def merge(self, path: Path) -> int:
        """Add what another database or an exported file holds, all of it or nothing, and return how
        many measurements were new.

        Raises InputError, also for values that onnxbolt would not have written, since the fastest
        configuration of a problem ends up in models.
        """
        before = len(self)
        with self._errors(), checked_rows(path) as rows:
            self._insert(rows)
        return len(self) - before

    def clear(self, gpu: str | None = None, before: datetime | None = None) -> int:
        """Forget the measurements of a GPU, those before a time, those with both conditions or,
        without conditions, all; returns how many."""
        conditions: list[str] = ["1"]
        values: list[object] = []
        if gpu is not None:
            conditions.append("gpu = ?")
            values.append(gpu)
        if before is not None:
            conditions.append("time_ns < ?")
            values.append(int(before.timestamp() * 1e9))
        with self._errors(), self._writing:
            return self._connection.execute(
                f"DELETE FROM measurements WHERE {' AND '.join(conditions)}", values
            ).rowcount

    def _select(self, rest: str, *values: object) -> list[Row]:
        with self._errors():
            return self._connection.execute(
                f"SELECT {', '.join(COLUMNS)} FROM measurements {rest}", values
            ).fetchall()

    def _insert(self, identified: Iterable[Row]) -> None:
        """Add rows, each behind its identity."""
        places = ", ".join("?" * (len(COLUMNS) + 1))
        with self._errors(), self._writing, transaction(self._connection):
            self._connection.executemany(
                f"INSERT OR IGNORE INTO measurements (id, {', '.join(COLUMNS)}) VALUES ({places})",
                identified,
            )

    def _measurement(self, row: Row) -> Measurement:
        try:
            return measurement_of(row)
        except NotInstalledError as error:
            raise InputError(
                f"{self.path} holds a measurement of an extension's kernel ({error}): install the"
                " package that has it, or forget all measurements by `onnxbolt cache clear`"
            ) from error
        except ValueError as error:
            raise InputError(
                f"{self.path} holds a measurement that onnxbolt cannot have made ({error}): move"
                " the file away"
            ) from error

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise InputError(
                f"{self.path} cannot be used as the tuning database: {error}; make room, move the"
                " file away, or set ONNXBOLT_CACHE_DIR to another directory"
            ) from error
