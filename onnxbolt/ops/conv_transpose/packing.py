"""The weight of a transposed convolution as that of a convolution that makes all phases."""

from __future__ import annotations

import math

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt import grouped
from onnxbolt.candidates import Anchor
from onnxbolt.forms import Form, take
from onnxbolt.graph.edit import Derived, derived
from onnxbolt.ops.base import Tensors
from onnxbolt.ops.conv_transpose.geometry import Axis, axes_of


def packed_weight(anchor: Anchor, reads: Form, writes: Form, tensors: Tensors) -> gs.Constant:
    """[groups x phases x K/groups, *taps, C/groups], channels stored as in `reads` and `writes`."""
    weight, axes = anchor.weight, axes_of(anchor.node)

    def stored(values: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(_arranged(values, anchor, axes, reads, writes))

    def arrange() -> np.ndarray | Derived:
        like = stored(np.broadcast_to(np.zeros((), weight.dtype), weight.shape))
        return derived(weight, stored, like.dtype, like.shape)

    key = (anchor.op, axes, reads.channels, writes.channels, anchor.groups)
    return tensors.packed(weight, key, arrange)


def repeated(anchor: Anchor, vector: np.ndarray) -> np.ndarray:
    """A vector of the result's channels for the columns of all phases."""
    phases = math.prod(axis.stride for axis in axes_of(anchor.node))
    groups = vector.reshape(anchor.kernel_groups, 1, -1)
    return np.repeat(groups, phases, axis=1).reshape(-1)


def _arranged(
    values: np.ndarray, anchor: Anchor, axes: tuple[Axis, ...], reads: Form, writes: Form
) -> np.ndarray:
    groups, count = anchor.groups, anchor.kernel_groups
    apart = values.reshape(groups, -1, *values.shape[1:]).swapaxes(1, 2)
    filters = apart.reshape(-1, *apart.shape[2:])  # [K, C/groups, *filter]
    filters = grouped.widened(filters, groups, count)
    filters = take(take(filters, reads.channels, 1), writes.channels, 0)
    return by_phases(filters, count, axes)


def by_phases(filters: np.ndarray, groups: int, axes: tuple[Axis, ...]) -> np.ndarray:
    """Filters [K, C/groups, *filter] as [groups x phases x K/groups, *taps, C/groups]."""
    filters = filters.reshape(groups, -1, *filters.shape[1:])
    for i, axis in enumerate(axes):  # each axis of the filter becomes taps and phases
        filters = _by_taps(filters, 3 + 2 * i, axis)
    taps, phases = range(3, filters.ndim, 2), range(4, filters.ndim, 2)
    filters = filters.transpose(0, *phases, 1, *taps, 2)
    return filters.reshape(-1, *filters.shape[2 + len(axes) :])


def _by_taps(filters: np.ndarray, at: int, axis: Axis) -> np.ndarray:
    """`filters` with axis `at` as taps and phases. A convolution meets the last tap first."""
    shape = list(filters.shape)
    shape[at] = axis.taps * axis.stride
    whole = np.zeros(shape, filters.dtype)
    places = [slice(None)] * filters.ndim
    places[at] = slice(axis.front, axis.reach, axis.dilation)
    whole[tuple(places)] = filters
    apart = whole.reshape(*shape[:at], axis.taps, axis.stride, *shape[at + 1 :])
    return np.flip(apart, at)
