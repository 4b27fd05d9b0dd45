"""Custom-op libraries of other authors, which a user names for a model that needs them: every
session that onnxbolt creates registers them.

A library is code. These are the only ones of others that `optimize` loads (SECURITY.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING

from onnxbolt.errors import LibraryError
from onnxbolt.spelling import option

if TYPE_CHECKING:
    import onnxruntime as ort

_libraries: ContextVar[tuple[str, ...]] = ContextVar("libraries", default=())


@contextmanager
def registered(libraries: Sequence[str | Path]) -> Iterator[None]:
    """A context in which `register` also registers `libraries`. Raises LibraryError for a file that
    ONNX Runtime cannot load as such a library."""
    # a bare name would be looked for among the system's libraries
    paths = tuple(str(Path(path).resolve()) for path in libraries)
    for given, path in zip(libraries, paths, strict=True):
        _check(given, path)
    token = _libraries.set(_libraries.get() + paths)
    try:
        yield
    finally:
        _libraries.reset(token)


def register(options: ort.SessionOptions) -> None:
    """Give a session with `options` the operators of the libraries."""
    for path in _libraries.get():
        options.register_custom_ops_library(path)


def _check(given: str | Path, path: str) -> None:
    import onnxruntime as ort

    try:
        if not Path(path).is_file():
            raise FileNotFoundError("there is no such file")
        ort.SessionOptions().register_custom_ops_library(path)
    except Exception as error:  # the base of all that ONNX Runtime raises
        why = " ".join(str(error).split())
        raise LibraryError(
            f"{option('custom_ops', str(given))}: ONNX Runtime cannot load it as a custom-op"
            f" library ({why})"
        ) from error
