"""The table of element types against onnx's and numpy's own."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper

from onnxbolt.dtypes import DType

NUMPY = {DType.F16: np.float16, DType.BF16: ml_dtypes.bfloat16, DType.F32: np.float32}


@pytest.mark.parametrize("dtype", DType)
def test_each_type_is_onnxs_and_numpys(dtype: DType) -> None:
    assert dtype.numpy == np.dtype(NUMPY[dtype])
    assert dtype.onnx == helper.np_dtype_to_tensor_dtype(dtype.numpy)
    assert dtype.bytes == dtype.numpy.itemsize
    assert DType.of(NUMPY[dtype]) is DType.of(dtype.numpy) is dtype


def test_other_types_have_none() -> None:
    assert DType.of(np.int64) is None
    assert DType.of(helper.tensor_dtype_to_np_dtype(TensorProto.DOUBLE)) is None
