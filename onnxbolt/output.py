"""Where the result goes: everything is written beside its place first, and moved there when all of it is good."""
from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from types import TracebackType

import onnx

from onnxbolt.errors import InputError
from onnxbolt.graph.exporter import save_model


class Output:
    """A staging directory beside `out` for the model, its external data and its library; `commit` moves them into place.

    Leaving the context without `commit` leaves nothing behind. Without `out`, files stay in a temporary directory.
    Raises InputError where `out` is the source or cannot be written to.
    """

    def __init__(self, source: object, out: str | Path | None) -> None:
        self.path = None if out is None else Path(out)
        self._name = self.path.name if self.path else "model.onnx"
        if self.path is None:
            return
        if self.path.is_dir():
            raise InputError(f"{self.path} is a directory; name the file to write")
        if not self.path.parent.is_dir():
            raise InputError(f"{self.path}: directory {self.path.parent} does not exist; create it first")
        if isinstance(source, str | Path) and self.path.exists() and Path(source).exists() and os.path.samefile(source, self.path):
            raise InputError(f"{self.path} is the input itself; an original is never overwritten, choose another output")

    def __enter__(self) -> Output:
        try:
            parent = self.path.parent if self.path else None
            self._staging = Path(tempfile.mkdtemp(prefix=f".{self._name}.", dir=parent))
        except OSError as error:
            raise InputError(f"{self.path}: cannot be written: {error.strerror}; choose another place") from error
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        shutil.rmtree(self._staging, ignore_errors=True)

    @property
    def model(self) -> Path:
        """The staged model."""
        return self._staging / self._name

    @property
    def library(self) -> Path:
        """The staged library; it need not exist."""
        return self.model.with_suffix(".onnxbolt.so")

    def write(self, model: onnx.ModelProto, external: bool) -> None:
        """Stage the model."""
        save_model(model, self.model, external)

    def commit(self) -> None:
        """Move everything into place, the model last: what it names is there before it is."""
        if self.path is None:
            return
        try:
            for staged in sorted(self._staging.iterdir(), key=lambda file: file == self.model):
                os.replace(staged, self.path.with_name(staged.name))
        except OSError as error:
            raise InputError(f"{self.path}: cannot be written: {error.strerror}; make room or choose another place") from error
