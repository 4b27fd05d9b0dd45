"""Which Resizes of ONNX a kernel computes, and what they say of height and width."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from onnxbolt.graph.edit import constant_integers
from onnxbolt.sampling import COORDINATES, MODES, ROUNDINGS, Sampling


def sampling_of(node: gs.Node) -> Sampling | None:
    """How a kernel resizes as the node does, None where it does not: antialiasing averages over as
    many pixels as a scale covers, and tf_crop_and_resize fills in what lies outside of the
    image."""
    attributes = node.attrs
    if "axes" in attributes or attributes.get("antialias", 0):
        return None
    if attributes.get("keep_aspect_ratio_policy", "stretch") != "stretch":
        return None
    mode, rounding = (
        attributes.get("mode", "nearest"),
        attributes.get("nearest_mode", "round_prefer_floor"),
    )
    coordinates = attributes.get("coordinate_transformation_mode", "half_pixel")
    if mode not in MODES or coordinates not in COORDINATES or rounding not in ROUNDINGS:
        return None
    by = "scales" if scales_of(node) else "sizes" if sizes_of(node) else None
    return (
        Sampling(mode, coordinates, rounding if mode == "nearest" else ROUNDINGS[0], by)
        if by
        else None
    )


def scales_of(node: gs.Node) -> list[float] | None:
    """The factors of height and width, if images and channels stay."""
    scales = constant_integers(node, 2) or []
    return (
        [float(scale) for scale in scales[2:]]
        if len(scales) == 4 and scales[:2] == [1, 1]
        else None
    )


def sizes_of(node: gs.Node) -> list[int] | None:
    """As inference has found them, from constants or not, where images and channels are known to
    stay."""
    x, y = node.inputs[0].shape, node.outputs[0].shape
    if len(node.inputs) < 4 or y is None or None in y[:2] or list(y[:2]) != list(x[:2]):
        return None
    return list(y[2:]) if all(isinstance(size, int) for size in y[2:]) else None
