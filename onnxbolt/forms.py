"""A tensor's stored form: its layout (channels last, or as ONNX has it), and which original channel
each stored channel is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

# permutations by rank
FIRST_TO_LAST = {3: (0, 2, 1), 4: (0, 2, 3, 1), 5: (0, 2, 3, 4, 1)}
LAST_TO_FIRST = {3: (0, 2, 1), 4: (0, 3, 1, 2), 5: (0, 4, 1, 2, 3)}
# from [N, g, C/g, H, W] to [N, H, W, g, C/g], and back
GROUPS_TO_LAST = (0, 3, 4, 1, 2)


@dataclass(frozen=True)
class Form:
    """How a tensor lies in memory.

    `last`: the channels (axis 1) are stored as the last axis: NHWC, NLC. `channels` has the
    original index for each position of the stored last axis, -1 for padding with zeros; None if
    that axis is stored unchanged. `grouped`: the channels are two axes, both of which are stored
    last, as within a channel shuffle (layout/rules/reshape.py).
    """

    last: bool = False
    channels: tuple[int, ...] | None = None
    grouped: bool = False

    @property
    def padded(self) -> bool:
        """True if some stored channels are zeros of padding."""
        return self.channels is not None and -1 in self.channels

    def order(self, rank: int) -> tuple[int, ...]:
        """The axis in ONNX for each stored axis of a tensor whose channels are last."""
        return GROUPS_TO_LAST if self.grouped else FIRST_TO_LAST[rank]

    def count(self, channels: int) -> int:
        """Stored channels of a tensor that has `channels` in the original."""
        return channels if self.channels is None else len(self.channels)


PLAIN = Form()
CHANNELS_LAST = Form(last=True)
GROUPS_LAST = Form(last=True, grouped=True)


def padded_channels(count: int, multiple: int) -> tuple[int, ...] | None:
    """The map of `count` channels padded up to a multiple; None if no padding is needed."""
    extra = -count % multiple
    return tuple(range(count)) + (-1,) * extra if extra else None


def kept(native: Form, count: int, multiple: int) -> Form:
    """The form of x and y of an op that keeps its `count` channels: the form that x has, if that is
    channels last, otherwise channels last with padding up to a multiple."""
    return native if native.last else Form(True, padded_channels(count, multiple))


def in_accesses(native: Form, count: int, multiple: int) -> Form:
    """The form of an x with `count` channels whose kernel reads so many channels at a time: the one
    that x has, if it suits, otherwise channels last with padding up to a multiple."""
    suits = native.last and native.count(count) % multiple == 0
    return native if suits else Form(True, padded_channels(count, multiple))


def concatenated(parts: Sequence[tuple[tuple[int, ...] | None, int]]) -> tuple[int, ...] | None:
    """The map of a concatenation of tensors, each with its map and its original channel count."""
    if all(channels is None for channels, _ in parts):
        return None
    whole: list[int] = []
    offset = 0
    for channels, count in parts:
        whole.extend(
            c + offset if c >= 0 else -1
            for c in (channels if channels is not None else range(count))
        )
        offset += count
    return tuple(whole)


def take(
    values: np.ndarray, channels: tuple[int, ...] | None, axis: int, fill: float = 0.0
) -> np.ndarray:
    """`values` with `axis` stored by the map; padding holds `fill`."""
    if channels is None:
        return values
    index = np.asarray(channels)
    taken = np.take(values, np.maximum(index, 0), axis=axis)
    where = [slice(None)] * values.ndim
    where[axis] = index < 0  # type: ignore[call-overload]
    taken[tuple(where)] = fill
    return taken


def stored_shape(
    shape: Sequence[int | str | None] | None, form: Form
) -> list[int | str | None] | None:
    """The shape as stored, of a tensor whose ONNX shape is `shape`."""
    if shape is None:
        return None
    stored = [shape[i] for i in form.order(len(shape))] if form.last else list(shape)
    if form.channels is not None:
        stored[-1] = len(form.channels)
    return stored
