"""An epilogue by itself: the steps that no product stands in front of."""

from __future__ import annotations

from dataclasses import dataclass

from onnxbolt.families.base import ANY_ACCESS, Family, KernelConfig, positive
from onnxbolt.families.row import at

_THREADS = 256


@dataclass(frozen=True, kw_only=True)
class ElementwiseConfig(KernelConfig):
    """Threads of a block; the width of access is picked at launch."""

    threads: int = at("tile_m", default=_THREADS, sound=positive)


class Elementwise(Family[ElementwiseConfig]):
    """One kernel for each epilogue and element type, whatever the shape."""

    number, name, config = 11, "elementwise", ElementwiseConfig
    takes = ("element", "epilogue")
    kinds, fixed = frozenset({"elementwise"}), ANY_ACCESS
    tensor_cores = False
