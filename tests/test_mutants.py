"""The list of mutants (tests/mutants): each still applies, and its tests exist."""

from __future__ import annotations

import pytest

from tests.conftest import ROOT
from tests.mutants.__main__ import RESULTS, mutated, read_table, table
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


def test_the_table_shows_what_nothing_found() -> None:
    found = {MUTANTS[0].name: "", MUTANTS[1].name: "tests/test_x.py::test_y[a-b]"}
    text = table(found)
    assert "1 of 2 mutants" in text
    assert f"| {MUTANTS[0].name} | {MUTANTS[0].file} | **nothing** |" in text
    assert read_table(text) == found


def test_the_committed_table_has_every_mutant() -> None:
    assert read_table(RESULTS.read_text()).keys() == {mutant.name for mutant in MUTANTS}


def test_the_committed_table_names_tests_that_exist() -> None:
    for found_by in read_table(RESULTS.read_text()).values():
        file, _, test = found_by.partition("::")
        name = test.partition("[")[0].rpartition("::")[2]
        assert f"def {name}(" in (ROOT / file).read_text(), found_by
