"""The list of mutants (tests/mutants): each still applies, and its tests exist."""
from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.mutants.__main__ import Outcome, mutated, table
from tests.mutants.listing import MUTANTS, Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_each_mutant_applies(mutant: Mutant) -> None:
    text = (ROOT / mutant.file).read_text()
    assert mutated(text, mutant) != text
    assert all((ROOT / test.partition("::")[0]).exists() for test in mutant.tests)


def test_names_tell_mutants_apart() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


def test_a_text_that_stands_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="2 times"):
        mutated("a b a", Mutant("a mutant", "file", "a", "c", ()))


def test_the_table_shows_what_nothing_found(tmp_path: Path) -> None:
    mutant = Mutant("a mutant", "file.py", "a", "b", ("tests",))
    text = table([Outcome(mutant, "", 1.0), Outcome(mutant, "tests/test_x.py::test_y", 1.0)])
    assert "1 of 2 mutants" in text
    assert "| a mutant | file.py | **nothing** |" in text
