"""Facts about the local GPU, from its driver alone: no CUDA toolkit or framework is needed."""

from __future__ import annotations

import ctypes
import uuid
from functools import cache

from onnxbolt import archs

_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR


@cache
def compute_capability(number: int = 0) -> tuple[int, int] | None:
    """(major, minor) of a device, None if there is no driver or no such device."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), number):
        return None
    driver.cuDeviceGetAttribute(ctypes.byref(major), _MAJOR, device)
    driver.cuDeviceGetAttribute(ctypes.byref(minor), _MINOR, device)
    return major.value, minor.value


@cache
def driver_version() -> tuple[int, int] | None:
    """The newest version of CUDA that the driver runs, such as (13, 0); None if there is no
    driver."""
    try:
        driver, version = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
    except OSError:
        return None
    if driver.cuDriverGetVersion(ctypes.byref(version)):
        return None
    return version.value // 1000, version.value % 1000 // 10


@cache
def name() -> str | None:
    """The driver's name for device 0, such as "NVIDIA H200"; None if there is no driver or no
    device."""
    if compute_capability() is None:
        return None
    driver, text, device = (
        ctypes.CDLL("libcuda.so.1"),
        ctypes.create_string_buffer(256),
        ctypes.c_int(),
    )
    if driver.cuDeviceGet(ctypes.byref(device), 0) or driver.cuDeviceGetName(
        text, len(text), device
    ):
        return None
    return text.value.decode(errors="replace")


def uuids() -> tuple[str, ...]:
    """The UUIDs of all devices that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    if compute_capability() is None:
        return ()
    driver, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
    driver.cuDeviceGetCount(ctypes.byref(count))
    found = []
    for number in range(count.value):
        device, raw = ctypes.c_int(), (ctypes.c_ubyte * 16)()
        if not (
            driver.cuDeviceGet(ctypes.byref(device), number)
            or driver.cuDeviceGetUuid_v2(raw, device)
        ):
            found.append(f"GPU-{uuid.UUID(bytes=bytes(raw))}")
    return tuple(found)


def local_arch() -> str | None:
    """The architecture to build for on this machine: the GPU's own, or the nearest lower one of its
    generation."""
    capability = compute_capability()
    if capability is None:
        return None
    major, minor = capability
    here = 10 * major + minor
    found = archs.nearest(arch for arch in archs.ARCHS.values() if arch.runs_on(here))
    return found.name if found else None
