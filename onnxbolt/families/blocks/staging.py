"""Staging of the output in our own sm_90a kernels: units of 64 rows in shared memory, from which
TMA stores them, and into which TMA loads their residuals (custom_ops/sm90/epilogue.h and
tensor_map.h have the same formulas)."""

from __future__ import annotations

import itertools

from onnxbolt.dtypes import DType
from onnxbolt.epilogues import ADD_VALUES, EPILOGUES, STORE
from onnxbolt.families.base import Typed

SWIZZLED_ROWS = (128, 64, 32)  # bytes; the widest that divides a tile's row
BARRIER = 8  # bytes of an mbarrier
MOST_BUFFERS = 4  # units that a warpgroup stages at a time
_VALUES = frozenset(ADD_VALUES.values())
_MAX_STORED_ROW = 256  # bytes of a row of a unit that is not swizzled


def staged(kernel: Typed) -> DType:
    """Element type of a staged tile: that of y, or that of x if y is written in both layouts."""
    return kernel.dtype if STORE in kernel.chain else kernel.out


def loads_residual(kernel: Typed) -> bool:
    """True if TMA loads a residual into the memory that stages the output."""
    return (
        any(EPILOGUES[step].operand == "tensor" for step in kernel.chain)
        and not any(step in _VALUES for step in kernel.chain)  # which threads read
        and kernel.dtype.bytes == staged(kernel).bytes
    )


def buffers(columns: int, out: DType, residual: bool, blocks: int = 1) -> int:
    """Units that a warpgroup stages at a time."""
    several = blocks * columns > stored_columns(columns, out, residual)
    return MOST_BUFFERS if residual and several else 2


def staging_bytes(columns: int, out: DType, residual: bool, blocks: int = 1) -> int:
    """Bytes in which a warpgroup stages the output of `blocks` of 64 rows: two units, or four if a
    residual has several units, which are loaded ahead (as EpilogueShape in
    custom_ops/sm90/epilogue.h)."""
    unit = 64 * stored_columns(columns, out, residual) * out.bytes
    return buffers(columns, out, residual, blocks) * unit


def stored_columns(columns: int, out: DType, residual: bool) -> int:
    """Columns of a unit: those of a swizzled row or, if that row would be short, all columns of a
    tile or equal parts of them (custom_ops/sm90/tensor_map.h). Raises ValueError for columns that
    TMA cannot store."""
    row = columns * out.bytes
    if out.bytes != 2 or row % (128 if residual else 64) == 0 or row in SWIZZLED_ROWS:
        return next((width // out.bytes for width in SWIZZLED_ROWS if row % width == 0), columns)
    if columns % 8:
        raise ValueError(f"{columns} columns cannot be stored by whole accesses of 16 bytes")
    parts = next(
        n
        for n in itertools.count(1)
        if columns % (8 * n) == 0 and row // n <= _MAX_STORED_ROW and row // n % 64
    )
    return columns // parts
