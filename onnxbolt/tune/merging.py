"""Reads measurements of another database or export, without changing the file, and checks that
onnxbolt could have written them.

Rows are read, checked and set aside one by one: a file of a million takes no more memory than one
of a thousand.
"""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from onnxbolt import checks
from onnxbolt.errors import InputError
from onnxbolt.files import check_size, read_lines
from onnxbolt.registry import NotInstalledError
from onnxbolt.tune.rows import COLUMNS, Row, identity, measurement_of, values_of
from onnxbolt.tune.schema import SCHEMA, check_tables, connect, migrate, transaction
from onnxbolt.tune.soundness import check_measurement

_FORMAT = "onnxbolt measurements"
HEADER = {"format": _FORMAT, "schema": SCHEMA}  # first line of an export
_LARGEST = 2**32  # bytes of a file; four million measurements fit
_LONGEST_LINE = 2**20  # characters
_LATEST = 2**63 - 1  # nanoseconds, as SQLite counts
_PART = 1000  # rows that are handed to SQLite at once
_TEMPORARY = ""  # SQLite's name for a file of its own, deleted in the end


@contextlib.contextmanager
def checked_rows(path: Path) -> Iterator[Iterator[Row]]:
    """All rows of a database or an exported file, each behind its identity and in the order of
    these, after every row was checked.

    Raises InputError if the file is neither, or if it holds values that onnxbolt would not have
    written.
    """
    check_size(path, _LARGEST)
    with path.open("rb") as file:
        is_database = file.read(16) == b"SQLite format 3\0"
    rows = _rows_of_database(path) if is_database else _rows_of_export(path)
    columns = ", ".join(("id", *COLUMNS))
    with contextlib.closing(connect(_TEMPORARY)) as aside:
        aside.execute(f"CREATE TABLE rows ({columns})")
        add = f"INSERT INTO rows VALUES ({', '.join('?' * (1 + len(COLUMNS)))})"
        with transaction(aside):
            while part := list(itertools.islice(rows, _PART)):
                aside.executemany(add, ((identity(row), *row) for row in part))
        yield aside.execute(f"SELECT {columns} FROM rows ORDER BY id")


def _rows_of_database(path: Path) -> Iterator[Row]:
    """Rows read through a migrated copy, so that the file stays unchanged."""
    try:
        with contextlib.closing(connect(_TEMPORARY)) as copy:
            with contextlib.closing(
                connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
            ) as other:
                other.backup(copy)
            check_tables(copy, path)
            migrate(copy, path)
            for row in copy.execute(f"SELECT {', '.join(COLUMNS)} FROM measurements"):
                yield _sound(row, path)
    except (sqlite3.Error, ValueError) as error:
        raise InputError(f"{path} cannot be merged: {error}") from error


def _rows_of_export(path: Path) -> Iterator[Row]:
    number = 0
    for number, line in enumerate(read_lines(path, _LONGEST_LINE, _LARGEST), 1):
        try:
            values = checks.parsed_json(line)
            if number == 1:
                _check_header(values, path)
                continue
            row = _sound(tuple(values[name] for name in COLUMNS), path)
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"{path} line {number}: not an exported measurement ({error}); make the file with"
                " `onnxbolt cache export`"
            ) from error
        yield row
    if not number:
        raise InputError(
            f"{path} line 1: not an exported measurement (the file is empty); make the file with"
            " `onnxbolt cache export`"
        )


def _sound(row: Row, path: Path) -> Row:
    """The row as `Database.add` would have written it. Raises ValueError if it would not have, and
    InputError where its kernel is that of an extension which is not installed."""
    try:
        measurement = measurement_of(row)
    except NotInstalledError as error:
        raise InputError(
            f"{path} holds a measurement of an extension's kernel ({error}): install the package"
            " that has it, then merge"
        ) from error
    check_measurement(measurement)
    *_, time_ns, origin = row
    return (
        *values_of(measurement),
        checks.integer("time_ns", time_ns, 0, _LATEST),
        checks.text("origin", origin),
    )


def _check_header(values: Any, path: Path) -> None:
    if values["format"] != _FORMAT:
        raise ValueError(values["format"])
    if checks.integer("schema", values["schema"], 0, 2**31) > SCHEMA:
        raise InputError(
            f"{path} has schema version {values['schema']}, this version of onnxbolt knows"
            f" {SCHEMA}: update onnxbolt"
        )
