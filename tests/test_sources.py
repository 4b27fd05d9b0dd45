"""Habits of the package's sources that no other check knows."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT

SOURCES = sorted((ROOT / "onnxbolt").rglob("*.py"))


def _calls_of_id(tree: ast.AST) -> Iterator[int]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "id":
            yield node.lineno


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_dictionaries_are_keyed_by_nodes_and_not_by_their_ids(path: Path) -> None:
    """An id means nothing once its object is gone; nodes and candidates hash by identity."""
    assert not list(_calls_of_id(ast.parse(path.read_text())))


def _late_imports(tree: ast.AST) -> Iterator[str]:
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for node in ast.walk(function):
                if isinstance(node, ast.ImportFrom):
                    yield str(node.module)
                elif isinstance(node, ast.Import):
                    yield from (alias.name for alias in node.names)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_import_hides_in_a_function(path: Path) -> None:
    """Commands start without the optimizer (cli.py says why); other modules of the package import
    each other at the top, so that a cycle shows."""
    if path.parent.name == "onnxbolt" and path.name.startswith("cli"):
        return
    late = set(_late_imports(ast.parse(path.read_text())))
    assert not [name for name in late if name.partition(".")[0] == "onnxbolt"]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_functions_return_what_they_refuse(path: Path) -> None:
    """A list that a caller gives away to be filled hides where a refusal comes from."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef):
            for argument in (*node.args.args, *node.args.kwonlyargs):
                given = ast.unparse(argument.annotation) if argument.annotation else ""
                assert not given.startswith("list[Refusal]"), node.name
