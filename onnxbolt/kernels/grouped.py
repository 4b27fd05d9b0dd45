"""Grouped convolutions on tensor cores: neighbouring groups become one, with weights of zero between them, until a tile is full.

A group of ResNeXt, RegNet or ShuffleNet has 4 to 112 channels, and a tile of an implicit GEMM some 64. The same convolution with
fewer, wider groups reads and writes the same bytes; its additional products are free where the memory is the limit. Multiplied by
zeros, a value that is not finite spreads over the channels of its merged group.
"""
from __future__ import annotations

import numpy as np

from onnxbolt.dtypes import DType

_FULL = 48  # channels, on both sides: from here on tiles waste little
_MOST = 128  # beyond, the additional products cost more than full tiles save


def merged(groups: int, c: int, k: int) -> int:
    """The number of groups that kernels compute instead of `groups`, for c input and k output channels in all.

    A divisor of `groups`: as many groups as are at least 48 channels wide, unless they would be wider than 128.
    """
    if groups == 1 or c == k == groups:  # dense, or depthwise
        return groups
    together = next((n for n in range(1, groups + 1) if groups % n == 0 and n * min(c, k) >= _FULL * groups), groups)
    return groups // together if together * max(c, k) <= _MOST * groups else groups


def serves(groups: int, c: int, k: int, dtype: DType) -> bool:
    """Whether each merged group's channels are whole accesses of 16 bytes."""
    count = merged(groups, c, k)
    return not (c // count % dtype.alignment or k // count % dtype.alignment)


def widened(weight: np.ndarray, groups: int, count: int) -> np.ndarray:
    """The weight [K, C/groups, ..] of a convolution with `groups` groups for `count` of them: [K, C/count, ..]."""
    if count == groups:
        return weight
    k, width, together = weight.shape[0], weight.shape[1], groups // count
    wide = np.zeros((count, together, k // groups, together, width, *weight.shape[2:]), weight.dtype)
    parts = weight.reshape(count, together, k // groups, *weight.shape[1:])
    for i in range(together):
        wide[:, i, :, i] = parts[:, i]
    return wide.reshape(k, together * width, *weight.shape[2:])
