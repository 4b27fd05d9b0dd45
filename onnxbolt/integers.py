"""Integer arithmetic for counts of tiles and sizes of buffers; custom_ops/runtime/integers.h has
the same functions."""

from __future__ import annotations


def ceil_divide(value: int, divisor: int) -> int:
    """`value` divided by `divisor`, rounded up."""
    return -(-value // divisor)


def round_up(value: int, multiple: int) -> int:
    """The smallest multiple of `multiple` that is at least `value`."""
    return ceil_divide(value, multiple) * multiple
