"""The list of compiled files: `onnxbolt cache list --compiled`."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from onnxbolt.codegen import cache, listing


def test_entries_are_listed_by_their_last_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONNXBOLT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("ONNXBOLT_CACHE_SIZE", "2MiB")
    for name, moment in (("0123456789abcdef", 86400), ("fedcba9876543210", 0)):
        entry = cache.objects() / name
        entry.mkdir(parents=True)
        (entry / "unit.o").write_bytes(bytes(2048))
        os.utime(entry, (moment, moment))
    first, second = listing.text().splitlines()[1:3]
    assert first.split() == ["object", "fedcba9876", "2", "1970-01-01T00:00:00+00:00"]
    assert second.split() == ["object", "0123456789", "2", "1970-01-02T00:00:00+00:00"]
    assert listing.text().splitlines()[-1] == "2 compiled entries, 0.0 of 2 MiB"
    assert json.loads(listing.as_json())[0] == {
        "kind": "object",
        "path": str(cache.objects() / "fedcba9876543210"),
        "bytes": 2048,
        "used": "1970-01-01T00:00:00+00:00",
    }
