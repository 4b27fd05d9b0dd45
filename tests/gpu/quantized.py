"""The problems on which the GPU tests run kernels of products of codes: sums of integers are exact,
so that codes have to be those of float64, but where a value's rounding errors reach the middle
between two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from onnxbolt.codegen.render import Instance
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import (
    ADD_CODES,
    DEQUANTIZE,
    EPILOGUES,
    QUANTIZE,
    REQUANTIZE,
    values_of,
)
from onnxbolt.families import named
from onnxbolt.families.blocks.codes import CodesConfig, Offsets
from onnxbolt.families.quantized_depthwise import QuantizedDepthwiseConfig
from onnxbolt.integers import round_up
from onnxbolt.ops.quantized.pattern import classes
from onnxbolt.verify.products import convolution
from tests.gpu.cases import PARAMS, ConvShape
from tests.gpu.device import Epilogue, Library, QuantizedConv, QuantizedGemm, Tensor
from tests.gpu.device import Offsets as Table
from tests.gpu.operands import Problem, random_of
from tests.gpu.reference import convolve, output_extent, relative_error

UNIT = 16  # codes of an access
_ROUNDING = 2.0**-21  # an upper bound of the error of a step in fp32
# a sum of products of E4M3FN, in parts of the magnitudes of its terms (docs/accuracy.md)
_E4M3_SUM = 24 * 2.0**-13
# zero points: of x where it has one, of a residual, of the result
_ZEROS = {DType.U8: (131, 120, 113), DType.I8: (-9, 3, -7), DType.E4M3: (0, 0, 0)}
_CODES_OF = {
    step: dtype for steps in (ADD_CODES, REQUANTIZE, QUANTIZE) for dtype, step in steps.items()
}
# unit roundoffs of values beside codes
_UNITS = {DType.F16: 2.0**-11, DType.BF16: 2.0**-8, DType.F32: 2.0**-24}
# scales: of x; of a residual, a pair and the result
_X_SCALE, _SCALE = 0.03, 0.01


@dataclass(frozen=True)
class GemmShape:
    """n in accesses of the result; codes behind `k` stand for padding. `gap`: accesses between
    rows."""

    m: int
    n: int
    k: int
    gap: int = 0


GEMMS = (
    GemmShape(64, 1, 1),
    GemmShape(1, 4, 16),
    GemmShape(127, 6, 33, gap=1),
    GemmShape(300, 8, 400),
    GemmShape(517, 42, 256, gap=3),
    GemmShape(3, 34, 528),
    GemmShape(130, 4, 8192, gap=1),
)
CONVS = (
    ConvShape(3, 9, 11, 1, 6, 1, 1),
    ConvShape(2, 15, 17, 2, 4, 3, 3, (1, 1, 1, 1)),
    ConvShape(2, 15, 17, 2, 4, 3, 3),
    ConvShape(1, 14, 13, 3, 2, 3, 3, (0, 0, 1, 1), strides=(2, 2), gap=1),
    ConvShape(1, 20, 13, 5, 2, 3, 3, (2, 2, 2, 2), dilations=(2, 2), gap=2),
    ConvShape(2, 8, 31, 2, 2, 1, 7, (0, 3, 0, 3)),
    ConvShape(1, 1, 33, 1, 2, 1, 5, (0, 4, 0, 1), strides=(1, 3)),
    ConvShape(2, 2, 3, 9, 6, 3, 5, (1, 2, 1, 2)),  # every pixel is a class
    ConvShape(2, 12, 10, 9, 18, 2, 3, strides=(1, 2), dilations=(3, 1)),
    ConvShape(1, 1, 1, 4, 4, 1, 1),
    ConvShape(1, 9, 9, 8, 4, 3, 3, (1, 1, 1, 1), gap=1),
)


DEPTHWISES = (
    ConvShape(2, 15, 17, 2, 2, 3, 3, (1, 1, 1, 1)),
    ConvShape(2, 12, 10, 1, 1, 3, 3),
    ConvShape(1, 2, 3, 1, 1, 3, 3, (1, 1, 1, 1)),  # every pixel meets other taps
    ConvShape(2, 15, 17, 3, 3, 3, 3, (1, 1, 1, 1), strides=(2, 2), gap=1),
    ConvShape(1, 14, 13, 1, 1, 5, 5, (2, 2, 2, 2)),
    ConvShape(1, 14, 13, 6, 6, 5, 5, (2, 2, 2, 2), strides=(2, 2)),
    ConvShape(1, 20, 13, 2, 2, 3, 3, (2, 2, 2, 2), dilations=(2, 2), gap=2),
    ConvShape(1, 9, 8, 2, 2, 3, 5, (1, 2, 1, 2)),
    ConvShape(1, 9, 8, 1, 1, 3, 3, (0, 1, 2, 0), strides=(1, 3)),
)


@dataclass
class Beside:
    """The values that a kernel writes beside codes, with the least and the largest right ones."""

    output: Tensor
    low: np.ndarray
    high: np.ndarray

    def wrong(self) -> int:
        """The number of values that are out of their bounds, or not written."""
        found = self.output.read().astype(np.float64)
        return int((~((found >= self.low) & (found <= self.high))).sum())


@dataclass
class Coded(Problem):
    """With the least and the largest code that a kernel may write in each place; values of other
    types have a limit of their whole (problems.limit)."""

    low: np.ndarray = field(default_factory=lambda: np.zeros(0))
    high: np.ndarray = field(default_factory=lambda: np.zeros(0))
    beside: Beside | None = None

    def wrong(self, answer: np.ndarray) -> int:
        """The number of codes that are out of their bounds."""
        found = answer.astype(np.float64)
        either = np.isnan(found) | np.isnan(self.low)
        outside = (found < self.low) | (found > self.high)
        return int(np.where(either, np.isnan(found) != np.isnan(self.low), outside).sum())

    def error(self, answer: np.ndarray) -> float:
        """The error of all values together. Codes of integers have bounds of a rounding each: where
        a value lies in the middle of two, the one that was found counts as expected. A pair whose
        scale is 1.7 times the result's makes many such values, 110.5 of 65."""
        assert self.expected is not None
        exact = np.issubdtype(answer.dtype, np.integer)
        expected = np.clip(answer, self.low, self.high) if exact else self.expected
        return relative_error(answer, expected)


