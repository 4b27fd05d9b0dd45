"""The error of a quantized model: by its outputs, or by a user's metric on labelled data."""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

import numpy as np

from onnxbolt.errors import InputError
from onnxbolt.spelling import option

Arrays: TypeAlias = Mapping[str, np.ndarray]
# the score of a batch, from the model's outputs and all arrays of the batch; more is better
Metric: TypeAlias = Callable[[Arrays, Arrays], float]


def loaded(name: str) -> Metric:
    """The function that "module:function" names; modules are also looked for in the current
    directory. Raises InputError if there is none."""
    module, _, function = name.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(
            f"{option('metric', name)} is not found: {error}; write it as module:function"
        ) from error
    if not callable(found):
        raise InputError(f"{option('metric', name)} is no function")
    return found


class Errors:
    """The errors of one model's outputs against another's, over batches. Relative L2 for floats,
    the share of elements that differ for others, infinite where shapes differ, such as those of
    detections; with a metric, by how much its mean falls."""

    _DIGITS = 3  # significant ones of an error

    def __init__(self, metric: Metric | None = None) -> None:
        self._metric = metric
        self._sums = dict[str, np.ndarray]()
        self._shares = set[str]()  # outputs that are no floats

    def add(self, reference: Arrays, found: Arrays, batch: Arrays) -> None:
        """Count one batch."""
        if self._metric is not None:
            scores = [float(self._metric(outputs, batch)) for outputs in (reference, found)]
            self._count("metric", np.array([scores[0] - scores[1], 1.0]))
            return
        for name, values in reference.items():
            if values.shape != found[name].shape:
                self._count(name, np.array([math.inf, 1.0]))
            elif values.dtype.kind in "fV":
                self._count(name, _squares(values, found[name]))
            else:
                self._shares.add(name)
                different = np.count_nonzero(values != found[name])
                self._count(name, np.array([different, values.size], np.float64))

    def _count(self, name: str, numbers: np.ndarray) -> None:
        self._sums[name] = self._sums.get(name, np.zeros(2)) + numbers

    def found(self) -> dict[str, float]:
        """The error of each output, or that by the metric, which is 0 where it does not fall."""
        return {
            name: self._of(name, float(off), float(whole))
            for name, (off, whole) in self._sums.items()
        }

    def _of(self, name: str, off: float, whole: float) -> float:
        if self._metric is not None:
            error = max(off / whole, 0.0) if math.isfinite(off) else math.inf
        elif name in self._shares:
            error = off / whole if whole else off
        else:
            error = math.sqrt(off / whole) if whole else math.sqrt(off)
        return float(f"{error:.{self._DIGITS}g}")


def _squares(reference: np.ndarray, found: np.ndarray) -> np.ndarray:
    wide, other = (values.astype(np.float64) for values in (reference, found))
    # the infinities of a mask are right where both have them
    same = (wide == other) & np.isinf(wide)
    wide, other = (np.where(same, 0.0, values) for values in (wide, other))
    return np.array([np.square(other - wide).sum(), np.square(wide).sum()])


def worst(errors: Mapping[str, float]) -> float:
    """The largest error; infinite if one is no number."""
    return max((math.inf if math.isnan(error) else error for error in errors.values()), default=0.0)
