"""The cache of compiled files for people: what `onnxbolt cache list --compiled` prints."""

from __future__ import annotations

import json
from datetime import UTC, datetime

from onnxbolt.codegen import cache
from onnxbolt.options import cache_size
from onnxbolt.terminal import table

_SHOWN = 10  # characters of an entry's name


def text() -> str:
    """One line for each compiled entry, the least recently used first, and the total size with its
    limit."""
    found = cache.entries()
    rows = [
        (entry.kind, entry.path.name[:_SHOWN], f"{entry.size / 1024:.0f}", _moment(entry))
        for entry in found
    ]
    total, limit = sum(entry.size for entry in found) / 2**20, cache_size() / 2**20
    return (
        f"{table(('kind', 'entry', 'KiB', 'last used'), rows)}\n{len(found)} compiled entries,"
        f" {total:.1f} of {limit:.0f} MiB"
    )


def as_json() -> str:
    """The same entries for --json, with paths and bytes."""
    rows = [
        {"kind": entry.kind, "path": str(entry.path), "bytes": entry.size, "used": _moment(entry)}
        for entry in cache.entries()
    ]
    return json.dumps(rows, indent=2)


def _moment(entry: cache.Entry) -> str:
    return datetime.fromtimestamp(entry.used, UTC).isoformat(timespec="seconds")
