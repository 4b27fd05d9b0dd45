"""The numbers of QuantizeLinear and DequantizeLinear, and nodes with the same numbers elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.graph.edit import Node, constant_values, insert, optional, stand_alone
from onnxbolt.graph.element_types import numpy_dtype
from onnxbolt.graph.names import fresh

QUANTIZE, DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
INTEGERS = (np.dtype(np.int8), np.dtype(np.uint8))
EIGHT_BITS = (*INTEGERS, np.dtype(ml_dtypes.float8_e4m3fn))
# operators whose input 1 is a weight
PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
_LARGEST_E4M3 = 448.0
_LAST_CODE = 255  # the largest distance of two codes of a byte


@dataclass(frozen=True, eq=False)
class Scaling:
    """value = (code - zero) * scale, and code = saturate(round(value / scale) + zero).

    `code` is the type of codes, that of values is the scales'. `scale` and `zero` are scalars, or
    vectors along `axis`, which is None for scalars.
    """

    code: np.dtype
    scale: np.ndarray
    zero: np.ndarray
    axis: int | None = None

    def same(self, other: Scaling) -> bool:
        """True if both have the same types, numbers and axis."""
        mine, theirs = (
            (s.code, s.axis, s.scale.dtype, s.scale.tobytes(), s.zero.tobytes())
            for s in (self, other)
        )
        return mine == theirs

    def along(self, axis: int) -> Scaling:
        """The same numbers along another axis."""
        return Scaling(self.code, self.scale, self.zero, axis)

    @property
    def increases(self) -> bool:
        """True if a larger code is never a smaller value."""
        return bool(np.all(self.scale > 0))

    @property
    def inverts(self) -> bool:
        """True if all scales are positive, and fp32 has their reciprocals with all bits."""
        tiny, scale = 2.0**-126, self.scale.astype(np.float64)
        return bool(np.all((scale >= tiny) & (scale <= 1 / tiny)))

    @property
    def returns(self) -> bool:
        """True if values of codes have the same codes again. Two roundings to the scale's type,
        each to within 2^-11 of at most 255, move no value by half a step, as long as no product
        underflows or overflows."""
        if self.scale.dtype not in (np.float16, np.float32) or self.code not in EIGHT_BITS:
            return False
        limits, scale = np.finfo(self.scale.dtype), self.scale.astype(np.float64)
        if self.code not in INTEGERS:
            # E4M3FN: codes from 2^-9 to 448
            fits = scale.dtype == np.float64 and self.scale.dtype == np.float32
            return bool(
                fits and np.all((scale * 2.0**-9 >= limits.tiny) & (scale * 448 <= limits.max))
            )
        return bool(np.all((scale >= limits.tiny) & (scale * _LAST_CODE <= limits.max)))

    def quantized(self, values: np.ndarray) -> np.ndarray:
        """The codes of finite values, as QuantizeLinear computes them: in fp32, whatever the type
        of values and scales."""
        scale, zero = (self._spread(numbers, values.ndim) for numbers in (self.scale, self.zero))
        with np.errstate(over="ignore"):
            steps = values.astype(np.float32) / scale.astype(np.float32)
        if self.code not in INTEGERS:
            return np.asarray(np.clip(steps, -_LARGEST_E4M3, _LARGEST_E4M3)).astype(self.code)
        limits = np.iinfo(self.code)
        rounded = np.rint(steps).astype(np.float64)
        # numpy makes numbers of arrays without axes
        return np.asarray(np.clip(rounded + zero, limits.min, limits.max)).astype(self.code)

    def dequantized(self, codes: np.ndarray) -> np.ndarray:
        """The values of codes, as DequantizeLinear computes them for integers and fp32 scales."""
        scale, zero = (self._spread(numbers, codes.ndim) for numbers in (self.scale, self.zero))
        steps = (codes.astype(np.int64) - zero.astype(np.int64)).astype(np.float32)
        return np.asarray(steps * scale)

    def _spread(self, numbers: np.ndarray, rank: int) -> np.ndarray:
        if self.axis is None:
            return numbers
        return numbers.reshape([-1 if axis == self.axis else 1 for axis in range(rank)])


def is_quantize(node: gs.Node | None) -> bool:
    """True for ONNX's QuantizeLinear."""
    return node is not None and node.op == QUANTIZE and not node.domain


def is_dequantize(node: gs.Node | None) -> bool:
    """True for ONNX's DequantizeLinear."""
    return node is not None and node.op == DEQUANTIZE and not node.domain


def scaling_of(node: gs.Node) -> Scaling | None:
    """The numbers of a QuantizeLinear or DequantizeLinear; None if they are computed at run time,
    or given for blocks, or if codes beyond the range do not saturate."""
    if node.attrs.get("block_size", 0) or not node.attrs.get("saturate", 1):
        return None
    given = optional(node.inputs, 2)
    codes = node.inputs[0] if node.op == DEQUANTIZE else node.outputs[0]
    code = codes.dtype
    if code is None and given is not None:
        code = given.dtype
    if code is None and node.op == QUANTIZE:
        code = numpy_dtype(node.attrs.get("output_dtype", 0)) or np.dtype(np.uint8)
    if not isinstance(code, np.dtype) or node.attrs.get("precision", 0):
        return None
    rank = len(node.inputs[0].shape) if node.inputs[0].shape is not None else None
    return numbers_of(node.inputs[1], given, code, int(node.attrs.get("axis", 1)), rank)


def numbers_of(
    scale: gs.Tensor, zero: gs.Tensor | None, code: np.dtype, axis: int, rank: int | None
) -> Scaling | None:
    """The scaling with these tensors; None if they are no constants, or if numbers along an axis
    meet a tensor of unknown rank."""
    scales = constant_values(scale)
    zeros = np.zeros((), code) if zero is None else constant_values(zero)
    if scales is None or zeros is None or zeros.dtype != code:
        return None
    if scales.size == 1 and zeros.size == 1:
        return Scaling(code, scales.reshape(()), zeros.reshape(()))
    if rank is None or scales.ndim > 1 or zeros.ndim > 1 or not -rank <= axis < rank:
        return None
    size = max(scales.size, zeros.size)
    if {scales.size, zeros.size} - {1, size}:
        return None
    scales, zeros = (np.broadcast_to(each.reshape(-1), (size,)) for each in (scales, zeros))
    return Scaling(code, scales, zeros, axis % rank)


def repeated(
    graph: gs.Graph,
    like: gs.Node,
    x: gs.Tensor,
    y: gs.Variable,
    at: gs.Node | None,
    axis: int | None = None,
) -> Node:
    """A QuantizeLinear or DequantizeLinear of x to y with the numbers of `like`, along `axis`
    where that is given, placed before `at` (else last)."""
    attributes = like.attrs if axis is None else {**like.attrs, "axis": axis}
    return insert(graph, like.op, [x, *like.inputs[1:]], [y], [like], attributes, at=at)


def new_tensor(
    graph: gs.Graph, base: str, dtype: np.dtype, shape: Sequence[int | str | None] | None
) -> gs.Variable:
    """A variable that holds no tensor of the source, since it has codes in place of values, or
    values that the source has only as codes."""
    made = gs.Variable(fresh(graph, base), dtype, shape)
    stand_alone(made)
    return made
