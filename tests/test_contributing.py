"""CONTRIBUTING.md says which tests cover a module; here it is held against the tree."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

from tests.conftest import ROOT


def modules(folder: str) -> dict[str, Path]:
    """Files of a package by the names that they are imported by."""
    found = {}
    for path in sorted((ROOT / folder).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@functools.cache
def imports(path: Path) -> frozenset[str]:
    """Modules of the package that a file imports, within functions too."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(names & PACKAGE.keys())


PACKAGE, TESTS = modules("onnxbolt"), modules("tests")
MODULES = {
    path.relative_to(ROOT / "onnxbolt"): name
    for name, path in PACKAGE.items()
    if path.name not in ("__init__.py", "__main__.py")
}


def table() -> dict[str, list[str]]:
    """The rows of CONTRIBUTING's table: modules and the tests that cover them."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    rows = re.findall(r"^\| (`[^|]*\.py`) \| (`tests/[^|]*`) \|$", text, re.MULTILINE)
    return {
        pattern: re.findall(r"`(.*?)`", tests)
        for patterns, tests in rows
        for pattern in re.findall(r"`(.*?)`", patterns)
    }


def reached(package: str) -> set[str]:
    """Modules of a package that its tests import, or that these import within the package."""
    own = f"onnxbolt.{package}"
    folder = f"tests.{package}"
    waiting = [
        name
        for test, path in TESTS.items()
        if path.name.startswith("test_")
        and (test.startswith(f"{folder}.") or test == f"tests.test_{package}")
        for name in imports(path)
    ]
    found: set[str] = set()
    while waiting:
        name = waiting.pop()
        parents = {name.rpartition(".")[0]} & PACKAGE.keys()
        if name not in found and (name == own or name.startswith(f"{own}.")):
            waiting += imports(PACKAGE[name]) | parents
        found.add(name)
    return found


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_each_module_is_covered_as_contributing_says(module: Path) -> None:
    name = MODULES[module]
    mirror = ROOT / "tests" / module.parent / f"test_{module.name}"
    imported = any(name in imports(path) for path in TESTS.values())
    through = len(module.parts) > 1 and name in reached(module.parts[0])
    listed = any(module.match(pattern) for pattern in table())
    assert mirror.exists() or imported or through or listed, (
        f"no test covers onnxbolt/{module}: add tests/{module.parent / f'test_{module.name}'}, or a"
        " row to the table in CONTRIBUTING.md"
    )


def test_the_table_names_modules_and_tests_that_exist() -> None:
    assert table()
    for pattern, tests in table().items():
        assert any(module.match(pattern) for module in MODULES), pattern
        for test in tests:
            assert (ROOT / test).exists(), test
