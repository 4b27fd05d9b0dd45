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
