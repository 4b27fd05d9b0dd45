"""The test library from Python: ctypes mirrors of kernels' arguments in custom_ops/ops/, guarded
device memory, launches."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any, Self

import numpy as np

from onnxbolt.codegen.render import Instance
from onnxbolt.epilogues import MAX_PARAMS
from onnxbolt.problems import MAX_TABLES

GUARD = 4096  # bytes of poison before and behind each tensor, a multiple of any alignment
POISON = 0xFF  # read as fp16, bf16 or fp32 it is NaN

_I, _L, _P = ctypes.c_int, ctypes.c_int64, ctypes.c_void_p


def _fields(kind: type, names: str) -> list[tuple[str, type]]:
    return [(name, kind) for name in names.split()]


class Rotation(ctypes.Structure):
    """RotationArguments."""

    _fields_ = [("table", _P), *_fields(_I, "rows width columns first")]


class Epilogue(ctypes.Structure):
    """EpilogueArguments."""

    _fields_ = [
        ("vectors", _P * 4),
        ("tensors", _P * 2),
        ("tensor_pitch", _L * 2),
        ("params", ctypes.c_float * MAX_PARAMS),
        ("rotation", Rotation),
    ]


class Gemm(ctypes.Structure):
    """GemmArguments."""

    _fields_ = [
        *_fields(_L, "m n k"),
        *_fields(_P, "a b d"),
        *_fields(_L, "lda ldb ldd"),
        ("epilogue", Epilogue),
        *_fields(_L, "batches a_stride b_stride"),
    ]

    @classmethod
    def of(cls, a: Tensor, b: Tensor, d: Tensor, epilogue: Epilogue) -> Self:
        """D [m, n] of A [m, k] and B, as these lie; one batch."""
        pointers, pitches = (a.pointer, b.pointer, d.pointer), (a.pitch, b.pitch, d.pitch)
        return cls(*d.shape, a.shape[-1], *pointers, *pitches, epilogue, 1)


class PhasedPixels(ctypes.Structure):
    """PhasedPixels."""

    _fields_ = _fields(_I, "h w top left height width zeros_h zeros_w d")


class DepthAxis(ctypes.Structure):
    """DepthAxis."""

    _fields_ = _fields(_I, "x filter y pad_front pad_back stride dilation")


class Conv(ctypes.Structure):
    """ConvArguments."""

    _fields_ = [
        *_fields(
            _I,
            "n h w c k r s p q pad_top pad_left pad_bottom pad_right stride_h stride_w dilation_h"
            " dilation_w groups",
        ),
        *_fields(_P, "x filter y"),
        *_fields(_L, "x_pitch y_pitch"),
        ("epilogue", Epilogue),
        *_fields(_I, "x_nchw y_nchw"),
        *_fields(_P, "stored"),
        *_fields(_I, "padding"),
        ("pixels", PhasedPixels),
        ("depth", DepthAxis),
    ]


class Offsets(ctypes.Structure):
    """OffsetArguments."""

    _fields_ = [("values", _P), *_fields(_I, "classes zero")]


class QuantizedGemm(Gemm):
    """QuantizedGemmArguments."""

    _fields_ = [("offsets", Offsets), ("values", _P)]


class QuantizedConv(Conv):
    """QuantizedConvArguments."""

    _fields_ = [("offsets", Offsets), ("values", _P)]


class Pool(ctypes.Structure):
    """PoolArguments; images have no depth."""

    _fields_ = [
        *_fields(
            _I,
            "kind n h w c p q window_h window_w pad_top pad_left pad_bottom pad_right stride_h"
            " stride_w dilation_h dilation_w",
        ),
        *_fields(_I, "count_include_pad"),
        *_fields(_P, "x y"),
        *_fields(_L, "x_pitch y_pitch"),
        ("depth", DepthAxis),
    ]


class Layout(ctypes.Structure):
    """LayoutArguments."""

    _fields_ = [*_fields(_I, "to_last n channels stored pixels"), *_fields(_P, "x y")]


class Resize(ctypes.Structure):
    """ResizeArguments."""

    _fields_ = [
        *_fields(_I, "mode coordinates rounding n h w c p q"),
        ("scale_h", ctypes.c_float),
        ("scale_w", ctypes.c_float),
        *_fields(_P, "x y"),
        *_fields(_L, "x_pitch y_pitch"),
        ("cubic_coeff_a", ctypes.c_float),
        ("exclude_outside", ctypes.c_bool),
        *_fields(_I, "y_h y_w"),
        ("tensor_h", _I * 2),
        ("tensor_w", _I * 2),
        ("epilogue", Epilogue),
    ]


class PixelShuffle(ctypes.Structure):
    """PixelShuffleArguments."""

    _fields_ = [
        *_fields(ctypes.c_bool, "to_space by_channel"),
        *_fields(_I, "n h w c block"),
        *_fields(_P, "x y"),
        *_fields(_L, "x_pitch y_pitch"),
        ("epilogue", Epilogue),
    ]


class SampledLevel(ctypes.Structure):
    """SampledLevel."""

    _fields_ = _fields(_I, "h w first")


class GridSample(ctypes.Structure):
    """GridSampleArguments."""

    _fields_ = [
        *_fields(_I, "mode outside"),
        *_fields(ctypes.c_bool, "align_corners grid_f32"),
        *_fields(_I, "n queries heads size levels points"),
        ("rows", _L),
        ("level", SampledLevel * 8),
        *_fields(_P, "x grid weights y"),
        *_fields(_L, "x_pitch y_pitch"),
    ]


class Elementwise(ctypes.Structure):
    """ElementwiseArguments."""

    _fields_ = [
        ("rows", _L),
        ("channels", _I),
        *_fields(_P, "x y"),
        *_fields(_L, "x_pitch y_pitch"),
        ("epilogue", Epilogue),
    ]


class Chain(ctypes.Structure):
    """ChainArguments."""

    _fields_ = [
        *_fields(_L, "m k"),
        ("layers", _I),
        ("n", _L * 4),
        ("a", _P),
        ("weights", _P * 4),
        ("d", _P),
        *_fields(_L, "lda ldd"),
        ("epilogue", Epilogue * 4),
        ("ldw", _L),
        ("stored", _P),
    ]


class ConvChain(ctypes.Structure):
    """ConvChainArguments."""

    _fields_ = [("conv", Conv), ("chain", Chain)]


class SqueezeExcite(ctypes.Structure):
    """SqueezeExciteArguments."""

    _fields_ = [
        *_fields(_I, "n pixels channels squeezed"),
        *_fields(_P, "x squeeze excite squeeze_bias excite_bias y"),
        *_fields(_L, "x_pitch y_pitch"),
        ("step_params", ctypes.c_float * MAX_PARAMS),
        ("epilogue", Epilogue),
    ]


class Embedding(ctypes.Structure):
    """Embedding."""

    _fields_ = [
        *_fields(_P, "table indices"),
        *_fields(_L, "rows sequence_pitch token_pitch"),
        ("wide", ctypes.c_bool),
    ]


class Norm(ctypes.Structure):
    """NormArguments."""

    _fields_ = [
        ("rows", _L),
        ("columns", _I),
        ("centered", ctypes.c_bool),
        ("epsilon", ctypes.c_float),
        *_fields(_P, "x y sum"),
        *_fields(_L, "x_pitch y_pitch"),
        ("epilogue", Epilogue),
        *_fields(_I, "tokens prefix tables"),
        ("embeddings", Embedding * MAX_TABLES),
    ]


class HeadNorm(Norm):
    """HeadNormArguments."""

    _fields_ = [("heads", _I), *_fields(_L, "head_pitch begin")]


class ModulatedNorm(Norm):
    """ModulatedNormArguments."""

    _fields_ = [*_fields(_P, "scale shift gate")]


class GroupNorm(ctypes.Structure):
    """GroupNormArguments."""

    _fields_ = [
        *_fields(_I, "n pixels channels groups"),
        ("epsilon", ctypes.c_float),
        *_fields(_P, "x y"),
        *_fields(_L, "x_pitch y_pitch"),
        *_fields(_P, "gamma beta before scale shift"),
        ("epilogue", Epilogue),
    ]


class HeadsView(ctypes.Structure):
    """HeadsView and HeadsOutput."""

    _fields_ = [("data", _P), *_fields(_L, "batch row head")]


class ScoreMask(ctypes.Structure):
    """ScoreMask."""

    _fields_ = [
        ("kind", _I),
        ("fp32", ctypes.c_bool),
        ("data", _P),
        *_fields(_L, "batch head query key"),
        ("period", _I),
    ]


class Windows(ctypes.Structure):
    """Windows."""

    _fields_ = _fields(_I, "height width window_height window_width shift_y shift_x")


class Attention(ctypes.Structure):
    """AttentionArguments."""

    _fields_ = [
        *_fields(_I, "batch heads key_heads queries keys size value_size"),
        ("scale", ctypes.c_float),
        *_fields(HeadsView, "q k v y"),
        ("mask", ScoreMask),
        *_fields(_I, "masked first last shift"),
        ("windows", Windows),
    ]


class CodedAttention(Attention):
    """CodedAttentionArguments."""

    _fields_ = [("epilogue", Epilogue)]


class KernelError(Exception):
    """The text that a kernel's function returned."""


