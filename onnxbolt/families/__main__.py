"""Prints the tables of docs/node-format.md that say what a configuration's numbers are."""

from __future__ import annotations

from onnxbolt.families import FAMILIES
from onnxbolt.families.base import KernelConfig
from onnxbolt.families.row import DEFAULTS, SLOTS, Place, places


def columns() -> str:
    """The columns of a row, as Markdown."""
    rows = (f"| {SLOTS.index(slot)} | {slot} | {value} |" for slot, value in DEFAULTS.items())
    return "\n".join(
        ("| column | name | where a family has no field for it |", "|---|---|---|", *rows)
    )


def table() -> str:
    """Each family's fields with the columns that hold them, as Markdown."""
    lines = ["| column 3 | family | fields | constant columns |", "|---|---|---|---|"]
    common = places(KernelConfig)
    for number, family in sorted(FAMILIES.items()):
        own = [(name, place) for name, place in family.places.items() if name not in common]
        fields = ", ".join(
            f"`{name}` {_numbers(place)}"
            for name, place in sorted(own, key=lambda it: _first(it[1]))
        )
        constants = sorted((SLOTS.index(slot), value) for slot, value in family.fixed.items())
        held = ", ".join(f"{column}: {value}" for column, value in constants)
        lines.append(f"| {number} | `{family.name}` | {fields} | {held} |")
    return "\n".join(lines)


def _first(place: Place) -> int:
    return SLOTS.index(place.slots[0])


def _numbers(place: Place) -> str:
    """The columns of a field: '4 to 6' for a tuple, '18, 19' for one number in both, or '13'; with
    a star if a launch decides the field."""
    held = [str(SLOTS.index(slot)) for slot in place.slots]
    tuples = len(held) > 1 and not place.repeated
    return (f"{held[0]} to {held[-1]}" if tuples else ", ".join(held)) + "*" * place.at_launch


if __name__ == "__main__":
    print(columns(), table(), sep="\n\n")
