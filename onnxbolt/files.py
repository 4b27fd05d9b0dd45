"""Text files that appear whole or not at all."""
from __future__ import annotations

import contextlib
import os
from pathlib import Path

from onnxbolt.errors import InputError


def write_whole(path: Path, text: str) -> None:
    """Write beside its place, then move there. Raises InputError where that cannot be done; nothing is left then."""
    staged = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        staged.write_text(text)
        os.replace(staged, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            staged.unlink(missing_ok=True)
        raise InputError(f"{path}: cannot be written: {error.strerror}; make room or choose another place") from error


def read_whole(path: Path) -> str:
    """The file's text. Raises InputError where there is none."""
    try:
        return path.read_text()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: is no text file") from error
