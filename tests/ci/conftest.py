"""Fixtures of the tests of `onnxbolt ci`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.ci.repository import Repository, net


@pytest.fixture(autouse=True)
def without_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable of another CI."""
    for name in [name for name in os.environ if name.startswith(("GIT_", "GITHUB_"))]:
        monkeypatch.delenv(name)


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    """Two models with their lock files, committed."""
    found = Repository(tmp_path / "repository")
    found.save("a.onnx", net())
    found.save("sub/b.onnx", net(48))
    found.lock()
    found.commit()
    return found
