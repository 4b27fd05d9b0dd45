"""Constants in 16 bits: each is converted once, and checked for values that the conversion would
lose."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.dtypes import DType
from onnxbolt.graph.edit import Derived, derived

LARGEST = 65504.0  # fp16
MAX_FLUSHED = 0.5  # share of the nonzero values that become zero


class Constants:
    """The 16-bit values of a graph's fp32 constants, by name."""

    def __init__(self, low: DType) -> None:
        self.low = low
        self._converted: dict[str, np.ndarray | Derived] = {}
        self._hazards: dict[str, str] = {}

    def converted(self, constant: gs.Constant) -> np.ndarray | Derived:
        """The values in the 16-bit type."""
        if constant.name not in self._converted:
            low = self.low
            self._converted[constant.name] = derived(
                constant, lambda values: rounded(values, low), low.numpy, constant.shape
            )
        return self._converted[constant.name]

    def hazard(self, constant: gs.Constant) -> str:
        """The reason why the constant must stay fp32; empty if there is none. Only fp16 has
        hazards, because bf16 has the range of fp32."""
        if self.low is not DType.F16 or 0 in constant.shape:
            return ""
        if constant.name not in self._hazards:
            values = constant.values
            self._hazards[constant.name] = _hazard(values, rounded(values, self.low))
        return self._hazards[constant.name]

    def spreads(self, constant: gs.Constant) -> bool:
        """True if results computed from a hazardous constant are hazardous, too. That holds for
        large values and for a scalar that guards against division by zero, but not for small
        weights among others."""
        return math.prod(constant.shape) == 1 or _largest_finite(constant.values) > LARGEST


def rounded(values: np.ndarray, dtype: DType) -> np.ndarray:
    """The values rounded to the nearest (even) of a 16-bit type. Finite values stay finite, because
    masks multiply fp32's lowest value by zero."""
    with np.errstate(over="ignore"):
        low = values.astype(dtype.numpy)
    beyond = np.isinf(low) & np.isfinite(values)
    if beyond.any():
        low = np.where(beyond, np.copysign(ml_dtypes.finfo(dtype.numpy).max, low), low)  # type: ignore[no-untyped-call]
    return low


def _hazard(values: np.ndarray, low: np.ndarray) -> str:
    largest = _largest_finite(values)
    if largest > LARGEST:
        return f"holds {largest:.3g}, beyond fp16's {LARGEST:g}"
    nonzero = int(np.count_nonzero(values))
    flushed = nonzero - int(np.count_nonzero(low))
    if flushed > MAX_FLUSHED * nonzero:
        return f"{flushed} of its {nonzero} nonzero values would become zero in fp16"
    return ""


def _largest_finite(values: np.ndarray) -> float:
    largest = max(float(values.max()), -float(values.min()))
    if np.isfinite(largest):
        return largest
    finite = values[np.isfinite(values)]
    return float(np.abs(finite).max()) if finite.size else 0.0
