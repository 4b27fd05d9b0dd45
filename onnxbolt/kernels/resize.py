"""Resizing in NHWC: one kernel for every mode and shape, a thread to each vector of channels of
an output pixel."""

from __future__ import annotations

from dataclasses import dataclass

from onnxbolt.kernels.config import UNBOUNDED, Family, KernelConfig

_THREADS = 256
# by the numbers that a node carries (custom_ops/kernel.h: ResizeMode, Coordinates, Rounding)
MODES = ("nearest", "linear", "cubic")
COORDINATES = ("half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners")
ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


@dataclass(frozen=True)
class Sampling:
    """Which pixels of the input make one of the output, in the words of ONNX's Resize.

    `rounding` is `nearest_mode` ("round_prefer_floor" in other modes than nearest); `by` is
    "scales" or "sizes", what the node gives.
    """

    mode: str
    coordinates: str
    rounding: str
    by: str

    @property
    def numbers(self) -> list[int]:
        """The attribute `sampling`."""
        return [
            MODES.index(self.mode),
            COORDINATES.index(self.coordinates),
            ROUNDINGS.index(self.rounding),
        ]

    @property
    def words(self) -> list[str]:
        """For the op type's name."""
        return [
            self.mode,
            self.coordinates,
            *([self.rounding] if self.mode == "nearest" else []),
            self.by,
        ]


def config(arch: int) -> KernelConfig:
    """The one configuration: `threadblock` = (threads, 1, 1); the width of access is picked at
    launch."""
    return KernelConfig(
        arch, 0, UNBOUNDED, Family.RESIZE, (_THREADS, 1, 1), align_a=1, align_b=1, align_c=1
    )
