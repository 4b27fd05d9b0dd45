"""A result file records the machine, the packages and the code that was measured."""

from __future__ import annotations

from importlib import metadata

import pytest

from benchmarks import machine


def test_versions_of_the_peers_models_are_recorded_where_they_are_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    installed = {"torch": "2.9.0", "timm": "1.0.22", "transformers": "5.0.0"}

    def version(package: str) -> str:
        if package not in installed:
            raise metadata.PackageNotFoundError(package)
        return installed[package]

    monkeypatch.setattr(metadata, "version", version)
    found = machine.versions()
    assert found.pop("python")
    assert found == installed
    installed["torchvision"] = "0.24.0"
    assert machine.versions()["torchvision"] == "0.24.0"
