"""cuBLASLt's list of algorithms for a product, each of which can be timed: the first of the list is
not always the fastest.

PyTorch's `matmul` takes what cuBLAS puts first. `cublasLtMatmulAlgoGetHeuristic` returns further
ones, best estimate first. The library is the one that PyTorch has loaded, called through ctypes;
launches go to PyTorch's current stream and can be captured in a CUDA graph.
"""

from __future__ import annotations

import ctypes
import functools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnxbolt.dtypes import DType

ASKED_FOR = 32  # algorithms; the library returns fewer
_WORKSPACE = 64 << 20  # bytes; NVIDIA recommends 32 MiB for Hopper
_ALIGNMENT = 256  # bytes that the library assumes unless it is told otherwise
# values of cublasLt.h and library_types.h
_COMPUTE_32F, _R_32F = 68, 0
_ELEMENTS = {DType.F16: 2, DType.BF16: 14, DType.F32: 0}
_TRANSA, _TRANSB, _NO, _YES = 3, 4, 0, 1
_PREFERENCE_WORKSPACE, _PREFERENCE_ALIGNMENTS = 1, (5, 6, 7, 8)


class _Algorithm(ctypes.Structure):
    """cublasLtMatmulAlgo_t: opaque."""

    _fields_ = [("data", ctypes.c_uint64 * 8)]


class _Heuristic(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = [
        ("algorithm", _Algorithm),
        ("workspace", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    ]


@dataclass(frozen=True)
class Shape:
    """y[M, N] = x[M, K] w, all row by row; w is stored [N, K] where `transposed`, else [K, N]."""

    m: int
    n: int
    k: int
    dtype: DType
    transposed: bool

    @property
    def alignment(self) -> int:
        """The largest power of two up to 256 that divides the addresses of operands, in bytes; sets
        of operands lie one after the other."""
        return min(
            _ALIGNMENT,
            *(
                size & -size
                for size in (self.m * self.k * self.dtype.bytes, self.k * self.n * self.dtype.bytes)
            ),
        )


class Product:
    """A product and its list of algorithms. Raises RuntimeError if the library fails."""

    def __init__(self, torch: Any, shape: Shape) -> None:
        self._torch, self.shape = torch, shape
        element = _ELEMENTS[shape.dtype]
        self._operation = _created("cublasLtMatmulDescCreate", _COMPUTE_32F, _R_32F)
        # the library counts columns first: it computes y^T[N, M] = w^T x^T
        _set(
            "cublasLtMatmulDescSetAttribute",
            self._operation,
            _TRANSA,
            ctypes.c_int32(_YES if shape.transposed else _NO),
        )
        _set("cublasLtMatmulDescSetAttribute", self._operation, _TRANSB, ctypes.c_int32(_NO))
        weight = (shape.k, shape.n) if shape.transposed else (shape.n, shape.k)
        self._weight, self._x, self._y = (
            _layout(element, *extents)
            for extents in (weight, (shape.k, shape.m), (shape.n, shape.m))
        )
        self.algorithms = self._listed(shape.alignment)

    def _listed(self, alignment: int) -> list[_Algorithm]:
        """The library's suggestions, best estimate first."""
        preference = _created("cublasLtMatmulPreferenceCreate")
        _set(
            "cublasLtMatmulPreferenceSetAttribute",
            preference,
            _PREFERENCE_WORKSPACE,
            ctypes.c_uint64(_WORKSPACE),
        )
        for attribute in _PREFERENCE_ALIGNMENTS:
            _set(
                "cublasLtMatmulPreferenceSetAttribute",
                preference,
                attribute,
                ctypes.c_uint32(alignment),
            )
        found, count = (_Heuristic * ASKED_FOR)(), ctypes.c_int()
        _call(
            "cublasLtMatmulAlgoGetHeuristic",
            _handle(),
            self._operation,
            self._weight,
            self._x,
            self._y,
            self._y,
            preference,
            ASKED_FOR,
            found,
            ctypes.byref(count),
        )
        return [_copied(found[i].algorithm) for i in range(count.value) if found[i].state == 0]

    def run(self, x: Any, weight: Any, algorithm: int) -> Any:
        """x times weight by one of `algorithms`, on PyTorch's current stream. Raises RuntimeError
        if the library refuses it."""
        y = self._torch.empty((self.shape.m, self.shape.n), dtype=x.dtype, device="cuda")
        one, zero, workspace = ctypes.c_float(1.0), ctypes.c_float(0.0), _workspace()
        address = ctypes.c_void_p
        _call(
            "cublasLtMatmul",
            _handle(),
            self._operation,
            ctypes.byref(one),
            address(weight.data_ptr()),
            self._weight,
            address(x.data_ptr()),
            self._x,
            ctypes.byref(zero),
            address(y.data_ptr()),
            self._y,
            address(y.data_ptr()),
            self._y,
            ctypes.byref(self.algorithms[algorithm]),
            address(workspace.data_ptr()),
            ctypes.c_size_t(_WORKSPACE),
            address(self._torch.cuda.current_stream().cuda_stream),
        )
        return y


@functools.cache
def _library() -> ctypes.CDLL:
    """The cublasLt library that this process has loaded."""
    loaded = re.search(r"\S*/libcublasLt\.so\S*", Path("/proc/self/maps").read_text())
    return ctypes.CDLL(loaded[0] if loaded else "libcublasLt.so.13")


@functools.cache
def _handle() -> ctypes.c_void_p:
    return _created("cublasLtCreate")


@functools.cache
def _workspace() -> Any:
    import torch

    return torch.empty(_WORKSPACE, dtype=torch.uint8, device="cuda")


def _layout(element: int, rows: int, columns: int) -> ctypes.c_void_p:
    return _created(
        "cublasLtMatrixLayoutCreate",
        element,
        ctypes.c_uint64(rows),
        ctypes.c_uint64(columns),
        ctypes.c_int64(rows),
    )


def _created(function: str, *arguments: Any) -> ctypes.c_void_p:
    made = ctypes.c_void_p()
    _call(function, ctypes.byref(made), *arguments)
    return made


def _set(function: str, target: ctypes.c_void_p, attribute: int, value: Any) -> None:
    _call(function, target, attribute, ctypes.byref(value), ctypes.c_size_t(ctypes.sizeof(value)))


def _call(function: str, *arguments: Any) -> None:
    if status := getattr(_library(), function)(*arguments):
        raise RuntimeError(f"{function} failed with cublasStatus_t {status}")


def _copied(algorithm: _Algorithm) -> _Algorithm:
    return _Algorithm.from_buffer_copy(algorithm)
