"""The table of element types that kernels support: their ONNX, numpy, CUTLASS and command-line
names.

numpy is imported when a type is first asked for its numpy type: architectures hold types, and
`--help` names architectures.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class _Row:
    onnx: int  # TensorProto.DataType
    numpy: str  # name of the dtype, as numpy and ml_dtypes have it
    storage: str  # C++ element as stored
    multiply: str  # C++ element as the tensor core multiplies it
    bytes: int


class DType(enum.Enum):
    """Element type of a kernel's tensors; the value is the suffix in op type names.

    What follows from it is cached: planning one model asks half a million times.
    """

    F16 = "f16"
    BF16 = "bf16"
    F32 = "f32"  # multiplied as TF32, as ONNX Runtime's CUDA provider does by default
    # codes, whose values are scaled (docs/decisions/quantized.md)
    I8 = "i8"
    U8 = "u8"
    E4M3 = "e4m3"  # E4M3FN: finite values and NaN alone

    __hash__ = object.__hash__  # members are unique; that of Enum is in Python, and slow

    @cached_property
    def onnx(self) -> int:
        return _TABLE[self].onnx

    @cached_property
    def numpy(self) -> np.dtype:
        import ml_dtypes  # noqa: F401  adds bfloat16 to numpy
        import numpy as np

        return np.dtype(_TABLE[self].numpy)

    @cached_property
    def storage(self) -> str:
        return _TABLE[self].storage

    @cached_property
    def multiply(self) -> str:
        return _TABLE[self].multiply

    @cached_property
    def bytes(self) -> int:
        return _TABLE[self].bytes

    @cached_property
    def is_code(self) -> bool:
        """True for a type of codes."""
        return self in _WEIGHTS

    @cached_property
    def weight(self) -> DType:
        """The type of the weights by which kernels multiply this one: all weights of integers are
        signed."""
        return _WEIGHTS.get(self, self)

    @cached_property
    def alignment(self) -> int:
        """Elements in one 16-byte access."""
        return 16 // self.bytes

    @classmethod
    def of(cls, numpy_dtype: object) -> DType | None:
        """The type of values stored as `numpy_dtype`, None if kernels have none."""
        return next((one for one in cls if not one.is_code and one.numpy == numpy_dtype), None)

    @classmethod
    def stored(cls, numpy_dtype: object) -> DType | None:
        """The type of values or codes stored as `numpy_dtype`, None if kernels have none."""
        return cls.of(numpy_dtype) or cls.of_codes(numpy_dtype)

    @classmethod
    def of_codes(cls, numpy_dtype: object) -> DType | None:
        """The type of codes stored as `numpy_dtype`, None if kernels have none."""
        return next((one for one in cls if one.is_code and one.numpy == numpy_dtype), None)


class IndexType(enum.Enum):
    """Element type of indices; the value is the word in op type names."""

    I32 = "i32"
    I64 = "i64"

    __hash__ = object.__hash__  # as DType's

    @property
    def onnx(self) -> int:
        """TensorProto.DataType."""
        return {IndexType.I32: 6, IndexType.I64: 7}[self]

    @classmethod
    def of(cls, numpy_dtype: object) -> IndexType | None:
        """The type stored as `numpy_dtype`, None for one that indices do not have."""
        names = {cls.I32: "int32", cls.I64: "int64"}
        return next((member for member in cls if numpy_dtype == names[member]), None)


_TABLE = {
    DType.F16: _Row(10, "float16", "cutlass::half_t", "cutlass::half_t", 2),
    DType.BF16: _Row(16, "bfloat16", "cutlass::bfloat16_t", "cutlass::bfloat16_t", 2),
    DType.F32: _Row(1, "float32", "float", "cutlass::tfloat32_t", 4),
    DType.I8: _Row(3, "int8", "int8_t", "int8_t", 1),
    DType.U8: _Row(2, "uint8", "uint8_t", "uint8_t", 1),
    DType.E4M3: _Row(17, "float8_e4m3fn", "cutlass::float_e4m3_t", "cutlass::float_e4m3_t", 1),
}
_WEIGHTS = {DType.I8: DType.I8, DType.U8: DType.I8, DType.E4M3: DType.E4M3}
INTEGERS = (DType.I8, DType.U8)  # codes that ONNX's operators move, which do not take fp8
VALUES, CODES = (tuple(d for d in DType if d.is_code is code) for code in (False, True))
