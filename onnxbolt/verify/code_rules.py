"""Rules of the operators that make codes of values, values of codes, and codes of codes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from onnxbolt.verify.bounds import Bounded, Error, bounded, is_float, is_set
from onnxbolt.verify.codes import dequantized, is_code, is_float_code, nearest, quantized
from onnxbolt.verify.limits import Arithmetic

Attributes = Mapping[str, Any]


def has_errors(dtype: np.dtype) -> bool:
    """True for the types of values and codes."""
    return is_float(dtype) or is_code(dtype)


def as_numbers(values: np.ndarray) -> np.ndarray:
    """Codes of fp8 in a type that ONNX Runtime moves; others as they are."""
    return values.astype(np.float32) if is_float_code(values.dtype) else values


def moved_by(x: Bounded, change: np.ndarray) -> np.ndarray:
    """Values or codes with an error; codes stay in their range."""
    moved = x.value + change
    return moved if is_float(x.dtype) else nearest(moved, 0.0, x.dtype).astype(x.dtype)


def cast(x: Bounded, target: np.dtype, attributes: Attributes) -> Bounded | None:
    """Cast from or to a type that does not round; None for values in any type but fp8."""
    if not is_float(x.dtype):
        return _cast_integers(x, target)
    if is_float_code(target) and attributes.get("saturate", 1):
        return quantized(x, np.ones(()), np.zeros(()), target, 0.0)
    return None


def _cast_integers(x: Bounded, target: np.dtype) -> Bounded:
    """Integers or codes as numbers or codes of another type. Errors stay, since they are distances
    of numbers; of a type that is compared for equality, any value is right where they are set."""
    value = x.value.astype(target)
    errors: Sequence[Error] = x.errors
    if not has_errors(target):
        errors = [np.where(np.asarray(e) > 0, np.inf, 0.0) if is_set(e) else e for e in x.errors]
    return Bounded(value.astype(np.float64) if is_float(target) else value, target, *errors)


def dequantize_linear(
    given: Sequence[Bounded], attributes: Attributes, arithmetic: Arithmetic
) -> Bounded | None:
    """DequantizeLinear; None for blocks."""
    x, numbers = given[0], _numbers(given, attributes)
    if numbers is None or is_float(x.dtype):
        return None
    scale, zero = numbers
    rounding = arithmetic.rounding(scale.dtype)
    wide = x.dtype.itemsize > 2  # int32, which fp32 rounds
    return dequantized(x, scale, zero, rounding * (2 if wide else 1))


def quantize_linear(
    given: Sequence[Bounded], attributes: Attributes, arithmetic: Arithmetic
) -> Bounded | None:
    """QuantizeLinear; None for blocks, types other than codes, and codes that do not saturate."""
    x, numbers = given[0], _numbers(given, attributes)
    if numbers is None or not is_float(x.dtype) or not attributes.get("saturate", 1):
        return None
    scale, zero = numbers
    if len(given) > 2:
        dtype = given[2].dtype
    else:
        kind = int(attributes.get("output_dtype", 0)) or onnx.TensorProto.UINT8
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind)
    if not is_code(dtype):
        return None
    x = _approximated(x, arithmetic)
    return quantized(x, scale.value, zero, dtype, arithmetic.rounding(x.dtype))


def _approximated(x: Bounded, arithmetic: Arithmetic) -> Bounded:
    """Values within an epilogue, with the error of an approximate activation in front."""
    absolute, relative = arithmetic.approximation
    if not absolute:
        return x
    local = absolute + relative * np.abs(x.value)
    return bounded(x.value, x.dtype, x.arithmetic, x.operands, 0.0, local)


def _numbers(given: Sequence[Bounded], attributes: Attributes) -> tuple[Bounded, np.ndarray] | None:
    """The scale and the zero point, along the axes of the input; None for blocks. They are the
    model's own numbers, which no stage rounds."""
    x, scale, *zeros = given
    if attributes.get("block_size", 0) or scale.value.ndim > 1 or not is_float(scale.dtype):
        return None
    zero = zeros[0].value.astype(np.float64) if zeros else np.zeros(())
    axis, rank = int(attributes.get("axis", 1)), x.value.ndim

    def along(numbers: np.ndarray) -> np.ndarray:
        if numbers.size == 1:
            return numbers.reshape(())
        return numbers.reshape([-1 if place == axis % rank else 1 for place in range(rank)])

    return Bounded(along(scale.value), scale.dtype), along(zero)
