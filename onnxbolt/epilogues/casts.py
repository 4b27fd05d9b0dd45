"""Conversions of the result, always the last step: the kernel's output element follows from it."""

from __future__ import annotations

from onnxbolt.dtypes import DType
from onnxbolt.epilogues.patterns import Conversion
from onnxbolt.epilogues.step import EpilogueStep


def _cast(name: str, dtype: DType, *patterns: Conversion) -> EpilogueStep:
    return EpilogueStep(
        name,
        body=lambda emit, opset, x, operand, params: emit("Cast", [x], to=dtype.onnx),
        reference=lambda x, _: x,
        cost=0,
        patterns=patterns,
        cast=dtype,
    )


CAST_F32 = _cast("CastF32", DType.F32, Conversion(to=DType.F32))
# kernels of 16-bit types store that type or fp32, so no ONNX node is recognized as one of these
# steps
CAST_F16 = _cast("CastF16", DType.F16)
CAST_BF16 = _cast("CastBF16", DType.BF16)
