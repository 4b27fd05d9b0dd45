"""Writes the results: all files are staged beside their places, and moved there when all of them
are good."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from types import TracebackType

import onnx

from onnxbolt.errors import InputError
from onnxbolt.files import check_regular
from onnxbolt.graph.importer import external_files
from onnxbolt.graph.saving import data_file, save_model
from onnxbolt.graph.weights import Weights
from onnxbolt.runtime import get_library_path
from onnxbolt.spelling import option


class Output:
    """A staging directory beside `out` for the model, its external data and its library; `commit`
    moves them into place.

    Without `commit`, leaving the context deletes the staged files. Without `out`, files stay in a
    temporary directory. Raises InputError if the source is no regular file, if `out` is the source
    or a file with its data, is not a regular file, or cannot be written to, and if `lock`, which is
    written later, would replace a file of a model.
    """

    def __init__(
        self, source: object, out: str | Path | None, lock: str | Path | None = None
    ) -> None:
        self.path, self._source = None if out is None else Path(out), source
        self._name = self.path.name if self.path else "model.onnx"
        if self.path is None:
            return
        if isinstance(source, str | Path):
            check_regular(Path(source))
        check_apart("lock", None if lock is None else Path(lock), source, out)
        if self.path.is_dir():
            raise InputError(f"{self.path} is a directory; name the file to write")
        if not self.path.parent.is_dir():
            raise InputError(
                f"{self.path}: directory {self.path.parent} does not exist; create it first"
            )
        if self.path.exists() and not self.path.is_file():
            raise InputError(
                f"{self.path} is a device or a pipe, which a file would replace; name a"
                " regular file"
            )
        self._spare(self.path)

    def __enter__(self) -> Output:
        try:
            parent = self.path.parent if self.path else None
            self._staging = Path(tempfile.mkdtemp(prefix=f".{self._name}.", dir=parent))
        except OSError as error:
            raise InputError(
                f"{self.path}: cannot be written: {error.strerror}; choose another place"
            ) from error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        shutil.rmtree(self._staging, ignore_errors=True)

    @property
    def model(self) -> Path:
        """The staged model."""
        return self._staging / self._name

    @property
    def quantized(self) -> Path:
        """The staged model that calibration made; it need not exist."""
        return quantized_path(self.model)

    @property
    def quantized_place(self) -> Path | None:
        """The place that it gets; None if nothing is written."""
        return None if self.path is None else quantized_path(self.path)

    @property
    def library(self) -> Path:
        """The staged library; it need not exist."""
        return get_library_path(self.model)

    def write(self, model: onnx.ModelProto, large: Weights, external: bool) -> None:
        """Stage the model; `large` has the data that its initializers lack."""
        save_model(model, self.model, external, large)

    @property
    def bytes_read(self) -> int:
        """The bytes of the source's files; 0 for a model in memory."""
        return _bytes(self._read)

    @property
    def bytes_staged(self) -> int:
        """The bytes of the staged model and of its external data."""
        return _bytes({self.model, data_file(self.model)})

    @property
    def library_bytes(self) -> int:
        """The bytes of the staged library; 0 if there is none."""
        return _bytes({self.library})

    def commit(self) -> None:
        """Move all files into place, the model last, so that the files it refers to are there
        before it."""
        if self.path is None:
            return
        places = {file: self.path.with_name(file.name) for file in self._staging.iterdir()}
        for place in places.values():
            self._spare(place)
        try:
            for staged in sorted(places, key=lambda file: file == self.model):
                os.replace(staged, places[staged])
        except OSError as error:
            raise InputError(
                f"{self.path}: cannot be written: {error.strerror}; make room or choose another"
                " place"
            ) from error

    @cached_property
    def _read(self) -> set[Path]:
        return _files(self._source)

    def _spare(self, place: Path) -> None:
        """Raises InputError if a file of the source would be overwritten by the one written to
        `place`."""
        if place.exists() and _is_among(place, self._read):
            raise InputError(
                f"{place} is the input itself or holds its weights, and the original is"
                " never overwritten; choose another output"
            )


def quantized_path(out: Path) -> Path:
    """The place of the model that calibration made, beside the optimized one."""
    return out.with_suffix(f".qdq{out.suffix}")


def check_apart(argument: str, path: Path | None, source: object, out: str | Path | None) -> None:
    """Raises InputError if a further result, which the option `argument` names, cannot be written
    to `path`, or would replace a file of a model: of the source, or of the result at `out`."""
    if path is None:
        return
    if path.is_dir() or not path.parent.is_dir():
        raise InputError(
            f"{option(argument, path)}: not the path of a file in an existing directory;"
            " create the directory or choose another path"
        )
    if not os.access(path.parent, os.W_OK):
        raise InputError(
            f"{option(argument, path)}: the directory {path.parent} cannot be written to; choose"
            " another path"
        )
    written = set() if out is None else {Path(out), data_file(Path(out)), get_library_path(out)}
    if out is not None:
        written.add(quantized_path(Path(out)))
    if path.resolve() in {place.resolve() for place in written} or (
        path.exists() and _is_among(path, _files(source))
    ):
        raise InputError(
            f"{option(argument, path)}: a model is read from or written to this path; choose"
            " another one"
        )


def _files(model: object) -> set[Path]:
    """The files of a model that is given by its path."""
    return {Path(model), *external_files(Path(model))} if isinstance(model, str | Path) else set()


def _bytes(files: Iterable[Path]) -> int:
    return sum(file.stat().st_size for file in files if file.is_file())


def _is_among(place: Path, files: set[Path]) -> bool:
    return any(file.exists() and os.path.samefile(file, place) for file in files)
