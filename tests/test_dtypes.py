"""The table of element types against onnx's and numpy's own."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper

from onnxbolt.dtypes import DType

NUMPY = {
    DType.F16: np.float16,
    DType.BF16: ml_dtypes.bfloat16,
    DType.F32: np.float32,
    DType.I8: np.int8,
    DType.U8: np.uint8,
    DType.E4M3: ml_dtypes.float8_e4m3fn,
}


@pytest.mark.parametrize("dtype", DType)
def test_each_type_is_onnxs_and_numpys(dtype: DType) -> None:
    assert dtype.numpy == np.dtype(NUMPY[dtype])
    assert dtype.onnx == helper.np_dtype_to_tensor_dtype(dtype.numpy)
    assert dtype.bytes == dtype.numpy.itemsize
    found, others = DType.of, DType.of_codes
    if dtype.is_code:
        found, others = others, found
    assert found(NUMPY[dtype]) is found(dtype.numpy) is dtype
    assert others(dtype.numpy) is None


def test_weights_of_integers_are_signed() -> None:
    assert [dtype.weight for dtype in DType if dtype.is_code] == [DType.I8, DType.I8, DType.E4M3]
    assert all(dtype.weight is dtype for dtype in DType if not dtype.is_code)


def test_other_types_have_none() -> None:
    assert DType.of(np.int64) is None
    assert DType.of(helper.tensor_dtype_to_np_dtype(TensorProto.DOUBLE)) is None