class Library:
    """A library of tests/gpu/build_kernels.py."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._c = ctypes.CDLL(str(path))
        for name in (
            "device_allocate",
            "device_free",
            "device_copy",
            "prepare",
            "can_implement",
            "launch",
            "launch_captured",
        ):
            getattr(self._c, name).restype = ctypes.c_char_p
        self._c.find_kernel.restype = _P

    def call(self, name: str, *arguments: Any) -> None:
        """Call one of the functions that return an error's text."""
        if error := getattr(self._c, name)(*arguments):
            raise KernelError(f"{name}: {error.decode()}")

    def kernel(self, instance: Instance) -> Kernel:
        """The compiled instance, prepared; KernelError where the library lacks it."""
        row = (_L * 25)(*instance.config.row())
        found = self._c.find_kernel(
            instance.key.encode(), instance.dtype.onnx, instance.out.onnx, row
        )
        if not found:
            raise KernelError(f"no kernel for {instance}: rebuild the library")
        self.call("prepare", _P(found))
        return Kernel(self, _P(found), row)


class Kernel:
    """One compiled instance."""

    def __init__(
        self, library: Library, pointer: ctypes.c_void_p, row: ctypes.Array[ctypes.c_int64]
    ) -> None:
        self.library, self._pointer, self._row = library, pointer, row

    def check(self, arguments: ctypes.Structure) -> None:
        """can_implement; KernelError with its text where it refuses."""
        self.library.call("can_implement", self._pointer, ctypes.byref(arguments))

    def launch(
        self,
        arguments: ctypes.Structure,
        captured: bool = False,
        swizzle: int | None = None,
        split_k: int = 1,
        columns: int | None = None,
    ) -> None:
        """One launch and a wait, `captured` through a CUDA graph; `swizzle` replaces the row's,
        `split_k` and `columns` (tile_n) too."""
        row = (_L * 25)(*self._row)
        if swizzle is not None:
            row[14] = swizzle
        if columns is not None:
            row[5] = columns
        row[22] = split_k
        self.library.call(
            "launch_captured" if captured else "launch", self._pointer, ctypes.byref(arguments), row
        )


