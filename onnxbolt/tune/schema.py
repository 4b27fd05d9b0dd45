"""The database's tables in each version, and the migration of files of earlier versions."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from onnxbolt.errors import InputError

_PATIENCE = 60  # seconds that a process waits for another one's transaction

# Step i brings schema version i to i + 1. Released steps never change; a new version is a new step.
_MIGRATIONS = (
    (
        """CREATE TABLE measurements (
            id TEXT PRIMARY KEY, key TEXT NOT NULL, config TEXT, status TEXT NOT NULL,
            us REAL, mad REAL, runs INTEGER NOT NULL, error REAL, clock_mhz INTEGER NOT NULL,
            detail TEXT NOT NULL, time_ns INTEGER NOT NULL, origin TEXT NOT NULL) WITHOUT ROWID""",
        "CREATE INDEX measurements_by_key ON measurements (key)",
    ),
    (
        (
            "ALTER TABLE measurements ADD COLUMN gpu TEXT AS (CASE WHEN json_valid(key) THEN"
            " json_extract(key, '$.machine.gpu') END) VIRTUAL"
        ),
    ),
)
SCHEMA = len(_MIGRATIONS)


def connect(name: str, uri: bool = False) -> sqlite3.Connection:
    """Every statement is its own transaction unless `transaction` says otherwise; a lock of the
    caller's keeps threads apart."""
    return sqlite3.connect(
        name, timeout=_PATIENCE, isolation_level=None, check_same_thread=False, uri=uri
    )


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Executes all of the statements inside, or none."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        if connection.in_transaction:  # a full disk has ended it already
            connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def version_of(connection: sqlite3.Connection, path: Path) -> int:
    """The schema version of a file. Raises InputError for a later one than SCHEMA."""
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if version > SCHEMA:
        raise InputError(
            f"{path} has schema version {version}, this version of onnxbolt knows {SCHEMA}: update"
            " onnxbolt, or set ONNXBOLT_CACHE_DIR to another directory"
        )
    if version < 0:
        raise InputError(
            f"{path} has schema version {version}, which no version of onnxbolt wrote: move the"
            " file away"
        )
    return version


def migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Bring a file of any earlier schema version to SCHEMA. Raises InputError for a later one."""
    with transaction(connection):
        for statement in _statements(version_of(connection, path), SCHEMA):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {SCHEMA}")


def check_tables(connection: sqlite3.Connection, path: Path) -> None:
    """Raises InputError if a file has other tables than those of its version: views and triggers in
    their place would run code."""
    with contextlib.closing(connect(":memory:")) as expected:
        for statement in _statements(0, version_of(connection, path)):
            expected.execute(statement)
        if _tables(connection) != _tables(expected):
            raise InputError(
                f"{path} cannot be merged: its tables are not those of a database of measurements"
            )


def _statements(version: int, until: int) -> list[str]:
    return [statement for step in _MIGRATIONS[version:until] for statement in step]


def _tables(connection: sqlite3.Connection) -> set[tuple[str, ...]]:
    """Kind, name and definition without spaces of everything in a file, except SQLite's own
    statistics."""
    found = connection.execute(
        "SELECT type, name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'"
    )
    return {(kind, name, "".join((sql or "").split())) for kind, name, sql in found}
