"""The database for people: what `onnxbolt cache list` and `show` print."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from onnxbolt import checks
from onnxbolt.errors import InputError
from onnxbolt.inspection import describe
from onnxbolt.measurements.keys import kernel_of_key, machine_of
from onnxbolt.measurements.records import Measurement, Status
from onnxbolt.problems import Problem
from onnxbolt.terminal import table
from onnxbolt.tune.database import Database

_SHOWN = 10  # characters of a key's digest; `show` accepts any prefix that belongs to one task


@dataclass(frozen=True)
class Entry:
    """One key of the database with all of its measurements."""

    key: str
    measurements: tuple[Measurement, ...]
    best: Measurement | None

    @property
    def id(self) -> str:
        """The digest of the key, which itself is long."""
        return hashlib.sha256(self.key.encode()).hexdigest()

    @property
    def facts(self) -> dict[str, Any]:
        """The key's parts; empty for a key of unknown form."""
        try:
            facts = checks.parsed_json(self.key)
        except ValueError:
            return {}
        return facts if isinstance(facts, dict) else {}

    @property
    def gpu(self) -> str:
        return str(machine_of(self.facts).get("gpu", ""))

    @property
    def what(self) -> str:
        """The task in words."""
        facts = self.facts
        if "kernel" in facts:
            return self.problem.description if self.problem else f"unknown {facts.get('kind', '')}"
        if "model" in facts:
            return f"model {str(facts['model'])[:_SHOWN]}, {facts.get('session', '')}"
        if "session" in facts:
            return f"region {str(facts.get('region', ''))[:_SHOWN]}, {facts['session']}"
        return self.key

    @property
    def problem(self) -> Problem | None:
        """The kernel's problem; None for other tasks, and where this version has none of its
        kind."""
        known = kernel_of_key(self.key)
        return known[0] if known else None

    @property
    def tflops(self) -> float | None:
        if self.best is None or self.best.us <= 0 or self.problem is None:
            return None
        return self.problem.flops / self.best.us / 1e6

    @property
    def failures(self) -> int:
        return sum(m.status is not Status.OK for m in self.measurements)

    def summary(self) -> dict[str, Any]:
        """The entry's summary for --json."""
        best = self.best
        return {
            "id": self.id,
            "key": self.facts or self.key,
            "what": self.what,
            "gpu": self.gpu,
            "measurements": len(self.measurements),
            "failures": self.failures,
            "best_us": best.us if best else None,
            "tflops": self.tflops,
            "config": best.config.row() if best and best.config else None,
        }


def entries(database: Database) -> list[Entry]:
    """All entries, by GPU and problem."""
    keys = database.keys()
    found = [Entry(key, tuple(database.measurements(key)), database.best(key)) for key in keys]
    return sorted(found, key=lambda entry: (entry.gpu, entry.what, entry.key))


def find(database: Database, prefix: str) -> Entry:
    """The task whose digest begins with `prefix`. Raises InputError if there is none, or more than
    one."""
    found = [entry for entry in entries(database) if entry.id.startswith(prefix.lower())]
    if len(found) == 1:
        return found[0]
    count = f"{len(found)} tasks have keys" if found else "no task has a key"
    raise InputError(
        f"{count} that begin{'' if found else 's'} with {prefix!r}; `onnxbolt cache list` shows"
        " them"
    )


def table_of(found: Sequence[Entry], columns: int | None = None) -> str:
    """One line per task."""
    rows = [
        (
            entry.id[:_SHOWN],
            entry.what,
            entry.gpu,
            f"{len(entry.measurements)}{f' ({entry.failures} failed)' if entry.failures else ''}",
            f"{entry.best.us:.2f}" if entry.best else "",
            "" if entry.tflops is None else f"{entry.tflops:.0f}",
            _described(entry.best),
        )
        for entry in found
    ]
    header = ("key", "task", "GPU", "measurements", "best us", "TFLOP/s", "configuration")
    return (
        f"{table(header, rows, columns)}\n{len(rows)} tasks,"
        f" {sum(len(entry.measurements) for entry in found)} measurements"
    )


def details_of(entry: Entry, columns: int | None = None) -> str:
    """The key's parts, then every measurement, the fastest first."""
    facts = [
        f"{name}: {json.dumps(value, sort_keys=True)}" for name, value in entry.facts.items()
    ] or [entry.key]
    ordered = sorted(entry.measurements, key=lambda m: (m.status is not Status.OK, m.us))
    rows = [
        (
            m.status.value,
            *(
                (f"{m.us:.2f}", f"{m.mad:.2f}", str(m.runs))
                if m.status is Status.OK
                else ("", "", "")
            ),
            f"{m.error:.1e}",
            str(m.clock_mhz or ""),
            _described(m),
            m.detail,
        )
        for m in ordered
    ]
    header = ("status", "us", "deviation", "runs", "error", "MHz", "configuration", "detail")
    return "\n".join([entry.what, *facts, table(header, rows, columns)])


def details_as_json(entry: Entry) -> dict[str, Any]:
    """For --json: the summary with every measurement."""
    rows = [
        {
            "status": m.status.value,
            "us": m.us,
            "mad": m.mad,
            "runs": m.runs,
            "error": None if math.isnan(m.error) else m.error,
            "clock_mhz": m.clock_mhz,
            "config": m.config.row() if m.config else None,
            "detail": m.detail,
        }
        for m in entry.measurements
    ]
    return {**entry.summary(), "measurements": rows}


def _described(measurement: Measurement | None) -> str:
    if measurement is None:
        return ""
    return describe(measurement.config) if measurement.config else "session"
