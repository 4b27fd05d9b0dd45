"""Attention kernels of custom_ops/families/attention/ on the host, and attention in float64."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from onnxbolt.codegen.render import Instance
from onnxbolt.graph.windows import Windows
from onnxbolt.ops.attention.found import Masked, Masking
from tests.custom_ops.host_kernels import compile_kernels
from tests.gpu.device import Attention, HeadsView, ScoreMask
from tests.gpu.device import Windows as WindowsArgument

NO_FIRST, NO_LAST = -(2**31), 2**31 - 1  # a band without bounds
# the order of custom_ops/ops/attention/arguments.h
MASKINGS = (Masking.NONE, Masking.ADDED, Masking.KEPT, Masking.DROPPED)
MASKED = (Masked.PLAIN, Masked.ZERO, Masked.NAN)
LEAST = -(2.0**127)  # the score of a key that Masked.PLAIN excludes


@dataclass(frozen=True, eq=False)
class Case:
    """q [B, S, H, D], k [B, T, G, D], v [B, T, G, E], and all else that decides the answer. With
    `windows` the kernel has them as images, with a `period` a mask of so many batches."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    scale: float
    masking: Masking = Masking.NONE
    mask: np.ndarray = field(default_factory=lambda: np.zeros((1, 1, 1, 1), np.float32))
    masked: Masked = Masked.PLAIN
    band: tuple[int, int, int] = (NO_FIRST, NO_LAST, 0)  # first, last, shift
    windows: Windows | None = None
    period: int = 0

    @property
    def whole_mask(self) -> np.ndarray:
        """The mask without a period."""
        copies = len(self.q) // self.period if self.period else 1
        return np.tile(self.mask, (copies, 1, 1, 1))

    def expected(self) -> np.ndarray:
        """y [B, S, H, E] in float64."""
        (_, s, h, _), (_, t, g, _) = self.q.shape, self.k.shape
        q, k, v = (x.astype(np.float64) for x in (self.q, self.k, self.v))
        k, v = (np.repeat(x, h // g, axis=2) for x in (k, v))
        scores = np.einsum("bshd,bthd->bhst", q, k) * np.float32(self.scale)
        least = LEAST if self.masked is Masked.PLAIN else -np.inf
        if self.masking is Masking.ADDED:
            scores = scores + self.whole_mask.astype(np.float64)
        elif self.masking is not Masking.NONE:
            kept = self.whole_mask.astype(bool) ^ (self.masking is Masking.DROPPED)
            scores = np.where(kept, scores, least)
        first, last, shift = self.band
        distance = np.arange(t) - np.arange(s)[:, None] - shift
        scores = np.where((first <= distance) & (distance <= last), scores, least)
        with np.errstate(invalid="ignore"):
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            weights /= weights.sum(-1, keepdims=True)
        if self.masked is Masked.ZERO:
            weights = np.nan_to_num(weights)
        return np.einsum("bhst,bthe->bshe", weights, v)


class HostAttention:
    """The compiled kernels of some instances."""

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))
        self._library.host_attend.restype = ctypes.c_char_p

    def attend(self, index: int, arguments: Attention, eager: bool = False) -> None:
        """Run the instance at `index`. Raises ValueError with the text of a refusal."""
        if error := self._library.host_attend(index, eager, ctypes.byref(arguments)):
            raise ValueError(error.decode())

    def run(self, index: int, case: Case, eager: bool = False, gap: int = 0) -> np.ndarray:
        """y of the instance at `index`; `gap`: elements between heads. Raises ValueError with the
        text of a refusal. `eager`: asynchronous copies are done as soon as they are issued, else
        as late as they may be."""
        y = np.zeros((*case.q.shape[:3], case.v.shape[3]), case.q.dtype)
        *inputs, y = (_apart(_image(x, case.windows), gap) for x in (case.q, case.k, case.v, y))
        y[...] = np.nan
        (b, s, h, d), (_, t, g, e) = case.q.shape, case.v.shape
        mask = np.broadcast_to(case.mask, (case.period or b, h, s, t))
        strides = [stride // mask.itemsize for stride in mask.strides]
        arguments = Attention(
            *(b, h, g, s, t, d, e, case.scale),
            *map(_view, (*inputs, y)),
            ScoreMask(
                MASKINGS.index(case.masking),
                mask.dtype == np.float32,
                case.mask.ctypes.data,
                *strides,
                case.period,
            ),
            MASKED.index(case.masked),
            *case.band,
            WindowsArgument(*(case.windows.numbers if case.windows else ())),
        )
        self.attend(index, arguments, eager)
        if case.windows:
            y = y[:, case.windows.rows()].reshape(b, s, *y.shape[2:])
        return y.astype(np.float64)


def _image(x: np.ndarray, windows: Windows | None) -> np.ndarray:
    """Windows as the image that they are of, with one axis for its pixels."""
    return windows.image(x, 1) if windows else x


def _apart(x: np.ndarray, gap: int) -> np.ndarray:
    """A copy with NaNs between its heads and behind its positions."""
    b, s, h, d = x.shape
    room = np.full((b, s + 1, h, d + gap), np.nan, x.dtype)
    room[:, :s, :, :d] = x
    return room[:, :s, :, :d]


def _view(x: np.ndarray) -> HeadsView:
    return HeadsView(x.ctypes.data, *(stride // x.itemsize for stride in x.strides[:3]))


def build(instances: Sequence[Instance], directory: Path) -> HostAttention:
    """The kernels of `instances` in a library in `directory`."""
    return HostAttention(compile_kernels("attention.cc", instances, directory))
