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


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_functions_return_what_they_refuse(path: Path) -> None:
    """A list that a caller gives away to be filled hides where a refusal comes from."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef):
            for argument in (*node.args.args, *node.args.kwonlyargs):
                given = ast.unparse(argument.annotation) if argument.annotation else ""
                assert not given.startswith("list[Refusal]"), node.name