def problems(library: Library, instance: Instance) -> list[Coded]:
    """Those that the kernel's offsets are for. Every other one is centred: zero points behind the
    sums are 0, for which kernels have other instructions."""
    if instance.config.family is named("quantized_gemm_sm90"):
        return [gemm(library, instance, shape, centred=i % 2 > 0) for i, shape in enumerate(GEMMS)]
    offsets = _config(instance).offsets
    suited = {
        Offsets.NONE: CONVS,
        Offsets.BY_COLUMN: [shape for shape in CONVS if not any(shape.pads)],
        Offsets.BY_PIXEL: [shape for shape in CONVS if any(shape.pads)],
    }
    return [
        conv(library, instance, shape, centred=i % 2 > 0) for i, shape in enumerate(suited[offsets])
    ]


def gemm(
    library: Library,
    instance: Instance,
    shape: GemmShape,
    scales: Sequence[float] = (),
    bias: np.ndarray | None = None,
    one_scale: bool = False,
    centred: bool = False,
) -> Coded:
    """A GEMM; `scales` replaces those of x and of the result, `bias` the random one. `one_scale`:
    the weights have that of their first channel."""
    rng, dtype = random_of(instance, shape), instance.dtype
    m, n, k = shape.m, columns_of(instance, shape.n), round_up(shape.k, UNIT)
    a = codes(rng, dtype, (m, k))
    b = codes(rng, dtype.weight, (n, k))
    b[:, shape.k :] = 0
    zero = _zero(instance)
    table = -zero * b.astype(np.int64).sum(axis=1)[None] if zero else None
    left, right = a.astype(np.float64) - zero, b.astype(np.float64)
    sums, magnitudes = left @ right.T, np.abs(left) @ np.abs(right).T
    operands = _Operands(
        library, instance, (m, n), shape.k, shape.gap, rng, scales, bias, one_scale, centred
    )
    rows = Tensor(library, a, shape.gap * UNIT), Tensor(library, b, shape.gap * UNIT)
    output = _output(library, instance, (m, n), shape.gap)
    arguments = QuantizedGemm.of(*rows, output, operands.arguments)
    kept = (*rows, operands, operands.offsets(arguments, table))
    return operands.problem(arguments, output, sums, magnitudes, kept)


