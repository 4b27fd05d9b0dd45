"""Integer arithmetic that counts of tiles and layouts of memory need, as
custom_ops/runtime/integers.h has it."""

from __future__ import annotations


def ceil_divide(value: int, divisor: int) -> int:
    """The least whole number of `divisor`s that hold `value`."""
    return -(-value // divisor)


def round_up(value: int, multiple: int) -> int:
    """The least multiple that is not below `value`."""
    return ceil_divide(value, multiple) * multiple
