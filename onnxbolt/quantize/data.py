"""Calibration data: one .npz file, or a directory of them, read one at a time."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from onnx import ModelProto

from onnxbolt.errors import InputError
from onnxbolt.files import check_regular
from onnxbolt.graph.importer import tensor_type
from onnxbolt.spelling import option
from onnxbolt.verify.feeds import Feeds, graph_inputs, read_feeds

_NAME = "calibration"


class Data:
    """The batches of a file or directory. Iterating reads and checks one file after another, in the
    order of their names, so that the same data give the same scales.

    Raises InputError, also while iterating, for a path without .npz files and for arrays that are
    no inputs of the model.
    """

    def __init__(self, path: Path, model: ModelProto, labelled: bool = False) -> None:
        """`labelled`: files may have arrays that are no inputs of the model."""
        self._model, self._labelled = model, labelled
        self._files = sorted(path.glob("*.npz")) if path.is_dir() else [path]
        if not self._files:
            raise InputError(
                f"{option(_NAME, path)}: the directory has no .npz files; write one for each batch"
                " of inputs"
            )
        for file in self._files:
            check_regular(file)

    def __len__(self) -> int:
        return len(self._files)

    def __iter__(self) -> Iterator[Feeds]:
        for file in self._files:
            feeds = read_feeds(file, self._model, _NAME, self._labelled)
            for value in graph_inputs(self._model):
                _check(file, value.name, feeds[value.name], tensor_type(value.type)[1])
            yield feeds

    def digest(self) -> str:
        """A sum of all arrays, by which a reader of a lock file tells one set of data from
        another."""
        found = hashlib.sha256()
        for feeds in self:
            for name in sorted(feeds):
                array = np.ascontiguousarray(feeds[name])
                found.update(f"{name} {array.dtype} {array.shape};".encode())
                content = array.tolist() if array.dtype == object else array.tobytes()
                found.update(content if isinstance(content, bytes) else repr(content).encode())
        return found.hexdigest()


def _check(file: Path, name: str, array: np.ndarray, shape: list[int | str | None] | None) -> None:
    def refused(fault: str) -> InputError:
        return InputError(f"{option(_NAME, file)}: {name} {fault}")

    if shape is not None:
        fits = len(shape) == array.ndim and all(
            not isinstance(wanted, int) or wanted == size
            for wanted, size in zip(shape, array.shape, strict=False)
        )
        if not fits:
            shown = [size if isinstance(size, int) else size or "?" for size in shape]
            raise refused(
                f"has the shape {list(array.shape)}, the model takes"
                f" [{', '.join(map(str, shown))}]; write batches of this shape"
            )
    if not array.size:
        raise refused(f"is empty: its shape is {list(array.shape)}; leave such batches out")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise refused("has values that are NaN or infinite; leave such batches out")
