"""Element types of ONNX and of numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx


def numpy_dtype(onnx_type: int) -> np.dtype | int | None:
    """The numpy type of a TensorProto.DataType (of ml_dtypes for bfloat16 and types of a byte or
    less); the number itself if numpy has no such type."""
    if onnx_type == onnx.TensorProto.UNDEFINED:
        return None
    try:
        return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(onnx_type))
    except KeyError:
        return onnx_type


def onnx_dtype(dtype: Any) -> int:
    """The inverse of `numpy_dtype`; raises ValueError for a type that ONNX lacks."""
    if isinstance(dtype, int):
        return dtype
    return int(onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
