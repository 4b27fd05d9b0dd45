"""Values that fail a check give an error that names them, without control characters."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from onnxbolt import checks


@pytest.mark.parametrize("value", ["a", "FusedGemm_Bias_Relu_f16", "x" * 1024])
def test_names(value: str) -> None:
    assert checks.name("name", value) == value


@pytest.mark.parametrize(
    "check",
    [
        lambda: checks.name("it", ""),
        lambda: checks.name("it", "a\n"),
        lambda: checks.name("it", "ä"),
        lambda: checks.name("it", "1a"),
        lambda: checks.name("it", "x" * 1025),
        lambda: checks.name("it", b"a"),
        lambda: checks.name("it", "\x1b[31m"),
        lambda: checks.text("it", 1),
        lambda: checks.text("it", "\ud800"),
        lambda: checks.text("it", "x" * (checks.LONGEST_TEXT + 1)),
        lambda: checks.integer("it", True, 0, 9),
        lambda: checks.integer("it", 10, 0, 9),
        lambda: checks.integer("it", 1.0, 0, 9),
        lambda: checks.number("it", -1),
        lambda: checks.number("it", float("nan")),
        lambda: checks.number("it", 10**400),
        lambda: checks.number("it", True),
        lambda: checks.boolean("it", 1),
        lambda: checks.entry("it", "b", ("a",)),
        lambda: checks.entry("it", ["a"], {"a": 1}),
    ],
)
def test_what_is_refused_is_named(check: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=r"^it ") as caught:
        check()
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 200


def test_deep_json() -> None:
    with pytest.raises(ValueError, match="nested too deeply"):
        checks.parsed_json("[" * 100_000)
