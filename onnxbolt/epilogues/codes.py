"""Steps between codes and values (docs/decisions/quantized.md): the scale of a sum of products of
codes, a residual of codes, a rounding to codes and back, and the codes of the result. The ops of
products of codes recognize them (onnxbolt/ops/quantized/), so they have no patterns here.

Their parameters are a scale and a zero point, which bodies read from the node, so that equal layers
share one op type.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from onnxbolt.dtypes import CODES, DType
from onnxbolt.epilogues.step import Array, Emit, EpilogueStep, InOrt, Parameter

_SCALE = Parameter("scale", default=1.0, typical=0.05)
_SCALING = (_SCALE, Parameter("zero_point", default=0.0, typical=0.0))


def quantized(x: Array, scale: float, zero: float, dtype: DType) -> Array:
    """The codes of values, in the precision of the values."""
    steps = x / scale
    if dtype is DType.E4M3:
        largest = 448.0
        return np.clip(steps, -largest, largest).astype(dtype.numpy).astype(x.dtype)
    limits = np.iinfo(dtype.numpy)
    return np.clip(np.rint(steps) + zero, limits.min, limits.max)


def _requantized(x: Array, _: object, scale: float, zero: float, dtype: DType) -> Array:
    return (quantized(x, scale, zero, dtype) - zero) * scale


def _numbers(emit: Emit, dtype: DType) -> list[str]:
    """The scale and the zero point that the node gives."""
    return [emit("Given", 0), emit("Cast", [emit("Given", 1)], to=dtype.onnx)]


def _quantize(emit: Emit, opset: int, x: str, _: str, params: object, dtype: DType) -> str:
    return emit("QuantizeLinear", [_apart(emit, x, dtype), *_numbers(emit, dtype)])


def _requantize(emit: Emit, opset: int, x: str, _: str, params: object, dtype: DType) -> str:
    numbers = _numbers(emit, dtype)
    codes = emit("QuantizeLinear", [_apart(emit, x, dtype), *numbers])
    return emit("DequantizeLinear", [codes, *numbers])


def _apart(emit: Emit, x: str, dtype: DType) -> str:
    """x behind an operator that changes nothing, where codes are fp8: ONNX Runtime drops a Relu
    right in front of these, as if they had no negative ones."""
    if dtype is not DType.E4M3:
        return x
    return emit("Max", [x, emit("Const", float(np.finfo(np.float32).min))])


def _dequantize(emit: Emit, opset: int, x: str, _: str, params: object, dtype: DType) -> str:
    return emit("DequantizeLinear", [x, *_numbers(emit, dtype)])


def _combined(op: str) -> Callable[..., str]:
    """The body of an operator of a value and that of a code."""

    def body(emit: Emit, opset: int, x: str, codes: str, params: object, dtype: DType) -> str:
        return emit(op, [x, emit("DequantizeLinear", [codes, *_numbers(emit, dtype)])])

    return body


# The first step behind a product of codes, whose sum it multiplies by both scales: that of x, and
# those of the weight for each channel. Bodies multiply values, so that nothing is left to do.
DEQUANTIZE = EpilogueStep(
    "Dequantize",
    body=lambda emit, opset, x, operand, params: emit("Identity", [x]),
    reference=lambda x, scales, scale: x * (scale * scales),
    functor="Dequantize",
    cost=2,
    operand="vector",
    params=(_SCALE,),
)

DECODE, ADD_CODES, MUL_CODES, REQUANTIZE, QUANTIZE = (
    {
        dtype: EpilogueStep(
            f"{name}{dtype.name}",
            body=functools.partial(body, dtype=dtype),
            reference=reference(dtype),
            functor=f"{name}{dtype.name}",
            cost=cost,
            operand=operand,
            params=_SCALING,
            given=True,
            in_ort=InOrt(kernels=kernels),
            cast=dtype if name == "Quantize" else None,
        )
        for dtype in CODES
    }
    for name, body, reference, cost, operand, kernels in (
        (
            "Decode",  # the first step where no product is in front: x are codes
            _dequantize,
            lambda dtype: lambda x, _, scale, zero: (x - zero) * scale,
            2,
            "",
            1,
        ),
        (
            "AddCodes",
            _combined("Add"),
            lambda dtype: lambda x, codes, scale, zero: x + (codes - zero) * scale,
            3,
            "tensor",
            2,
        ),
        (
            "MulCodes",
            _combined("Mul"),
            lambda dtype: lambda x, codes, scale, zero: x * ((codes - zero) * scale),
            3,
            "tensor",
            2,
        ),
        (
            "Requantize",
            _requantize,
            lambda dtype: functools.partial(_requantized, dtype=dtype),
            6,
            "",
            2,
        ),
        (
            "Quantize",
            _quantize,
            lambda dtype: lambda x, _, scale, zero: quantized(x, scale, zero, dtype),
            4,
            "",
            1,
        ),
    )
)
_F32 = DType.F32.onnx
VALUES = (DType.F32, DType.F16, DType.BF16)


def _add_values(emit: Emit, opset: int, x: str, values: str, params: object, dtype: DType) -> str:
    return emit("Add", [x, values if dtype is DType.F32 else emit("Cast", [values], to=_F32)])


# A residual of values, which a product of codes adds in its only tensor operand; and its result so
# far as values, beside the codes that the last step makes of it.
ADD_VALUES = {
    dtype: EpilogueStep(
        f"Add{dtype.name}",
        body=functools.partial(_add_values, dtype=dtype),
        reference=lambda x, values: x + values,
        functor=f"Add{dtype.name}",
        cost=1,
        operand="tensor",
        values=dtype,
    )
    for dtype in VALUES
}
STORE_VALUES = {
    dtype: EpilogueStep(
        f"Store{dtype.name}",
        body=lambda emit, opset, x, operand, params: emit("Identity", [x]),
        reference=lambda x, _: x,
        functor=f"Store{dtype.name}",
        cost=1,
        stores=True,
        values=dtype,
    )
    for dtype in VALUES
}
STEPS = (
    DEQUANTIZE,
    *ADD_VALUES.values(),
    *STORE_VALUES.values(),
    *(
        step
        for steps in (DECODE, ADD_CODES, MUL_CODES, REQUANTIZE, QUANTIZE)
        for step in steps.values()
    ),
)
