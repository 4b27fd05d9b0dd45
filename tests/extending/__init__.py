"""Extensions, each in a folder of its own, and what each goes through."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from onnxbolt.extensions import Extension, register, unregister


@contextmanager
def extended_by(*extensions: Extension) -> Iterator[None]:
    """The extensions are registered within."""
    for extension in extensions:
        register(extension)
    try:
        yield
    finally:
        for extension in extensions:
            unregister(extension)
