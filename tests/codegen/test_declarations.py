"""The C++ header of what both languages know: it is what Python's declarations give."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest

from onnxbolt import archs, domains, names
from onnxbolt.codegen import declarations
from onnxbolt.codegen.resources import resource_dir
from onnxbolt.families import FAMILIES, Family
from onnxbolt.families.row import WIDTH


def test_the_header_is_renewed() -> None:
    """If not: python -m onnxbolt.codegen.declarations."""
    assert declarations.path().read_text() == declarations.declarations()


def test_each_column_has_a_name() -> None:
    assert len(set(declarations.columns())) == WIDTH
    assert declarations.columns()[4:8] == ["kTileM", "kTileN", "kTileK", "kWarpM"]


@pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.name)
def test_families_have_their_numbers(family: Family[Any]) -> None:
    name = "".join(word.capitalize() for word in family.name.split("_"))
    assert f"  k{name} = {family.number}," in declarations.declarations()


def test_an_architecture_comes_with_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    blackwell = dataclasses.replace(archs.get(89), name="sm_120", number=120, nvcc="120")
    monkeypatch.setitem(archs.ARCHS, 120, blackwell)
    text = declarations.declarations()
    assert '{90, "sm_90a", true},' in text
    assert '{120, "sm_120", false},' in text


@pytest.mark.parametrize("name", [domains.FUSED, names.ENABLE, names.DEVICE])
def test_names_stand_once_in_the_sources(name: str) -> None:
    root = resource_dir("custom_ops")
    found = [
        path.relative_to(root).as_posix()
        for path in root.rglob("*")
        if path.is_file() and f'"{name}"' in path.read_text()
    ]
    assert found == ["runtime/declarations.h"]


def test_the_table_of_kernels_knows_no_numbers_of_families() -> None:
    table = (resource_dir("custom_ops") / "runtime" / "kernel_table.cc").read_text()
    assert not re.search(r"family == \d|arch == \d", table)
