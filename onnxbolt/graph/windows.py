"""Windows of images: a tensor [batch x windows, positions, ..] whose rows are the pixels of an
image [batch, height, width, ..] in another order. Swin's are shifted in every second layer: a
window that reaches over an edge goes on at the opposite one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Windows:
    """Position (i, j) of window (a, b) is the pixel ((a * window_height + i + shift_y) % height,
    (b * window_width + j + shift_x) % width)."""

    height: int
    width: int
    window_height: int  # divides `height`
    window_width: int
    shift_y: int = 0
    shift_x: int = 0

    @property
    def pixels(self) -> int:
        """Pixels of an image."""
        return self.height * self.width

    @property
    def positions(self) -> int:
        """Positions of a window."""
        return self.window_height * self.window_width

    @property
    def count(self) -> int:
        """Windows of an image."""
        return self.pixels // self.positions

    @property
    def keep_order(self) -> bool:
        """True if the rows are the pixels in their order."""
        rows = self.rows()
        return np.array_equal(rows.reshape(-1), np.arange(rows.size))

    @property
    def numbers(self) -> tuple[int, ...]:
        """The fields, as attributes have them."""
        return (
            *(self.height, self.width, self.window_height, self.window_width),
            *(self.shift_y, self.shift_x),
        )

    def rows(self) -> np.ndarray:
        """The pixel y * width + x at each position of each window: int64 [count, positions]."""
        pixels = np.arange(self.pixels).reshape(self.height, self.width)
        shifted = np.roll(pixels, (-self.shift_y, -self.shift_x), (0, 1))
        down, across = self.height // self.window_height, self.width // self.window_width
        apart = shifted.reshape(down, self.window_height, across, self.window_width)
        return apart.transpose(0, 2, 1, 3).reshape(self.count, self.positions)

    def back(self) -> np.ndarray:
        """The row, window * positions + position, of each pixel: int64 [height * width]."""
        return np.argsort(self.rows().reshape(-1))

    def image(self, values: np.ndarray, axes: int) -> np.ndarray:
        """An array [batch x windows, positions, ..] in the image's order: [batch, height, width,
        ..], or with one axis for pixels if `axes` is 1. Raises ValueError if it does not fit."""
        if values.shape[1:2] != (self.positions,) or values.shape[0] % self.count:
            raise ValueError(f"shape {values.shape} does not fit {self}")
        size = (self.height, self.width) if axes == 2 else (self.pixels,)
        rows = values.reshape(-1, self.pixels, *values.shape[2:])[:, self.back()]
        return rows.reshape(rows.shape[0], *size, *values.shape[2:])


def fitted(rows: np.ndarray, width: int = 0) -> Windows | None:
    """The windows whose `rows()` these are, of images of `width` pixels (0: of any width); None if
    there are none."""
    if rows.ndim != 2 or not np.array_equal(np.sort(rows, axis=None), np.arange(rows.size)):
        return None
    widths = [width] if width else _divisors(rows.size)
    return next((each for each in _sizes(rows, widths) if np.array_equal(each.rows(), rows)), None)


def _sizes(rows: np.ndarray, widths: Sequence[int]) -> Iterator[Windows]:
    """Windows that begin with the first pixel of `rows`."""
    if not rows.size:
        return
    positions, first = rows.shape[1], int(rows[0, 0])
    for width in widths:
        for window_width in _divisors(positions):
            height, window_height = rows.size // width, positions // window_width
            if width % window_width == 0 and height % window_height == 0:
                shift_y, shift_x = divmod(first, width)
                yield Windows(height, width, window_height, window_width, shift_y, shift_x)


def _divisors(number: int) -> list[int]:
    return [each for each in range(1, number + 1) if number % each == 0]
