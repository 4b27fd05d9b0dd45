"""Edits by text: found whatever the white space, once or not at all."""

from __future__ import annotations

import pytest

from tests.edits import count, replaced

SOURCE = """void f(int a,
       int b) {
  return a + b;  // a + b
}
x = call(
    one,
    two,
)
"""


@pytest.mark.parametrize(
    ("old", "times"),
    [
        ("void f(int a, int b)", 1),
        ("return a+b;", 1),
        ("a + b", 2),
        ("call(one, two)", 1),
        ("all(one, two)", 0),
        ("a - b", 0),
    ],
)
def test_white_space_does_not_matter(old: str, times: int) -> None:
    assert count(SOURCE, old) == times


def test_what_stands_once_is_replaced() -> None:
    assert replaced(SOURCE, "return a  +  b;", "return \\1;") == SOURCE.replace(
        "return a + b;", "return \\1;"
    )


@pytest.mark.parametrize("old", ["a + b", "a - b"])
def test_another_number_of_times_is_an_error(old: str) -> None:
    with pytest.raises(ValueError, match="times"):
        replaced(SOURCE, old, "")
