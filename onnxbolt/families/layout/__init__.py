"""Layout conversion: NCHW to NHWC and back."""

from __future__ import annotations

from dataclasses import dataclass

from onnxbolt.families.base import ANY_ACCESS, Family, KernelConfig, positive
from onnxbolt.families.row import at

_THREADS = 256


@dataclass(frozen=True, kw_only=True)
class LayoutConfig(KernelConfig):
    """Threads of a block; tiles and widths of access are picked at launch."""

    threads: int = at("tile_m", default=_THREADS, sound=positive)


class Layout(Family[LayoutConfig]):
    """One kernel for each pair of element types, whatever the direction and the shape."""

    number, name, config = 12, "layout", LayoutConfig
    takes = ("element", "output")
    kinds, fixed = frozenset({"to_nhwc", "to_nchw"}), ANY_ACCESS
    tensor_cores = False
