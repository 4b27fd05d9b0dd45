"""Text files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from onnxbolt.errors import InputError


def write_whole(path: Path, text: str) -> None:
    """Write beside its place, then move there. Raises InputError where that cannot be done;
    nothing is left then."""
    staged = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        staged.write_text(text)
        os.replace(staged, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            staged.unlink(missing_ok=True)
        raise InputError(
            f"{path}: cannot be written: {error.strerror}; make room or choose another place"
        ) from error


def private_directory(path: Path, remedy: str) -> Path:
    """A directory into which nobody but this user, and root, can write; made where it is missing.

    Raises InputError, which ends in `remedy`, for one of another user or that others may write to,
    and where it cannot be made.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = path.stat()
    except OSError as error:
        raise InputError(f"{path} cannot be made or used: {error.strerror}; {remedy}") from error
    if found.st_uid not in (os.geteuid(), 0):
        raise InputError(
            f"{path} belongs to another user (id {found.st_uid}), who could put code there that"
            f" runs as you; {remedy}"
        )
    if found.st_mode & 0o022:
        raise InputError(
            f"others may write to {path}, and put code there that runs as you: delete it, or run"
            f" `chmod go-w {path}` if you trust all that is in it, or {remedy}"
        )
    return path


def check_size(path: Path, largest: int) -> None:
    """Raises InputError where there is no regular file, or one of more than `largest` bytes: a
    pipe never ends, and memory does."""
    with _readable(path):
        size = path.stat().st_size
        if not path.is_file():
            raise InputError(f"{path}: is no regular file; copy its content to one")
    if size > largest:
        raise InputError(f"{path}: {size} bytes are more than such a file has ({largest} at most)")


def read_whole(path: Path, largest: int) -> str:
    """The file's text. Raises InputError where there is none, or more than `largest` bytes."""
    check_size(path, largest)
    with _readable(path):
        return path.read_text()


def read_lines(path: Path, longest: int) -> Iterator[str]:
    """The file's lines. Raises InputError where it cannot be read, is no text, or has a line of
    more than `longest` characters."""
    with _readable(path), path.open() as file:
        while line := file.readline(longest + 1):
            if len(line) > longest:
                raise InputError(f"{path}: a line has more than {longest} characters")
            yield line


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: is no text file") from error
