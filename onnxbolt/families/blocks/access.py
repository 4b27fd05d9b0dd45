"""How many elements one access of memory may have."""

from __future__ import annotations

from onnxbolt.dtypes import DType


def alignment(elements: int, dtype: DType) -> int:
    """The widest access, in elements and at most 16 bytes, that divides rows of `elements`: 8, 4, 2
    or 1 elements; 4, 2 or 1 for types of 4 bytes."""
    widths = (width for width in (8, 4, 2, 1) if width <= dtype.alignment)
    return next(width for width in widths if elements % width == 0)
