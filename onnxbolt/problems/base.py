"""The interface of problems: all that planning, tuning and reports ask of one."""

from __future__ import annotations

import abc
import dataclasses
import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from onnxbolt.archs import Arch
from onnxbolt.dtypes import DType


class Computed(enum.IntEnum):
    """Kinds of problems that the profiler has a reference for (custom_ops/profiler/profiler.cu)."""

    CONVOLUTIONS = 0
    GEMMS = 1
    NORM = 2
    ATTENTION = 3
    CONV_TRANSPOSE = 4
    QUANTIZED_GEMMS = 5
    QUANTIZED_CONVOLUTIONS = 6
    BATCHED_GEMMS = 7


@dataclass(frozen=True)
class Reference:
    """A problem as the profiler's reference computes it."""

    computed: Computed
    extents: tuple[int, ...]  # sizes of the first layer, in the order of profiler.cu
    columns: tuple[int, ...]  # columns of each layer behind the first
    terms: tuple[int, ...]  # for each layer, the products that are summed up for one output
    averaged_pixels: int = 0  # pixels that one output averages; 0: outputs are no means
    rounded_twice: bool = False  # True: y is rounded to the type of x, and then to its own
    scored: int = 0  # products that are summed up for a score, whose softmax weighs the terms


class Problem(abc.ABC):
    """The computation of one kernel: a frozen dataclass of shapes, element types and an epilogue.

    Fields are of the types int, bool, float and DType, or tuples of int or str; keys of
    measurements and lock files hold them by name. A new class implements the abstract members, and
    overrides others where its kernels can do more. It becomes known with the first kernel family
    that lists it among its `problems`.
    """

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]
    operation: ClassVar[str]  # its name in reports: "gemm"
    least: ClassVar[Mapping[str, int]] = {}  # smallest integers of fields; of all others 1
    # microseconds by which predictions for narrow layers are too short; added when a single layer
    # is compared with kernels for several layers, which are narrow
    narrow_layer_us: ClassVar[float] = 0.0

    dtype: DType  # element type of x
    out: DType  # element type of y
    chain: tuple[str, ...]  # names of the epilogue's steps (onnxbolt/epilogues/)
    inner: tuple[int, ...] = ()  # columns of the layers before the last, if there are several

    @property
    @abc.abstractmethod
    def rows(self) -> int:
        """Rows of y as a matrix: the m by which a node chooses among its configurations."""

    @property
    @abc.abstractmethod
    def columns(self) -> int:
        """Columns of y as a matrix, padding included."""

    @property
    @abc.abstractmethod
    def bytes_moved(self) -> int:
        """Bytes that are read and written if each tensor moves once through device memory."""

    @property
    @abc.abstractmethod
    def shape(self) -> str:
        """The operation and its sizes in words: 'gemm 128x768x3072'."""

    @abc.abstractmethod
    def onnxruntime_us(self, arch: Arch) -> float:
        """Predicted microseconds of ONNX Runtime's CUDA provider at its best for the same nodes:
        in NHWC, in a CUDA graph, with what its libraries fuse (onnxbolt/onnxruntime_time.py)."""

    @property
    def description(self) -> str:
        """The problem in one line: 'conv 32x56x56x64 to 64, 3x3, f16, Bias+Relu'."""
        types = dict.fromkeys((self.dtype.value, self.out.value))
        return ", ".join([self.shape, " to ".join(types), *filter(None, ["+".join(self.chain)])])

    @property
    def layers(self) -> tuple[Problem, ...]:
        """Each layer with its epilogue as a problem of its own."""
        return (self,)

    @property
    def flops(self) -> int:
        """Additions and multiplications of matrix products, without the epilogue; 0 if the
        operation has no products."""
        return 0

    @property
    def on_tensor_cores(self) -> bool:
        """True if tensor cores can compute `flops`."""
        return False

    @property
    def gemm_shape(self) -> tuple[int, int, int] | None:
        """m, n and k of a single GEMM; None for any other problem."""
        return None

    @property
    def reference(self) -> Reference | None:
        """How the profiler checks the problem's kernels; None where it cannot, so that the tuner
        measures none of them and predictions decide."""
        return None

    def with_nchw_output(self, channels: int) -> Problem | None:
        """The same with y as NCHW, of `channels` without padding; None if no kernel does that."""
        return None

    def with_both_outputs(self, channels: int, out: DType) -> Problem | None:
        """The same with y in NHWC and, of `channels` without padding and of type `out`, in NCHW as
        well; None if no kernel does that."""
        return None
