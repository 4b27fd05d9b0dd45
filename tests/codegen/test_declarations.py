"""The C++ header of what both languages know: it is what Python's declarations give."""

from __future__ import annotations

import dataclasses
import re

import pytest

from onnxbolt import archs, domains, names
from onnxbolt.codegen import declarations
from onnxbolt.codegen.resources import resource_dir
from onnxbolt.families.row import WIDTH


def test_the_header_is_renewed() -> None:
    """If not: python -m onnxbolt.codegen.declarations."""
    assert declarations.path().read_text() == declarations.declarations()


def test_each_column_has_a_name() -> None:
    assert len(set(declarations.columns())) == WIDTH
    assert declarations.columns()[4:8] == ["kTileM", "kTileN", "kTileK", "kWarpM"]


def test_the_package_s_architectures_have_their_names() -> None:
    """An extension's are in the manifests of the libraries that hold its kernels."""
    blackwell = dataclasses.replace(archs.get(89), name="sm_120", number=120, nvcc="120")
    archs.ARCHS.add(blackwell, "parts")
    try:
        text = declarations.declarations()
    finally:
        archs.ARCHS.remove(blackwell)
    assert '{90, "sm_90a"},' in text
    assert "sm_120" not in text


@pytest.mark.parametrize("name", [domains.FUSED, names.ENABLE, names.DEVICE])
def test_names_stand_once_in_the_sources(name: str) -> None:
    root = resource_dir("custom_ops")
    found = [
        path.relative_to(root).as_posix()
        for path in root.rglob("*")
        if path.is_file() and f'"{name}"' in path.read_text()
    ]
    assert found == ["runtime/declarations.h"]


def test_the_runtime_knows_no_families() -> None:
    """A kernel says by itself what its family is."""
    for path in sorted((resource_dir("custom_ops") / "runtime").iterdir()):
        assert not re.search(r"family == \d|Family::", path.read_text()), path.name


def test_sources_know_no_numbers_of_architectures() -> None:
    """They ask for the facts of `ArchOf<Row>`; device code may ask the compiler."""
    compared = re.compile(r"kArch\)?\s*[<>=!]=?\s*\d|arch\s*[<>=!]=?\s*\d\d", re.IGNORECASE)
    found = [
        f"{path.name}: {line}"
        for path in sorted(resource_dir("custom_ops").rglob("*.[hc]*"))
        for line in path.read_text().splitlines()
        if compared.search(line) and "__CUDA_ARCH__" not in line
    ]
    assert found == []
