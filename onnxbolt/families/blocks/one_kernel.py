"""Families with one kernel for each combination of types and epilogue, whatever the shape."""

from __future__ import annotations

from dataclasses import dataclass

from onnxbolt.families.base import KernelConfig, tile_size
from onnxbolt.families.row import at

_THREADS = 256
# slots of a family whose launch picks the width of accesses
ANY_ACCESS = {"align_a": 1, "align_b": 1, "align_c": 1}


@dataclass(frozen=True, kw_only=True)
class OneKernelConfig(KernelConfig):
    """Threads of a block. A launch decides how the work is divided, and how wide accesses are."""

    threads: int = at("tile_m", default=_THREADS, sound=tile_size)