def conv(library: Library, instance: Instance, shape: ConvShape, centred: bool = False) -> Coded:
    """A convolution."""
    rng, dtype = random_of(instance, shape), instance.dtype
    c, k, (p, q) = shape.c * UNIT, columns_of(instance, shape.k), output_extent(shape)
    x = codes(rng, dtype, (shape.n, shape.h, shape.w, c))
    weight = codes(rng, dtype.weight, (k, shape.r, shape.s, c))
    zero = _zero(instance)
    values = x.astype(np.float64) - zero
    sums = convolve(values, weight, shape)
    magnitudes = convolve(np.abs(values), np.abs(weight.astype(np.float64)), shape)
    depth = shape.r * shape.s * c
    operands = _Operands(
        library, instance, (shape.n, p, q, k), depth, shape.gap, rng, centred=centred
    )
    source, filters = Tensor(library, x, shape.gap * UNIT), Tensor(library, weight)
    output = _output(library, instance, (shape.n, p, q, k), shape.gap)
    arguments = QuantizedConv(
        *(shape.n, shape.h, shape.w, c, k, shape.r, shape.s, p, q),
        *(*shape.pads, *shape.strides, *shape.dilations, 1),
        *(source.pointer, filters.pointer, output.pointer, source.pitch, output.pitch),
        operands.arguments,
    )
    table = border_table(weight, shape, zero) if zero else None
    kept = (source, filters, operands, operands.offsets(arguments, table))
    return operands.problem(arguments, output, sums, magnitudes, kept)


def by_channel(library: Library, instance: Instance) -> list[Coded]:
    """Depthwise convolutions whose filter the kernel serves."""
    assert isinstance(instance.config, QuantizedDepthwiseConfig)
    return [
        depthwise(library, instance, shape, centred)
        for shape in DEPTHWISES
        for centred in (False, True)
        if _filter(shape) == instance.config.filter
    ]


def _filter(shape: ConvShape) -> tuple[int, int, int]:
    """As configurations have it: zeros for one that is not known when a kernel is compiled."""
    size, stride = shape.r, shape.strides[0]
    known = shape.r == shape.s and shape.strides == (stride, stride) and shape.dilations == (1, 1)
    return (size, size, stride) if known and size > 1 else (0, 0, 0)


