"""Kinds of random float inputs. A model may be ill-conditioned on noise and well-conditioned on
inputs that look like its real ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

Shape: TypeAlias = tuple[int, ...]
_CELL = 16  # pixels between the points that a smooth image runs through


@dataclass(frozen=True)
class Draw:
    """A kind of random float inputs: a name, and a function from a generator and a shape to float64
    values."""

    name: str
    values: Callable[[np.random.Generator, Shape], np.ndarray]


def image(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    """Smooth from 0 to 1 along height and width; each image with a brightness and a contrast of its
    own.

    Height and width are the last two axes, or those before at most four channels. Tensors of fewer
    than three axes are uniform.
    """
    if len(shape) < 3 or 0 in shape:
        return rng.random(shape)
    channels_last = len(shape) == 4 and shape[-1] <= 4
    *leading, height, width = (shape[0], shape[3], shape[1], shape[2]) if channels_last else shape
    coarse = rng.random((*leading, height // _CELL + 2, width // _CELL + 2))
    smooth = np.einsum("hi,...ij,wj->...hw", _ramps(height), coarse, _ramps(width))
    lows, highs = np.sort(rng.random((2, shape[0], *(1,) * (len(shape) - 1))), axis=0)
    smooth = lows + (highs - lows) * smooth
    return np.moveaxis(smooth, 1, -1) if channels_last else smooth


def _ramps(size: int) -> np.ndarray:
    """[size, points]: weights of linear interpolation, by which each pixel mixes the two points
    that it lies between."""
    places = np.arange(size) / _CELL
    return np.maximum(0.0, 1.0 - np.abs(places[:, None] - np.arange(size // _CELL + 2)))


NORMAL = Draw("standard normal", lambda rng, shape: rng.standard_normal(shape))
# images first: most models whose answers hang on details were trained on them
OTHERS = (
    Draw("image-like (smooth, from 0 to 1)", image),
    Draw("image-like (smooth, from -2 to 2)", lambda rng, shape: 4 * image(rng, shape) - 2),
    Draw("uniform (from 0 to 1)", lambda rng, shape: rng.random(shape)),
    Draw("small (normal, 0.05)", lambda rng, shape: 0.05 * rng.standard_normal(shape)),
    Draw("image-like (smooth, from 0 to 255)", lambda rng, shape: 255 * image(rng, shape)),
    Draw("large (normal, 10)", lambda rng, shape: 10 * rng.standard_normal(shape)),
)
