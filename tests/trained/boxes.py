"""The boxes that detectors mean by their raw outputs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tests.trained.agreement import Array, Box


def upright_iou(box: Array, others: Array) -> Array:
    """The intersection over union of one box (left, top, right, bottom) with each of others."""
    extent = np.minimum(box[2:], others[:, 2:]) - np.maximum(box[:2], others[:, :2])
    common = np.prod(np.maximum(extent, 0), axis=1)
    areas = np.prod(others[:, 2:] - others[:, :2], axis=1)
    return common / (np.prod(box[2:] - box[:2]) + areas - common)


def suppressed(corners: Array, scores: Array, most: float) -> list[int]:
    """Non-maximum suppression: the indices of the boxes that overlap no better one by more than
    `most`, the best first."""
    left = np.argsort(-scores, kind="stable")
    kept: list[int] = []
    while left.size:
        kept.append(int(left[0]))
        left = left[1:][upright_iou(corners[left[0]], corners[left[1:]]) <= most]
    return kept


def chosen(
    corners: Array, scores: Array, labels: Sequence[str], least: float, most: float
) -> list[Box]:
    """The boxes whose score exceeds `least`, after suppression without regard to labels."""
    likely = np.flatnonzero(scores > least)
    return [
        Box.upright(corners[likely[k]], labels[likely[k]])
        for k in suppressed(corners[likely], scores[likely], most)
    ]


def from_centres(boxes: Array) -> Array:
    """(centre x, centre y, width, height) as (left, top, right, bottom)."""
    half = boxes[:, 2:4] / 2
    return np.concatenate([boxes[:, :2] - half, boxes[:, :2] + half], axis=1)


def grid(width: int, height: int) -> Array:
    """The column and row of each cell, row by row."""
    return np.stack(np.meshgrid(np.arange(width), np.arange(height)), axis=-1).reshape(-1, 2)


def faces(scores: Array, corners: Array, width: int, height: int) -> list[Box]:
    """Ultra-Light's answer (boxes x 2 scores, boxes x 4 corners as shares of the image)."""
    scale = np.array([width, height, width, height])
    return chosen(corners * scale, scores[:, 1], ["face"] * len(scores), 0.7, 0.3)


def of_fastest_det(planes: Array, width: int, height: int) -> list[Box]:
    """FastestDet's answer: for each cell of a grid (first axis: channels) an object's score, its
    place, its size, and the scores of 80 classes."""
    channels, rows, columns = planes.shape
    cells = planes.reshape(channels, -1).T
    scores = cells[:, 0] ** 0.6 * cells[:, 5:].max(axis=1) ** 0.4
    centres = (grid(columns, rows) + np.tanh(cells[:, 1:3])) / (columns, rows)
    sizes = 1 / (1 + np.exp(-cells[:, 3:5]))
    corners = from_centres(np.concatenate([centres, sizes], axis=1))
    labels = [str(best) for best in cells[:, 5:].argmax(axis=1)]
    return chosen(corners * (width, height, width, height), scores, labels, 0.65, 0.45)


def of_yolox(cells: Array, size: int, scale: float) -> list[Box]:
    """YOLOX's answer for a square of `size` pixels: cells of strides 8, 16 and 32 with a box
    relative to the cell, an object's score, and the scores of classes."""
    grids = [grid(size // stride, size // stride) for stride in (8, 16, 32)]
    strides = np.repeat((8, 16, 32), [len(one) for one in grids])[:, None]
    centres = (cells[:, :2] + np.concatenate(grids)) * strides
    sizes = np.exp(cells[:, 2:4]) * strides
    corners = from_centres(np.concatenate([centres, sizes], axis=1)) / scale
    scores = cells[:, 4] * cells[:, 5:].max(axis=1)
    return chosen(corners, scores, [str(k) for k in cells[:, 5:].argmax(axis=1)], 0.3, 0.45)


def plates(rows: Array, scale: float, place: tuple[int, int]) -> list[Box]:
    """The answer of HyperLPR's detector: a box, an object's score, four corners, and the scores of
    plates with one line and with two."""
    scores = rows[:, 4] * rows[:, 13:15].max(axis=1)
    corners = (from_centres(rows) - (*place, *place)) / scale
    likely = np.where(rows[:, 4] > 0.25, scores, 0.0)
    labels = [("one line", "two lines")[k] for k in rows[:, 13:15].argmax(axis=1)]
    return chosen(corners, likely, labels, 0.25, 0.5)
