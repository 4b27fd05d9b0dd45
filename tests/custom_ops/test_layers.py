"""The folders of custom_ops/: op kinds register themselves, and the runtime names neither kinds nor
families."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from onnxbolt.codegen import declarations
from onnxbolt.codegen.resources import resource_dir
from onnxbolt.families import FAMILIES
from onnxbolt.library import runtime_sources
from onnxbolt.ops import kinds

KINDS = kinds()
ROOT = resource_dir("custom_ops")
RUNTIME = sorted(set((ROOT / "runtime").iterdir()) - {declarations.path()})
_COMMENT = re.compile(r"//[^\n]*")


def _code(path: Path) -> str:
    return _COMMENT.sub("", path.read_text())


def test_each_kind_registers_itself() -> None:
    found = [
        name
        for path in ROOT.glob("ops/*/*.cc")
        for name in re.findall(r'const RegisteredKind<.*> k\w+\("(\w+)"', path.read_text())
    ]
    assert sorted(found) == sorted(KINDS)


def test_every_library_has_all_kinds() -> None:
    assert set(ROOT.glob("ops/*/*.cc")) | set(ROOT.glob("runtime/*.cc")) == set(runtime_sources())


@pytest.mark.parametrize("path", RUNTIME, ids=lambda path: path.name)
def test_the_runtime_names_no_kind_and_no_family(path: Path) -> None:
    """Comments may give examples."""
    camel = {kind.title().replace("_", "") for kind in KINDS}
    names = camel | {family.type_name for family in FAMILIES.values()}
    code = _code(path)
    assert not re.search(rf"\b(k?({'|'.join(sorted(names))})(Arguments)?)\b", code)
    assert not re.search(rf'"({"|".join(KINDS)})"', code)
    assert not re.findall(r'#include "(?:ops|families)/.*"', code)


BLOCKS = {"runtime", "ops", "epilogue", "b2b"}
MAY_INCLUDE = {
    "runtime": {"runtime"},
    "ops": {"runtime", "ops"},
    "epilogue": {"runtime", "epilogue"},
    "b2b": {"runtime", "ops", "b2b"},
    "sm90": BLOCKS | {"sm90"},
    "mma": BLOCKS | {"mma"},
    "channelwise": BLOCKS | {"channelwise"},
    "families": BLOCKS | {"sm90", "mma", "channelwise", "families"},
    "profiler": {"runtime", "ops", "profiler"},
}


@pytest.mark.parametrize("folder", MAY_INCLUDE)
def test_folders_are_layers(folder: str) -> None:
    """As docs/architecture.md has them; folders of CUTLASS are not ours."""
    included = {
        name
        for path in (ROOT / folder).rglob("*")
        if path.is_file()
        for name in re.findall(r'#include "(\w+)/', path.read_text())
    }
    assert included & MAY_INCLUDE.keys() <= MAY_INCLUDE[folder]


def test_every_folder_is_a_layer() -> None:
    assert {path.name for path in ROOT.iterdir()} == MAY_INCLUDE.keys()
