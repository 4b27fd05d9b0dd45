"""Tables that extensions add to."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from onnxbolt.registry import Registry, cached


@dataclass(frozen=True)
class Thing:
    name: str
    number: int


OWN = Thing("one", 1)


def _things() -> Registry[int, Thing]:
    return Registry("thing", (OWN, Thing("two", 2)), "number", "name")


def test_it_is_a_mapping_in_the_order_of_addition() -> None:
    things = _things()
    things.add(Thing("zero", 0), "mine")
    assert list(things) == [1, 2, 0]
    assert things[1] is OWN
    assert (things.owner(1), things.owner(0)) == ("", "mine")


@pytest.mark.parametrize(
    ("thing", "what"),
    [
        (Thing("three", 1), "its thing three has the number 1 of onnxbolt's own one"),
        (Thing("one", 3), "its thing one has the name one of onnxbolt's own one"),
        (Thing("other", 9), "its thing other has the number 9 of thing nine of extension theirs"),
    ],
)
def test_collisions_name_both_sides(thing: Thing, what: str) -> None:
    things = _things()
    things.add(Thing("nine", 9), "theirs")
    with pytest.raises(ValueError, match=what):
        things.add(thing, "mine")
    assert list(things) == [1, 2, 9]


def test_what_an_extension_added_can_be_removed() -> None:
    things, added = _things(), Thing("three", 3)
    things.add(added, "mine")
    things.remove(added)
    assert list(things) == [1, 2]
    for entry in (OWN, added):
        with pytest.raises(ValueError, match="none of an extension's"):
            things.remove(entry)


def test_caches_are_emptied_when_an_extension_comes_or_goes() -> None:
    things, added = _things(), Thing("three", 3)

    @cached(maxsize=8)
    def count() -> int:
        return len(things)

    assert count() == 2
    things.add(added, "mine")
    assert count() == 3
    things.remove(added)
    assert count() == 2
