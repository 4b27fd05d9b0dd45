"""The ways in which a Resize or GridSample samples its input, in ONNX's words and as the numbers
that a node holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# by the numbers that a node carries (custom_ops/runtime/declarations.h)
MODES = ("nearest", "linear", "cubic")
COORDINATES = ("half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners")
ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
# how GridSample samples, and what lies outside of an image
SAMPLE_MODES = ("nearest", "linear")
OUTSIDE = ("zeros", "border", "reflection")


@dataclass(frozen=True)
class Sampling:
    """The pixels of the input from which a Resize computes an output pixel, in ONNX's words.

    `rounding` is `nearest_mode` ("round_prefer_floor" in other modes than nearest). `by` says where
    height and width are from: the attributes "scales" or "sizes", or the node's second input, which
    has the sizes that a Resize of ONNX takes ("given"), or is a tensor of such a height and width
    ("like").
    """

    mode: str
    coordinates: str
    rounding: str
    by: str

    @property
    def numbers(self) -> list[int]:
        """The values of the attribute `sampling`."""
        return [
            MODES.index(self.mode),
            COORDINATES.index(self.coordinates),
            ROUNDINGS.index(self.rounding),
        ]

    @property
    def words(self) -> list[str]:
        """The words in the op type's name."""
        return [
            self.mode,
            self.coordinates,
            *([self.rounding] if self.mode == "nearest" else []),
            self.by,
        ]


def resampled(attributes: Mapping[str, object]) -> tuple[str, str, str] | None:
    """Mode, coordinates and rounding of a Resize with these attributes, None where no kernel has
    them: antialiasing averages over as many pixels as a scale covers, and tf_crop_and_resize fills
    in what lies outside of the image."""
    if "axes" in attributes or attributes.get("antialias", 0):
        return None
    if attributes.get("keep_aspect_ratio_policy", "stretch") != "stretch":
        return None
    mode = str(attributes.get("mode", MODES[0]))
    coordinates = str(attributes.get("coordinate_transformation_mode", COORDINATES[0]))
    rounding = str(attributes.get("nearest_mode", ROUNDINGS[0]))
    if mode not in MODES or coordinates not in COORDINATES or rounding not in ROUNDINGS:
        return None
    return mode, coordinates, rounding if mode == "nearest" else ROUNDINGS[0]
