"""Grouped convolutions on tensor cores: neighbouring groups become one, with weights of zero
between them, until a tile is full.

A group of ResNeXt, RegNet or ShuffleNet has 4 to 112 channels, and a kernel's tile 64 output
channels. Up to there, the products with zeros are made in any case, in the tile's rows or in its
depth: fewer, wider groups are fewer tiles. Multiplied by zeros, a value that is not finite spreads
over the channels of its merged group.
"""

from __future__ import annotations

import numpy as np

from onnxbolt.dtypes import DType

_TILE = 64  # channels
_ACCESS = 8  # channels


def merged(groups: int, c: int, k: int) -> int:
    """The number of groups that kernels compute instead of `groups`, for c input and k output
    channels in all.

    A divisor of `groups`: as many as possible become one of at most 64 channels, a multiple of 8.
    """
    return groups if c == k == groups else together(groups, c, k)  # depthwise ones stay


def together(groups: int, c: int, k: int) -> int:
    """The same, for groups of one channel as well."""

    def fits(joined: int) -> bool:
        widths = (c // groups * joined, k // groups * joined)
        return (
            groups % joined == 0
            and max(widths) <= _TILE
            and not any(width % _ACCESS for width in widths)
        )

    return groups // next((joined for joined in range(groups, 1, -1) if fits(joined)), 1)


def serves(groups: int, c: int, k: int, dtype: DType) -> bool:
    """True if the channels of each merged group are a multiple of 16 bytes; False if no number of
    groups gives that."""
    if groups < 1 or k % groups:
        return False
    count = merged(groups, c, k)
    return not (c // count % dtype.alignment or k // count % dtype.alignment)


def widened(weight: np.ndarray, groups: int, count: int) -> np.ndarray:
    """The weight [K, C/groups, ..] of a convolution with `groups` groups for `count` of them:
    [K, C/count, ..]."""
    if count == groups:
        return weight
    k, width, together = weight.shape[0], weight.shape[1], groups // count
    wide = np.zeros(
        (count, together, k // groups, together, width, *weight.shape[2:]), weight.dtype
    )
    parts = weight.reshape(count, together, k // groups, *weight.shape[1:])
    for i in range(together):
        wide[:, i, :, i] = parts[:, i]
    return wide.reshape(k, together * width, *weight.shape[2:])
