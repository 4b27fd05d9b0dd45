"""Tables fit the terminal and keep what tells names apart."""

from __future__ import annotations

import sys

import pytest
from rich.table import Table

from onnxbolt.terminal import add_row, literal_console, width

NAMES = [f"/model/encoder/layers.{i}/self_attention/output/dense/MatMul_{i}" for i in range(3)]


@pytest.mark.parametrize("columns", [40, 60, 100])
def test_narrow_columns_show_the_ends_of_names(columns: int) -> None:
    table = Table("node", "us", "reason", box=None)
    for name in NAMES:
        add_row(table, name, "12.5", "predicted slower")
    console = literal_console(columns)
    with console.capture() as captured:
        console.print(table)
    lines = captured.get().splitlines()
    assert all(len(line) <= columns for line in lines)
    for i, name in enumerate(NAMES):
        assert any(f"Mul_{i} " in line for line in lines)
        assert (name in captured.get()) == (columns == 100)


def test_the_width_is_the_terminal_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "77")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False, raising=False)
    assert width(140) == 140
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert width(140) == 77
