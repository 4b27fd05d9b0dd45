"""Kernels of normalizations on the host, on the problems of the GPU tests: rows and sequences of
tokens, tails, gaps, the second output. Without hints to caches, which are instructions of a GPU."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from onnxbolt.codegen.render import Instance, instance_name
from onnxbolt.dtypes import DType
from onnxbolt.families.norm import Caching, NormConfig
from tests.custom_ops.host_kernels import compile_kernels
from tests.gpu import norms
from tests.gpu.device import Library
from tests.gpu.norm_cases import instances
from tests.gpu.reference import LIMITS, relative_error

_ALIGNMENT = 256
_MOST_THREADS, _MOST_ROWS = 256, 300  # fibers are slow
INSTANCES = [
    instance
    for instance in instances(80, (DType.F16,))
    if isinstance(instance.config, NormConfig)
    and instance.config.caching is Caching.USUAL
    and instance.config.threads <= _MOST_THREADS
]


class HostMemory:
    """The memory functions of tests.gpu.device.Library."""

    def __init__(self) -> None:
        self._held: dict[int, Any] = {}

    def call(self, name: str, *arguments: Any) -> None:
        """Raises KeyError for a function that is none of memory."""
        functions: dict[str, Callable[..., None]] = {
            "device_allocate": self._allocate,
            "device_copy": self._copy,
            "device_free": self._free,
        }
        functions[name](*arguments)

    def _allocate(self, pointer: Any, size: ctypes.c_size_t) -> None:
        buffer = ctypes.create_string_buffer(size.value + _ALIGNMENT)
        address = -(-ctypes.addressof(buffer) // _ALIGNMENT) * _ALIGNMENT
        self._held[address] = buffer
        pointer._obj.value = address

    def _copy(self, to: Any, source: Any, size: ctypes.c_size_t) -> None:
        ctypes.memmove(to, source, size.value)

    def _free(self, pointer: ctypes.c_void_p) -> None:
        assert pointer.value is not None
        del self._held[pointer.value]


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    path: Path = compile_kernels("norm.cc", INSTANCES, tmp_path_factory.mktemp("norm"))
    library = ctypes.CDLL(str(path))
    library.host_normalize.restype = ctypes.c_char_p
    return library


@pytest.mark.parametrize("instance", INSTANCES, ids=instance_name)
def test_norm(kernels: ctypes.CDLL, instance: Instance) -> None:
    limit, index = LIMITS[instance.dtype], INSTANCES.index(instance)
    for problem in norms.problems(cast(Library, HostMemory()), instance):
        if problem.arguments.rows > _MOST_ROWS:
            continue
        error = kernels.host_normalize(index, ctypes.byref(problem.arguments))
        assert error is None
        assert problem.expected is not None
        assert relative_error(problem.output.read(), problem.expected) <= limit
        if problem.total is not None:
            assert problem.expected_total is not None
            assert relative_error(problem.total.read(), problem.expected_total) <= limit


def test_kernels_of_rows_and_of_tokens_are_told_apart(kernels: ctypes.CDLL) -> None:
    of_tokens = next(i for i in INSTANCES if i.config.named()["tokens"])
    problem = norms.problems(cast(Library, HostMemory()), of_tokens)[1]
    of_rows = next(i for i, other in enumerate(INSTANCES) if not other.config.named()["tokens"])
    assert kernels.host_normalize(of_rows, ctypes.byref(problem.arguments)) == (
        b"the kernel is for other rows"
    )
