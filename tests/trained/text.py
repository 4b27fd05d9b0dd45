"""Text: the boxes that a map of probabilities means, and the characters that a recognizer reads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tests.trained.agreement import Array, Box


def decoded(best: Array, alphabet: Sequence[str], blank: int) -> str:
    """The text of connectionist temporal classification: the best class of each step, repeated
    ones once, blanks left out. `alphabet` has every class but the blank, in order."""
    steps = [int(k) for k in best]
    kept = [k for before, k in zip([-1, *steps], steps, strict=False) if k not in (before, blank)]
    return "".join(alphabet[k - (k > blank)] for k in kept)


def regions(mask: Array) -> list[Array]:
    """The connected regions of a mask, corners counting as connected, each as its pixels' (x, y),
    from the top down."""
    parent: list[int] = []  # each run of pixels in a row has one; runs are joined as rows are read
    runs: list[tuple[int, int, int]] = []  # row, first column, column behind the last

    def root(k: int) -> int:
        while parent[k] != k:
            parent[k] = parent[parent[k]]
            k = parent[k]
        return k

    above: range = range(0)
    for y, row in enumerate(mask):
        steps = np.flatnonzero(np.diff(row, prepend=False, append=False))
        here = range(len(runs), len(runs) + len(steps) // 2)
        for k, (start, end) in zip(here, steps.reshape(-1, 2), strict=True):
            runs.append((y, int(start), int(end)))
            parent.append(k)
            for other in above:
                if runs[other][1] <= end and start <= runs[other][2]:
                    one, two = sorted((root(other), root(k)))
                    parent[two] = one
        above = here
    found: dict[int, list[Array]] = {}
    for k, (y, start, end) in enumerate(runs):
        pixels = np.stack([np.arange(start, end), np.full(end - start, y)], axis=1)
        found.setdefault(root(k), []).append(pixels)
    return [np.concatenate(pixels) for pixels in found.values()]


def hull(points: Array) -> Array:
    """The corners of the points' convex hull in turn (Andrew's monotone chain)."""
    ordered = [tuple(point) for point in np.unique(points, axis=0)]

    def half(chain: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
        kept: list[tuple[float, float]] = []
        for x, y in chain:
            while len(kept) > 1:
                (x0, y0), (x1, y1) = kept[-2:]
                if (x1 - x0) * (y - y0) - (y1 - y0) * (x - x0) > 0:
                    break
                kept.pop()
            kept.append((x, y))
        return kept[:-1]

    return np.array(half(ordered) + half(ordered[::-1]) or ordered, np.float64)


def least_rectangle(points: Array) -> Array:
    """The corners of the rectangle of the least area around the points (top left, top right,
    bottom right, bottom left for an angle below 45 degrees). One side of it lies on the hull."""
    corners = hull(points)
    edges = np.roll(corners, -1, axis=0) - corners
    best: tuple[float, Array] | None = None
    for angle in np.unique(np.arctan2(edges[:, 1], edges[:, 0]) % (np.pi / 2)):
        turn = angle - np.pi / 2 if angle > np.pi / 4 else angle
        axes = np.array([(np.cos(turn), np.sin(turn)), (-np.sin(turn), np.cos(turn))])
        along = corners @ axes.T
        (left, top), (right, bottom) = along.min(axis=0), along.max(axis=0)
        area = (right - left) * (bottom - top)
        if best is None or area < best[0]:
            turned = np.array([(left, top), (right, top), (right, bottom), (left, bottom)])
            best = area, turned @ axes
    assert best is not None
    return best[1]


def grown(rectangle: Array, ratio: float) -> Array:
    """The rectangle with each side moved outwards by area x ratio / perimeter."""
    across, down = rectangle[1] - rectangle[0], rectangle[3] - rectangle[0]
    width, height = np.linalg.norm(across), np.linalg.norm(down)
    by = width * height * ratio / (2 * (width + height))
    right, below = across / max(width, 1e-9) * by, down / max(height, 1e-9) * by
    return rectangle + np.array([-right - below, right - below, right + below, below - right])


def text_boxes(probabilities: Array, scale: tuple[float, float], ratio: float) -> list[Box]:
    """The boxes of lines in a map of probabilities, in the image's coordinates; `scale` is the
    map's size divided by the image's (x, y). Regions above 0.3 count whose mean is above 0.5."""
    found = []
    for region in regions(probabilities > 0.3):
        if probabilities[region[:, 1], region[:, 0]].mean() <= 0.5:
            continue
        # a pixel is a square, not a point
        ends = np.concatenate([region + np.array(by) for by in ((0, 0), (1, 0), (0, 1), (1, 1))])
        rectangle = least_rectangle(ends)
        sides = np.linalg.norm(rectangle[[1, 3]] - rectangle[0], axis=1)
        if sides.min() > 3:
            found.append(Box(grown(rectangle, ratio) / scale, "text"))
    return found


def upright_size(corners: Array) -> tuple[Array, int, int]:
    """The corners of a line of text from its top left, and its width and height; a line that is
    half as high again as wide is read from the top down."""
    width, height = (round(float(np.linalg.norm(corners[k] - corners[0]))) for k in (1, 3))
    if height >= 1.5 * width:
        corners, width, height = np.roll(corners, -1, axis=0), height, width
    return corners, max(width, 1), max(height, 1)
