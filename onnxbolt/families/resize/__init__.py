"""Resizing in NHWC: a thread has a vector of channels of an output pixel."""

from __future__ import annotations

from dataclasses import dataclass

from onnxbolt.families.base import ANY_ACCESS, Family, KernelConfig, positive
from onnxbolt.families.row import at

_THREADS = 256


@dataclass(frozen=True, kw_only=True)
class ResizeConfig(KernelConfig):
    """Threads of a block; the width of access is picked at launch."""

    threads: int = at("tile_m", default=_THREADS, sound=positive)


class Resize(Family[ResizeConfig]):
    """One kernel for every mode and shape."""

    number, name, config = 19, "resize", ResizeConfig
    takes = ("element", "output")
    kinds, fixed = frozenset({"resize"}), ANY_ACCESS
    tensor_cores = False
