"""The row of numbers that nodes, lock files and databases hold for a kernel's configuration.

All families share one order of slots. Each family has a configuration class of its own; each field
names its slots by `at`. Rows are encoded and decoded here alone; custom_ops/ reads the same slots.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# the slots in their order, and what a slot holds that a family has no field for
DEFAULTS: Mapping[str, int] = {
    "arch": 0,
    "min_m": 0,
    "max_m": 0,
    "family": 0,
    "tile_m": 1,
    "tile_n": 1,
    "tile_k": 1,
    "warp_m": 0,
    "warp_n": 0,
    "warp_k": 0,
    "instruction_m": 0,
    "instruction_n": 0,
    "instruction_k": 0,
    "stages": 0,
    "swizzle": 1,
    "cluster_m": 1,
    "cluster_n": 1,
    "schedule": 0,
    "align_a": 8,
    "align_b": 8,
    "align_c": 8,
    "iterator": 0,
    "split_k": 1,
    "consumers": 0,
    "resident": 0,
}
NOTHING: Mapping[str, int] = {}
SLOTS = tuple(DEFAULTS)
WIDTH = len(SLOTS)
LARGEST = 2**31 - 1
_PLACE = "place"
_KEPT = object()


@dataclass(frozen=True)
class Place:
    """The slots that hold a field, and the values that it may have.

    `repeated`: all slots hold the same number. `numbers`: the number that stands for each value,
    unless it is the value itself. `compiled`: the value in compiled instances, if a launch decides
    the field. `sound`: True for values that a kernel could have.
    """

    slots: tuple[str, ...]
    repeated: bool
    numbers: Mapping[Any, int] | None
    compiled: Any
    sound: Callable[[Any], bool]

    @property
    def at_launch(self) -> bool:
        """True if a launch decides, so that instances do not differ by it."""
        return self.compiled is not _KEPT

    @property
    def several(self) -> bool:
        """True if values are tuples, with a number for each slot."""
        return len(self.slots) > 1 and not self.repeated

    def decode(self, row: Mapping[str, int]) -> Any:
        """The value in a row. Raises ValueError for numbers that stand for no value."""
        held = [row[slot] for slot in self.slots]
        if self.numbers:
            values = {number: value for value, number in self.numbers.items()}
            if held[0] not in values:
                raise ValueError(f"{self.slots[0]} is {held[0]}")
            return values[held[0]]
        return tuple(held) if self.several else held[0]


def at(
    *slots: str,
    default: Any = dataclasses.MISSING,
    repeated: bool = False,
    numbers: Mapping[Any, int] | None = None,
    compiled: Any = _KEPT,
    sound: Callable[[Any], bool] = lambda value: True,
) -> Any:
    """A field of a configuration with its `Place`."""
    place = Place(slots, repeated, numbers, compiled, sound)
    return dataclasses.field(default=default, metadata={_PLACE: place})


def places(config: type[Any]) -> dict[str, Place]:
    """The place of each field of a configuration class, by the field's name."""
    return {field.name: field.metadata[_PLACE] for field in dataclasses.fields(config)}


def encoder(
    places: Mapping[str, Place], held: Mapping[str, int]
) -> Callable[[Any], tuple[int, ...]]:
    """A function that makes the row of a configuration. `held` are the numbers of slots without a
    field.

    Planning encodes every configuration that it compares, so places are looked up here once.
    """
    begin = [held[slot] for slot in SLOTS]
    numbers: list[tuple[int, str]] = []  # position in the row, and name of the field
    translated: list[tuple[int, str, Mapping[Any, int]]] = []
    tuples: list[tuple[tuple[int, ...], str]] = []
    for name, place in places.items():
        positions = tuple(map(SLOTS.index, place.slots))
        if place.several:
            tuples.append((positions, name))
        elif place.numbers:
            translated += [(position, name, place.numbers) for position in positions]
        else:
            numbers += [(position, name) for position in positions]

    def encode(config: Any) -> tuple[int, ...]:
        row = begin.copy()
        for position, name in numbers:
            row[position] = getattr(config, name)
        for position, name, of_value in translated:
            row[position] = of_value[getattr(config, name)]
        for positions, name in tuples:
            for position, number in zip(positions, getattr(config, name), strict=True):
                row[position] = number
        return tuple(row)

    return encode


def checked(numbers: Any) -> Sequence[int]:
    """`numbers`, if they can be a row. Raises ValueError for anything else."""
    if not isinstance(numbers, list | tuple) or not all(
        type(n) is int and 0 <= n <= LARGEST for n in numbers
    ):
        what = f"integers from 0 to {LARGEST} are expected"
        raise ValueError(f"configuration {str(numbers)[:200]}: {what}")
    if len(numbers) != WIDTH:
        raise ValueError(f"a configuration row has {WIDTH} numbers, not {len(numbers)}")
    return numbers