class Tensor:
    """Rows of values on the device, `gap` elements of poison between rows, GUARD bytes of it
    before and behind."""

    def __init__(
        self, library: Library, values: np.ndarray, gap: int = 0, empty: bool = False
    ) -> None:
        rows = values.reshape(-1, values.shape[-1])
        self.library, self.shape, self.dtype = library, values.shape, values.dtype
        self.width, self.pitch = rows.shape[1], rows.shape[1] + gap
        self._bytes = GUARD + rows.shape[0] * self.pitch * rows.itemsize + GUARD
        host = np.full(self._bytes, POISON, np.uint8)
        if not empty:
            self._body(host)[:, : self.width] = rows
        self._base = _P()
        library.call("device_allocate", ctypes.byref(self._base), ctypes.c_size_t(self._bytes))
        self._write(host)

    def __del__(self) -> None:
        self.library.call("device_free", self._base)

    @property
    def pointer(self) -> int:
        assert self._base.value is not None
        return self._base.value + GUARD

    def empty(self) -> None:
        """Fill it with poison, so that an answer that is not written is not that of the launch
        before."""
        self._write(np.full(self._bytes, POISON, np.uint8))

    def read(self) -> np.ndarray:
        """The values; AssertionError where poison outside of them was overwritten."""
        host = np.empty(self._bytes, np.uint8)
        self.library.call(
            "device_copy", host.ctypes.data_as(_P), self._base, ctypes.c_size_t(self._bytes)
        )
        values = self._body(host)[:, : self.width].copy().reshape(self.shape)
        self._body(host)[:, : self.width].view(f"u{self.dtype.itemsize}")[:] = np.iinfo(
            f"u{self.dtype.itemsize}"
        ).max
        stray = np.flatnonzero(host != POISON)
        assert stray.size == 0, (
            f"{stray.size} bytes outside the output were written, the first at offset"
            f" {stray[0] - GUARD}"
        )
        return values

    def _write(self, host: np.ndarray) -> None:
        self.library.call(
            "device_copy", self._base, host.ctypes.data_as(_P), ctypes.c_size_t(self._bytes)
        )

    def _body(self, host: np.ndarray) -> np.ndarray:
        return host[GUARD:-GUARD].view(self.dtype).reshape(-1, self.pitch)
