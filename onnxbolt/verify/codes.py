"""Codes of values and values of codes, with bounds of their errors (docs/decisions/quantized.md).

An error of a code is a difference of codes as numbers. It is 0 where the bound of the value's error
does not reach the middle between two codes.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
from onnx import ModelProto

from onnxbolt.graph import weights
from onnxbolt.graph.edit import SELECTING
from onnxbolt.verify.bounds import Bounded, Error, bounded, is_set
from onnxbolt.verify.limits import unit

_F32 = np.dtype(np.float32)
# numbers in fp32 of which a quotient is made, each rounded by itself: its scale, that of the codes
# whose values are multiplied, and that of weights, or another factor
_SCALES = 3
INTEGERS = (np.dtype(np.int8), np.dtype(np.uint8))
_FLOATS = {  # the largest number of each type
    np.dtype(ml_dtypes.float8_e4m3fn): 448.0,
    np.dtype(ml_dtypes.float8_e4m3fnuz): 240.0,
    np.dtype(ml_dtypes.float8_e5m2): 57344.0,
    np.dtype(ml_dtypes.float8_e5m2fnuz): 57344.0,
}


def is_code(dtype: np.dtype) -> bool:
    """True for the types of codes: integers and floats of 8 bits."""
    return is_float_code(dtype) or dtype in INTEGERS


def is_float_code(dtype: np.dtype) -> bool:
    """True for floats of 8 bits."""
    return dtype in _FLOATS


def zero_points(model: ModelProto) -> dict[str, float]:
    """The zero points of those outputs that are codes, which QuantizeLinear has made and others
    have moved at most."""
    makers = {name: node for node in model.graph.node for name in node.output}
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    found = dict[str, float]()
    for output in model.graph.output:
        node = makers.get(output.name)
        while node is not None and not node.domain and node.op_type in SELECTING | {"MaxPool"}:
            node = makers.get(node.input[0])
        if node is None or node.domain or node.op_type != "QuantizeLinear":
            continue
        zero = node.input[2] if len(node.input) > 2 else ""
        if not zero:
            found[output.name] = 0.0
        elif zero in constants and (values := weights.values(constants[zero])).size == 1:
            found[output.name] = float(values.reshape(()))
    return found


def nearest(steps: np.ndarray, zero: np.ndarray | float, dtype: np.dtype) -> np.ndarray:
    """The codes of type `dtype` that are nearest to `steps`, in float64: those of even numbers in
    the middle of two, the last ones beyond the range."""
    if dtype in INTEGERS:
        limits = np.iinfo(dtype)
        return np.clip(np.rint(steps) + zero, limits.min, limits.max)
    largest = _FLOATS[dtype]
    return np.clip(steps, -largest, largest).astype(dtype).astype(np.float64)


def quantized(
    x: Bounded, scale: np.ndarray, zero: np.ndarray, dtype: np.dtype, rounding: float
) -> Bounded:
    """The codes of values; `rounding` is the relative error of a value's division by its scale.

    What errors of operands alone change is counted as theirs. So is what roundings of scales
    change, which are operands: those with a simple ratio, such as 1/500, make many values that lie
    in the middle of two codes. NaN has no integer, so that any is right.
    """
    with np.errstate(all="ignore"):
        steps = x.value / scale
        sizes = np.where(np.isfinite(steps), np.abs(steps), 0.0)
        code = nearest(steps, zero, dtype)
        ours, theirs = (x.absolute(error) / np.abs(scale) for error in x.errors)
        ours = ours + rounding * sizes
        tied = _distance(steps, code, _SCALES * unit(_F32) * sizes, zero, dtype) > 0
        own = _distance(steps, code, ours, zero, dtype)
        both = _distance(steps, code, ours + theirs, zero, dtype) if is_set(x.operands) else own
        arithmetic = np.where(tied, 0.0, own)
    if dtype in INTEGERS and (nan := np.isnan(code)).any():
        code, arithmetic = np.where(nan, zero, code), np.where(nan, np.inf, arithmetic)
    operands: Error = np.where(tied, both, np.maximum(both - own, 0.0))
    if not np.any(operands):
        operands = 0.0
    return Bounded(code.astype(dtype), dtype, arithmetic, operands)


def _distance(
    steps: np.ndarray, code: np.ndarray, error: np.ndarray, zero: np.ndarray, dtype: np.dtype
) -> np.ndarray:
    """How far codes may lie from `code` where `steps` have an error."""
    ends = (nearest(steps + sign * error, zero, dtype) for sign in (-1.0, 1.0))
    first, second = (np.abs(end - code) for end in ends)
    found: np.ndarray = np.nan_to_num(np.maximum(first, second), nan=0.0)
    return found


def dequantized(x: Bounded, scale: Bounded, zero: np.ndarray | float, rounding: float) -> Bounded:
    """The values of codes, in the type of their scale; `rounding` is the relative error of a
    product."""
    steps = x.value.astype(np.float64) - zero
    arithmetic, operands = (
        np.broadcast_to(np.abs(scale.value) * error, steps.shape) if is_set(error) else 0.0
        for error in x.errors
    )
    return bounded(steps * scale.value, scale.dtype, arithmetic, operands, rounding)