def depthwise(
    library: Library, instance: Instance, shape: ConvShape, centred: bool = False
) -> Coded:
    """A convolution of each channel by itself."""
    rng, dtype = random_of(instance, shape), instance.dtype
    c, (p, q) = shape.c * UNIT, output_extent(shape)
    x = codes(rng, dtype, (shape.n, shape.h, shape.w, c))
    weight = codes(rng, dtype.weight, (c, shape.r, shape.s, 1))
    zero = _ZEROS[dtype][0]
    multiply = convolution(c, shape.strides, shape.pads, shape.dilations)

    def convolved(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        filters = weight.astype(np.float64).transpose(0, 3, 1, 2)
        return multiply(x.transpose(0, 3, 1, 2), filters).transpose(0, 2, 3, 1)

    values = x.astype(np.float64) - zero
    sums = convolved(values, weight)
    magnitudes = convolved(np.abs(values), np.abs(weight.astype(np.float64)))
    depth = shape.r * shape.s
    operands = _Operands(
        library, instance, (shape.n, p, q, c), depth, shape.gap, rng, centred=centred
    )
    source, filters = Tensor(library, x, shape.gap * UNIT), Tensor(library, weight)
    answer = np.zeros((shape.n, p, q, c), instance.out.numpy)
    output = Tensor(library, answer, shape.gap * UNIT, empty=True)
    arguments = QuantizedConv(
        *(shape.n, shape.h, shape.w, c, c, shape.r, shape.s, p, q),
        *(*shape.pads, *shape.strides, *shape.dilations, c),
        *(source.pointer, filters.pointer, output.pointer, source.pitch, output.pitch),
        operands.arguments,
    )
    arguments.offsets = Table(None, 1, zero)
    kept = (source, filters, operands)
    return operands.problem(arguments, output, sums, magnitudes, kept)


def border_table(weight: np.ndarray, shape: ConvShape, zero: int) -> np.ndarray:
    """[classes, k]: what sums begin with, one row where the image is not padded."""
    taps, sizes = (shape.r, shape.s), (shape.h, shape.w)
    inside = []
    for axis in (0, 1):
        pads = shape.pads[axis], shape.pads[2 + axis]
        stride, dilation = shape.strides[axis], shape.dilations[axis]
        firsts = classes(sizes[axis], taps[axis], stride, dilation, pads)
        places = np.array(firsts)[:, None] * stride - pads[0] + dilation * np.arange(taps[axis])
        inside.append(((places >= 0) & (places < sizes[axis])).astype(np.int64))
    of_taps = weight.astype(np.int64).sum(axis=3)
    rows, columns = inside if any(shape.pads) else (np.ones((1, n), np.int64) for n in taps)
    table: np.ndarray = np.einsum("hr,ws,krs->hwk", rows, columns, of_taps)
    return -zero * table.reshape(-1, len(weight))


def codes(rng: np.random.Generator, dtype: DType, shape: tuple[int, ...]) -> np.ndarray:
    """Codes of the whole range; of E4M3FN those of normal values."""
    if dtype is DType.E4M3:
        return rng.normal(0, 2, shape).astype(dtype.numpy)
    limits = np.iinfo(dtype.numpy)
    return rng.integers(limits.min, limits.max, shape, dtype.numpy, endpoint=True)


def columns_of(instance: Instance, accesses: int) -> int:
    """Columns of a result that has so many accesses of 16 bytes."""
    return accesses * _config(instance).access_out


class _Operands:
    """An epilogue's operands on the device and on the host."""

    def __init__(
        self,
        library: Library,
        instance: Instance,
        shape: tuple[int, ...],
        terms: int,
        gap: int,
        rng: np.random.Generator,
        scales: Sequence[float] = (),
        bias: np.ndarray | None = None,
        one_scale: bool = False,
        centred: bool = False,
    ) -> None:
        self.library, self.instance = library, instance
        kinds = [EPILOGUES[step].operand for step in instance.chain]
        # sums have deviations of about 74^2 sqrt(terms) for integers, 4 sqrt(terms) for others
        deviation = (4.0 if instance.dtype is DType.E4M3 else 74.0**2) * terms**0.5
        self.vectors = [rng.uniform(0.2, 1.0, shape[-1]) / (_X_SCALE * deviation)]
        if one_scale:
            self.vectors[0][:] = self.vectors[0][0]
        self.vectors += [rng.normal(0.2, 0.4, shape[-1]) for _ in range(kinds.count("vector") - 1)]
        if bias is not None:
            self.vectors[1] = bias
        self.vectors = [vector.astype(np.float32) for vector in self.vectors]
        values = values_of(instance.chain)
        reads = any(EPILOGUES[step].values and EPILOGUES[step].operand for step in instance.chain)
        self.tensors = [
            rng.normal(0, 1, shape).astype(values.numpy)
            if values is not None and reads
            else codes(rng, instance.dtype, shape)
            for _ in range(kinds.count("tensor"))
        ]
        stores = any(EPILOGUES[step].stores for step in instance.chain)
        self.values = (
            Tensor(library, np.zeros(shape, values.numpy), empty=True)
            if values is not None and stores
            else None
        )
        self.bounds = (np.zeros(0), np.zeros(0))  # those of the values beside codes
        self.params = [_numbers(instance, step, scales, centred) for step in instance.chain]
        device = [Tensor(library, vector) for vector in self.vectors]
        residuals = [Tensor(library, tensor, gap * UNIT) for tensor in self.tensors]
        self.arguments = Epilogue()
        self.arguments.vectors[: len(device)] = [vector.pointer for vector in device]
        self.arguments.tensors[: len(residuals)] = [tensor.pointer for tensor in residuals]
        self.arguments.tensor_pitch[: len(residuals)] = [tensor.pitch for tensor in residuals]
        numbers = [number for each in self.params for number in each]
        self.arguments.params[: len(numbers)] = numbers
        self._kept = (device, residuals)

    def offsets(
        self, arguments: QuantizedGemm | QuantizedConv, table: np.ndarray | None
    ) -> Tensor | None:
        """Puts the table in the arguments."""
        if table is None:
            arguments.offsets = Table(None, 1)
            return None
        stored = Tensor(self.library, table.astype(np.int32))
        arguments.offsets = Table(stored.pointer, len(table))
        return stored

    def problem(
        self,
        arguments: QuantizedGemm | QuantizedConv,
        output: Tensor,
        sums: np.ndarray,
        magnitudes: np.ndarray,
        kept: tuple[object, ...],
    ) -> Coded:
        """The problem, with its answer and the bounds of it."""
        error = _E4M3_SUM * magnitudes if self.instance.dtype is DType.E4M3 else 0.0
        with np.errstate(all="ignore"):
            expected, *bounds = (
                self._applied(sums, 0.0, 0.0)[0],
                *self._applied(sums, error, _ROUNDING),
            )
        low, high = (np.minimum(*bounds), np.maximum(*bounds))
        if self.values is None:
            return Coded(arguments, output, expected, kept, low, high)
        arguments.values = self.values.pointer
        beside = Beside(self.values, *self.bounds)
        return Coded(arguments, output, expected, kept, low, high, beside)

    def _applied(
        self, sums: np.ndarray, error: np.ndarray | float, rounding: float
    ) -> tuple[np.ndarray, np.ndarray]:
        """The chain of both ends of the sums' interval, which each step widens by its rounding."""
        ends = [sums - error, sums + error]
        operands = {"vector": iter(self.vectors), "tensor": iter(self.tensors)}
        for step, numbers in zip(self.instance.chain, self.params, strict=True):
            row = EPILOGUES[step]
            operand = next(operands[row.operand]).astype(np.float64) if row.operand else None
            results = [row.reference(end, operand, *numbers) for end in ends]
            if row.stores and row.values:
                unit = _UNITS[row.values]
                self.bounds = (
                    np.minimum(*ends) - unit * np.maximum(np.abs(np.minimum(*ends)), 2.0**-14),
                    np.maximum(*ends) + unit * np.maximum(np.abs(np.maximum(*ends)), 2.0**-14),
                )
            if step in QUANTIZE.values():
                return results[0], results[1]
            # activations may cancel: their error is one of their argument
            argument = 0.0 if step == DEQUANTIZE else np.abs(ends[0])
            size = rounding * np.maximum(np.abs(results[0]), argument)
            size = np.where(np.isfinite(size), size, 0.0)
            ends = [np.minimum(*results) - size, np.maximum(*results) + size]
        return ends[0], ends[1]


def _numbers(
    instance: Instance, step: str, scales: Sequence[float], centred: bool
) -> tuple[float, ...]:
    """A step's parameters."""
    if step == DEQUANTIZE:
        found: tuple[float, ...] = (scales[0] if scales else _X_SCALE,)
    elif step in _CODES_OF:
        _, residual, result = (0, 0, 0) if centred else _ZEROS[_CODES_OF[step]]
        ends = step == instance.chain[-1]
        scale = scales[1] if scales and ends else _SCALE * (1.0 if ends else 1.7)
        found = (scale, float(residual if step in ADD_CODES.values() else result))
    else:
        found = PARAMS.get(step, ())
    return tuple(float(np.float32(number)) for number in found)


def _output(library: Library, instance: Instance, shape: tuple[int, ...], gap: int) -> Tensor:
    width = _config(instance).access_out
    return Tensor(library, np.zeros(shape, instance.out.numpy), gap * width, empty=True)


def _zero(instance: Instance) -> int:
    """The zero point of x."""
    return _ZEROS[instance.dtype][0] if _config(instance).offsets is not Offsets.NONE else 0


def _config(instance: Instance) -> CodesConfig:
    assert isinstance(instance.config, CodesConfig)
    return instance.config
