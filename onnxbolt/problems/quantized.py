"""Products of codes of 8 bits, with scales at run time (docs/decisions/quantized.md)."""

from __future__ import annotations

from dataclasses import dataclass

from onnxbolt.archs import Arch
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import ADD, ADD_CODES, ADD_VALUES, DEQUANTIZE, EPILOGUES
from onnxbolt.onnxruntime_time import elementwise_us
from onnxbolt.problems.base import Computed, Reference
from onnxbolt.problems.conv import ConvProblem, ImageProduct
from onnxbolt.problems.gemm import GemmProblem, MatrixProduct
from onnxbolt.problems.product import Product

_PAIR = 1 + DType.F32.bytes  # bytes of a code and its value
_ZERO = 5  # the zero point of x, where it has one, with which the profiler checks kernels


def _float_chain(chain: tuple[str, ...]) -> tuple[str, ...]:
    """The steps of the same product of values, without Q and DQ."""
    sums = {*ADD_CODES.values(), *ADD_VALUES.values()}
    steps = (ADD if step in sums else step for step in chain)
    rows = ((s, EPILOGUES[s]) for s in steps if s != DEQUANTIZE)
    return tuple(s for s, row in rows if not (row.given or row.stores))


def _onnxruntime_us(problem: Product, floats: Product, arch: Arch) -> float:
    """The product of values in fp32, and a kernel for each Q and DQ: of x, of the weight, and of
    what the epilogue reads and writes."""
    size = problem.rows * problem.columns * _PAIR
    weight = problem.input_elements - problem.x_elements
    given = [EPILOGUES[step] for step in problem.chain if EPILOGUES[step].given]
    kernels = sum(1 if step.operand else step.in_ort.kernels for step in given)
    pairs = elementwise_us(problem.x_elements * _PAIR, arch) + elementwise_us(weight * _PAIR, arch)
    return floats.onnxruntime_us(arch) + pairs + kernels * elementwise_us(size, arch)


@dataclass(frozen=True)
class QuantizedGemmProblem(MatrixProduct):
    """D[M, N] = epilogue(A[M, K] B[N, K]^T) of codes; `offsets`: the zero point of A is not 0, so
    that sums begin with an operand."""

    operation = "quantized gemm"

    m: int
    n: int
    k: int
    dtype: DType
    out: DType
    chain: tuple[str, ...]
    offsets: bool = False

    @property
    def shape(self) -> str:
        """m, n and k."""
        return f"quantized gemm {self.m}x{self.n}x{self.k}"

    @property
    def reference(self) -> Reference:
        extents = (self.m, self.n, self.k, _ZERO * self.offsets)
        return Reference(Computed.QUANTIZED_GEMMS, extents, (), self.terms)

    def onnxruntime_us(self, arch: Arch) -> float:
        size, f32 = (self.m, self.n, self.k), DType.F32
        return _onnxruntime_us(self, GemmProblem(*size, f32, f32, _float_chain(self.chain)), arch)


@dataclass(frozen=True)
class QuantizedConvProblem(ImageProduct):
    """NHWC x KRSC -> NPQK of codes; `offsets`: the zero point of x is not 0, so that sums begin
    with an operand, and `border`: with another one where the filter meets the padding."""

    operation = "quantized conv"
    nchw, y_nchw, inner = False, False, ()

    n: int
    h: int
    w: int
    c: int
    k: int
    r: int
    s: int
    p: int
    q: int
    pads: tuple[int, int, int, int]  # top, left, bottom, right
    strides: tuple[int, int]
    dilations: tuple[int, int]
    groups: int
    dtype: DType
    out: DType
    chain: tuple[str, ...]
    offsets: bool = False
    border: bool = False

    @property
    def layers(self) -> tuple[QuantizedConvProblem, ...]:
        return (self,)

    @property
    def shape(self) -> str:
        """As that of a convolution of values."""
        return f"quantized {super().shape}"

    @property
    def reference(self) -> Reference:
        sizes = (self.n, self.h, self.w, self.c, self.k, self.r, self.s, self.p, self.q)
        window = (*self.pads, *self.strides, *self.dilations, self.groups)
        forms = (0, 0, 0)  # x and y in NHWC, no padding
        extents = (*sizes, *window, *forms, _ZERO * self.offsets)
        return Reference(Computed.QUANTIZED_CONVOLUTIONS, extents, (), self.terms)

    def onnxruntime_us(self, arch: Arch) -> float:
        sizes = (self.n, self.h, self.w, self.c, self.k, self.r, self.s, self.p, self.q)
        window = (self.pads, self.strides, self.dilations, self.groups)
        f32 = DType.F32
        floats = ConvProblem(*sizes, *window, f32, f32, _float_chain(self.chain))
        return _onnxruntime_us(self, floats, arch)
