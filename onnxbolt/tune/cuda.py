"""A CUDA stream and events through the driver's library, so that timing ONNX Runtime needs no
framework."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator
from functools import cache

from onnxbolt.errors import OnnxboltError

_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING
_NOT_READY = 600  # CUDA_ERROR_NOT_READY
# The device is kept busy for about 50 ms by fills, of so many bytes each, while runs are enqueued.
# More of them would fill the queue of a stream, which holds about 1,024 launches.
_FILLED, _FILLS = 1 << 28, 1 << 9


class CudaError(OnnxboltError):
    """No driver, no device, or a call of the driver failed."""


@cache
def _driver() -> ctypes.CDLL:
    """The driver's library, with device 0's primary context (the one that ONNX Runtime uses)
    made current."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise CudaError(
            f"no NVIDIA driver found ({error}); run this on a machine with a GPU"
        ) from error
    device, context = ctypes.c_int(), ctypes.c_void_p()
    _check("cuInit", driver.cuInit(0))
    _check("cuDeviceGet", driver.cuDeviceGet(ctypes.byref(device), 0))
    _check(
        "cuDevicePrimaryCtxRetain", driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
    )
    _check("cuCtxSetCurrent", driver.cuCtxSetCurrent(context))
    return driver


def _check(call: str, status: int) -> None:
    if status:
        raise CudaError(f"{call} failed with CUresult {status}")


def taken_memory() -> int:
    """The bytes of device memory that all programs on the GPU together take. Raises CudaError."""
    free, total = _memory()
    return total - free


def free_memory() -> int:
    """The bytes of device memory that no program on the GPU takes. Raises CudaError."""
    return _memory()[0]


def _memory() -> tuple[int, int]:
    """The bytes of device memory that are free, and all."""
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    _check("cuMemGetInfo", _driver().cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)))
    return free.value, total.value


class Stream:
    """A stream for ONNX Runtime's `user_compute_stream`; lives as long as the process."""

    def __init__(self) -> None:
        self.handle = ctypes.c_void_p()
        _check("cuStreamCreate", _driver().cuStreamCreate(ctypes.byref(self.handle), _NON_BLOCKING))

    @property
    def address(self) -> str:
        """The handle as provider options spell it."""
        return str(self.handle.value)

    def synchronize(self) -> None:
        _check("cuStreamSynchronize", _driver().cuStreamSynchronize(self.handle))

    def time(self, run: Callable[[], None], count: int) -> list[float]:
        """Microseconds between an event before and one behind each of `count` calls of `run`,
        which enqueues onto this stream."""
        pairs = [(_Event(), _Event()) for _ in range(count)]
        with self._settled():
            for start, end in pairs:
                start.record(self)
                run()
                end.record(self)
        return [start.microseconds_until(end) for start, end in pairs]

    def time_queued(self, run: Callable[[], None], count: int) -> float | None:
        """Microseconds of the device for each of `count` runs that were all enqueued before the
        first began: the time of a run whose launch is hidden by earlier runs or by a faster
        host. None if the device began earlier, as the runs have more launches than its queue
        holds, or the host is too slow."""
        scratch, start, end = _Memory(_FILLED), _Event(), _Event()
        with self._settled():
            for _ in range(_FILLS):
                scratch.fill(self)
            start.record(self)
            for _ in range(count):
                run()
            end.record(self)
            hidden = not start.is_over
        return start.microseconds_until(end) / count if hidden else None

    @contextlib.contextmanager
    def _settled(self) -> Iterator[None]:
        """Waits for the device before and behind, also where a run fails: ONNX Runtime frees pinned
        memory by a callback on the stream, and the callback ends the process if it is the last
        owner of that memory because the session is gone."""
        self.synchronize()
        try:
            yield
        finally:
            self.synchronize()


class _Memory:
    """Device memory."""

    def __init__(self, size: int) -> None:
        self._address, self._size = ctypes.c_uint64(), size
        _check(
            "cuMemAlloc",
            _driver().cuMemAlloc_v2(ctypes.byref(self._address), ctypes.c_size_t(size)),
        )

    def __del__(self) -> None:
        _driver().cuMemFree_v2(self._address)

    def fill(self, stream: Stream) -> None:
        _check(
            "cuMemsetD8Async",
            _driver().cuMemsetD8Async(
                self._address, ctypes.c_ubyte(0), ctypes.c_size_t(self._size), stream.handle
            ),
        )


class _Event:
    def __init__(self) -> None:
        self._handle = ctypes.c_void_p()
        _check("cuEventCreate", _driver().cuEventCreate(ctypes.byref(self._handle), 0))

    def __del__(self) -> None:
        _driver().cuEventDestroy_v2(self._handle)

    def record(self, stream: Stream) -> None:
        _check("cuEventRecord", _driver().cuEventRecord(self._handle, stream.handle))

    @property
    def is_over(self) -> bool:
        """True if the device has reached this event."""
        status = _driver().cuEventQuery(self._handle)
        _check("cuEventQuery", 0 if status == _NOT_READY else status)
        return status != _NOT_READY

    def microseconds_until(self, other: _Event) -> float:
        milliseconds = ctypes.c_float()
        _check(
            "cuEventElapsedTime",
            _driver().cuEventElapsedTime(ctypes.byref(milliseconds), self._handle, other._handle),
        )
        return milliseconds.value * 1e3
