"""The table of element types that kernels support: their ONNX, numpy, CUTLASS and command-line
names."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from functools import cached_property

import ml_dtypes
import numpy as np
from onnx import TensorProto


@dataclass(frozen=True)
class _Row:
    onnx: int  # TensorProto.DataType
    numpy: np.dtype
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

    __hash__ = object.__hash__  # members are unique; that of Enum is in Python, and slow

    @cached_property
    def onnx(self) -> int:
        return _TABLE[self].onnx

    @cached_property
    def numpy(self) -> np.dtype:
        return _TABLE[self].numpy

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
    def alignment(self) -> int:
        """Elements in one 16-byte access."""
        return 16 // self.bytes

    @classmethod
    def of(cls, numpy_dtype: object) -> DType | None:
        """The DType stored as `numpy_dtype`, None if kernels have none."""
        for member, row in _TABLE.items():
            if row.numpy == numpy_dtype:
                return member
        return None


_TABLE = {
    DType.F16: _Row(
        TensorProto.FLOAT16, np.dtype(np.float16), "cutlass::half_t", "cutlass::half_t", 2
    ),
    DType.BF16: _Row(
        TensorProto.BFLOAT16,
        np.dtype(ml_dtypes.bfloat16),
        "cutlass::bfloat16_t",
        "cutlass::bfloat16_t",
        2,
    ),
    DType.F32: _Row(TensorProto.FLOAT, np.dtype(np.float32), "float", "cutlass::tfloat32_t", 4),
}
