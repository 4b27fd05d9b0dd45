"""Regression trees, evaluated by numpy for many kernels at once."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from onnxbolt import checks

_MOST_NODES, _MOST_TREES, _MOST_DEPTH = 10**6, 10**4, 64
_LARGEST = 100.0  # value of a leaf, a logarithm: no sum of leaves overflows
Numbers = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, eq=False)
class Trees:
    """A sum of trees, whose nodes lie one behind another. A kernel goes from a node to `left` if
    its feature is at most the threshold, else to `right`; a leaf leads to itself."""

    roots: Numbers
    feature: Numbers
    threshold: Numbers
    left: Numbers
    right: Numbers
    value: Numbers
    depth: int

    @classmethod
    def of(cls, held: Mapping[str, Any], features: int) -> Trees:
        """The trees that a file holds. Raises ValueError for any that would not end, or that ask
        for other than so many features."""
        roots, feature, left, right = (
            [checks.integer(name, number, 0, _MOST_NODES) for number in _list(held, name)]
            for name in ("roots", "feature", "left", "right")
        )
        threshold, value = (
            [_finite(name, number) for number in _list(held, name)]
            for name in ("threshold", "value")
        )
        count = len(feature)
        if not all(len(each) == count for each in (left, right, threshold, value)):
            raise ValueError("its nodes have different numbers of parts")
        if max([*feature, 0]) >= features or max([*roots, *left, *right, 0]) >= max(count, 1):
            raise ValueError("a tree leads to a node or feature that there is none of")
        depths = [0] * count
        for node in reversed(range(count)):  # children lie behind their parents
            if left[node] == right[node] == node:
                continue
            if min(left[node], right[node]) <= node:
                raise ValueError(f"tree node {node} leads backwards")
            depths[node] = 1 + max(depths[left[node]], depths[right[node]])
        depth = max((depths[root] for root in roots), default=0)
        if len(roots) > _MOST_TREES or depth > _MOST_DEPTH:
            raise ValueError(f"{len(roots)} trees of depth {depth} are too many")
        if any(abs(leaf) > _LARGEST for leaf in value):
            raise ValueError(f"a leaf has a value beyond {_LARGEST}")
        index = np.int64
        return cls(
            np.array(roots, index),
            np.array(feature, index),
            np.array(threshold, np.float64),
            np.array(left, index),
            np.array(right, index),
            np.array(value, np.float64),
            depth,
        )

    def sums(self, rows: Numbers) -> Numbers:
        """The sum of each row's leaves, added in the order of the trees, so that it is the same
        everywhere."""
        nodes = np.broadcast_to(self.roots, (len(rows), len(self.roots)))
        kernel = np.arange(len(rows))[:, None]
        for _ in range(self.depth):
            goes_left = rows[kernel, self.feature[nodes]] <= self.threshold[nodes]
            nodes = np.where(goes_left, self.left[nodes], self.right[nodes])
        total = np.zeros(len(rows))
        for tree in range(len(self.roots)):
            total += self.value[nodes[:, tree]]
        return total


def _list(held: Mapping[str, Any], name: str) -> list[Any]:
    if not isinstance(held[name], list) or len(held[name]) > _MOST_NODES:
        raise ValueError(f"{name}: a list of at most {_MOST_NODES} numbers is expected")
    return held[name]


def _finite(name: str, value: object) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):  # type: ignore[arg-type]
        raise ValueError(f"{name}: a finite number is expected")
    return float(value)  # type: ignore[arg-type]
