"""The kernel of a change of layout: one for each pair of element types, whatever the direction
and the shape."""

from __future__ import annotations

from onnxbolt.kernels.config import UNBOUNDED, Family, KernelConfig

_THREADS = 256


def config(arch: int) -> KernelConfig:
    """The one configuration: `threadblock` = (threads, 1, 1); tiles and widths of access are
    picked at launch."""
    return KernelConfig(
        arch, 0, UNBOUNDED, Family.LAYOUT, (_THREADS, 1, 1), align_a=1, align_b=1, align_c=1
    )
