"""Convolutions as implicit matrix products."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

from onnxbolt.dtypes import DType
from onnxbolt.epilogues import MEAN, STORE, layers
from onnxbolt.onnxruntime_time import CUDNN
from onnxbolt.problems.base import Computed, Reference
from onnxbolt.problems.product import Product


class ImageProduct(Product):
    """NHWC x KRSC -> NPQK; channels as stored (padding included)."""

    library = CUDNN
    least: ClassVar[Mapping[str, int]] = {"pads": 0, "padding": 0}

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

    @property
    def pixels(self) -> int:
        """Pixels of an image of y, before an average: P x Q."""
        return self.p * self.q

    @property
    def averages(self) -> bool:
        """True if the epilogue is a global average pooling, and y is [N, 1, 1, K]."""
        return MEAN in self.chain

    @property
    def rows(self) -> int:
        """Rows of the implicit GEMM: output pixels."""
        return self.n * self.pixels

    @property
    def columns(self) -> int:
        """Columns of the implicit GEMM: output channels."""
        return self.k

    @property
    def writes_rows(self) -> bool:
        return not (self.y_nchw or self.averages)

    @property
    def written_rows(self) -> int:
        return self.n if self.averages else self.rows

    @property
    def depth(self) -> int:
        """Input channels that an output channel reads."""
        return self.c // self.groups

    @property
    def taps(self) -> int:
        return self.r * self.s

    @property
    def filter(self) -> tuple[int, int]:
        """Positions of the filter along height and width."""
        return self.r, self.s

    @property
    def is_matrix(self) -> bool:
        """True if the activations are a matrix as they lie: a 1x1 convolution over every pixel."""
        return self.r == self.s == 1 and self.strides == (1, 1) and not any(self.pads)

    @property
    def x_elements(self) -> int:
        return self.n * self.h * self.w * self.c

    @property
    def depthwise(self) -> bool:
        return self.groups == self.c == self.k > 1

    @property
    def shape(self) -> str:
        """Sizes of x, channels of each layer, the filter, and unusual strides, dilations and
        layouts."""
        kind = "conv" if self.groups == 1 else f"conv in {self.groups} groups"
        channels = "-".join(map(str, self.widths))
        parts = [
            f"{'depthwise conv' if self.depthwise else kind}"
            f" {self.n}x{self.h}x{self.w}x{self.c} to {channels}",
            f"{self.r}x{self.s}",
        ]
        parts += [f"stride {_pair(self.strides)}"] if self.strides != (1, 1) else []
        parts += [f"dilation {_pair(self.dilations)}"] if self.dilations != (1, 1) else []
        return ", ".join(parts)


@dataclass(frozen=True)
class ConvProblem(ImageProduct):
    """NHWC x KRSC -> NPQK; channels as stored (padding included)."""

    operation = "conv"

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
    nchw: bool = False  # x is NCHW: a stem convolution
    # channels of the layers before the last, if `chain` has 1x1 convolutions
    inner: tuple[int, ...] = ()
    y_nchw: bool = False  # y is NCHW and has no padded channels
    # padded channels among `k`, if `chain` ends with a Store: y is written in NHWC with them, and
    # in NCHW without them
    padding: int = 0

    @property
    def both_forms(self) -> bool:
        """True if y is written twice: in NCHW as `out`, and in NHWC as `dtype`."""
        return self.y_nchw and STORE in self.chain

    @property
    def in_rows(self) -> ConvProblem:
        """The problem with y in NHWC alone, of one that writes it in both layouts."""
        return replace(self, out=self.dtype, chain=self.chain[:-1], y_nchw=False, padding=0)

    @cached_property
    def layers(self) -> tuple[ConvProblem, ...]:
        chains, widths = layers(self.chain), self.widths
        outs = [*(self.dtype for _ in self.inner), self.out]
        first = replace(self, k=widths[0], out=outs[0], chain=chains[0], inner=())
        behind = zip(widths, widths[1:], outs[1:], chains[1:], strict=False)
        return (first, *(self._pointwise(*layer) for layer in behind))

    def _pointwise(self, c: int, k: int, out: DType, chain: tuple[str, ...]) -> ConvProblem:
        """A 1x1 convolution of y's pixels."""
        n, p, q = self.n, self.p, self.q
        none, ones, dtype = (0, 0, 0, 0), (1, 1), self.dtype
        return ConvProblem(n, p, q, c, k, 1, 1, p, q, none, ones, ones, 1, dtype, out, chain)

    @property
    def shape(self) -> str:
        """Sizes of x, channels of each layer, the filter, and unusual strides, dilations and
        layouts."""
        if self.both_forms:
            return f"{super().shape}, to NHWC and NCHW of {self.k - self.padding}"
        return f"{super().shape}, to NCHW" if self.y_nchw else super().shape

    @property
    def reference(self) -> Reference:
        first = self.layers[0]
        sizes = (first.n, first.h, first.w, first.c, first.k, first.r, first.s, first.p, first.q)
        forms = (DType.F32.onnx if first.nchw else 0, int(first.y_nchw), first.padding)
        extents = (*sizes, *first.pads, *first.strides, *first.dilations, first.groups, *forms)
        averaged = self.pixels if self.averages else 0
        # the result in NCHW is made of the one in NHWC
        twice = self.both_forms and self.out != self.dtype
        return Reference(
            Computed.CONVOLUTIONS, extents, self.widths[1:], self.terms, averaged, twice
        )

    def with_nchw_output(self, channels: int) -> ConvProblem | None:
        return None if self.inner or self.nchw else replace(self, k=channels, y_nchw=True)

    def with_both_outputs(self, channels: int, out: DType) -> ConvProblem | None:
        if self.inner or self.nchw:
            return None
        chain, padding = (*self.chain, STORE), self.k - channels
        return replace(self, chain=chain, out=out, y_nchw=True, padding=padding)


@dataclass(frozen=True)
class StemCodesProblem(ImageProduct):
    """A stem convolution of values, NCHW x KRSC -> NPQK, whose epilogue ends with the codes of its
    result."""

    operation = "conv"
    nchw = True

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

    @classmethod
    def of(cls, values: Product, out: DType) -> StemCodesProblem:
        """The problem of a stem of values, a ConvProblem, that ends with codes of type `out`."""
        fields = {name: getattr(values, name) for name in cls.__dataclass_fields__}
        return cls(**{**fields, "out": out})

    @property
    def layers(self) -> tuple[StemCodesProblem, ...]:
        return (self,)

    @property
    def reference(self) -> None:
        """None: predictions decide."""
        return None


def _pair(sizes: tuple[int, int]) -> str:
    return str(sizes[0]) if sizes[0] == sizes[1] else f"{sizes[0]}x{sizes[1]}"
