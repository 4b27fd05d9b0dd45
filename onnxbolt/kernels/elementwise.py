"""The kernel of an elementwise chain by itself: one for each chain and element type, whatever
the shape."""

from __future__ import annotations

from onnxbolt.kernels.config import UNBOUNDED, Family, KernelConfig

_THREADS = 256


def config(arch: int) -> KernelConfig:
    """The one configuration: `threadblock` = (threads, 1, 1); the width of access is picked at
    launch."""
    return KernelConfig(
        arch, 0, UNBOUNDED, Family.ELEMENTWISE, (_THREADS, 1, 1), align_a=1, align_b=1, align_c=1
    )
