"""Images as the models' users prepare them: bilinear sampling without a filter, as OpenCV's
resize does it by default."""

from __future__ import annotations

import io

import numpy as np
import numpy.typing as npt
from PIL import Image

Pixels = npt.NDArray[np.uint8]  # height x width x 3, red first
Tensor = npt.NDArray[np.float32]  # 1 x 3 x height x width


def decoded(data: bytes) -> Pixels:
    """The image of a JPEG, PNG or WebP file."""
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def resized(image: Pixels, width: int, height: int) -> Pixels:
    rows, columns = image.shape[:2]
    return cropped(
        image, np.array([(0, 0), (columns, 0), (columns, rows), (0, rows)]), width, height
    )


def cropped(image: Pixels, corners: npt.NDArray[np.float64], width: int, height: int) -> Pixels:
    """The parallelogram with these corners (top left, top right, bottom right, bottom left) as an
    upright image."""
    origin, right, _, down = np.asarray(corners, np.float64)
    across, along = (right - origin) / width, (down - origin) / height
    matrix = (across[0], along[0], origin[0], across[1], along[1], origin[1])
    sampled = Image.fromarray(image).transform(
        (width, height), Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR
    )
    return np.asarray(sampled)


def letterboxed(
    image: Pixels, size: int, fill: int, centred: bool
) -> tuple[Pixels, float, tuple[int, int]]:
    """The image in a square of `size` pixels with its proportions kept, the scale, and the place
    (x, y) of its top left corner."""
    scale = min(size / image.shape[0], size / image.shape[1])
    height, width = (int(extent * scale) for extent in image.shape[:2])
    x, y = ((size - width) // 2, (size - height) // 2) if centred else (0, 0)
    square = np.full((size, size, 3), fill, np.uint8)
    square[y : y + height, x : x + width] = resized(image, width, height)
    return square, scale, (x, y)


def tensor(
    image: Pixels,
    mean: tuple[float, ...] | float = 0.0,
    deviation: tuple[float, ...] | float = 1.0,
    blue_first: bool = False,
) -> Tensor:
    """(image - mean) / deviation, channels first, as a batch of one; `mean` and `deviation` are in
    the order of the tensor's channels."""
    ordered = image[..., ::-1] if blue_first else image
    values = (ordered - np.asarray(mean, np.float32)) / np.asarray(deviation, np.float32)
    return np.ascontiguousarray(values.transpose(2, 0, 1)[None], np.float32)
