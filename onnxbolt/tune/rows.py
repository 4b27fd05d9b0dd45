"""Converts measurements to rows of the database and back; rows are checked, since anyone may have
written them."""

from __future__ import annotations

import hashlib
import math
from typing import Any

from onnxbolt import checks
from onnxbolt.families import KernelConfig, config_from
from onnxbolt.families.row import WIDTH
from onnxbolt.measurements.keys import canonical
from onnxbolt.measurements.records import Measurement, Status
from onnxbolt.problems import UNBOUNDED
from onnxbolt.registry import cached

COLUMNS = (
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
Row = tuple[Any, ...]  # values in the order of COLUMNS
_CONFIGS = 16384  # that are held: the problems of a file have many in common
_STATUSES = frozenset(status.value for status in Status)


def values_of(m: Measurement) -> Row:
    """A measurement as columns. Numbers that are not finite become null, since neither SQLite nor
    JSON has them."""
    us, mad, error = (
        float(value) if math.isfinite(value) else None for value in (m.us, m.mad, m.error)
    )
    config = _text(m.config) if m.config else None
    return m.key, config, m.status.value, us, mad, m.runs, error, m.clock_mhz, m.detail


def measurement_of(row: Row) -> Measurement:
    """The inverse of `values_of`. Raises ValueError for values that no measurement has."""
    key, config, status, us, mad, runs, error, clock_mhz, detail, *_ = row
    us, mad, error = (
        math.nan if value is None else checks.number(name, value)
        for name, value in (("us", us), ("mad", mad), ("error", error))
    )
    runs, clock_mhz = (
        checks.integer(name, value, 0, UNBOUNDED)
        for name, value in (("runs", runs), ("clock_mhz", clock_mhz))
    )
    ended = Status(checks.entry("status", status, _STATUSES))
    return Measurement(
        checks.text("key", key),
        None if config is None else _config(config),
        ended,
        us,
        mad,
        runs,
        error,
        clock_mhz,
        checks.text("detail", detail),
    )


def identity(row: Row) -> str:
    """The row's primary key: rows of equal content are one."""
    return hashlib.sha256(canonical(list(row)).encode()).hexdigest()


@cached(maxsize=_CONFIGS)
def _text(config: KernelConfig) -> str:
    return canonical(config.row())


@cached(maxsize=_CONFIGS)
def _config(text: object) -> KernelConfig:
    """The configuration in a row. Rows of earlier versions lack the columns that were added since;
    their default is 0."""
    numbers = checks.parsed_json(checks.text("config", text))
    if not isinstance(numbers, list):
        raise ValueError(f"configuration {str(numbers)[:200]}: expected a list")
    return config_from([*numbers, *[0] * (WIDTH - len(numbers))])
