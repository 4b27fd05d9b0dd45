"""Text files that are written completely or not at all, and checked before they are read."""

from __future__ import annotations

import contextlib
import gzip
import os
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from onnxbolt.errors import InputError

_GZIP = b"\x1f\x8b"  # the first bytes of a compressed file


def write_whole(path: Path, text: str | bytes) -> None:
    """Write a temporary file beside `path`, then move it there. Raises InputError where that fails,
    and leaves no other file then, nor where a signal ends it."""
    content = text if isinstance(text, bytes) else text.encode()
    staged = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        staged.write_bytes(content)
        os.replace(staged, path)
    except OSError as error:
        raise InputError(
            f"{path}: cannot be written: {error.strerror}; make room or choose another place"
        ) from error
    finally:
        with contextlib.suppress(OSError):
            staged.unlink(missing_ok=True)


def private_directory(path: Path, remedy: str) -> Path:
    """A directory that only this user and root can write to; created if it is missing.

    Raises InputError, which ends in `remedy`, if the directory belongs to another user, if others
    may write to it, or if it cannot be created.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = path.stat()
    except OSError as error:
        raise InputError(f"{path} cannot be created or used: {error.strerror}; {remedy}") from error
    if not hasattr(os, "geteuid"):  # Windows: lists say who may write, and not these bits
        return path
    if found.st_uid not in (os.geteuid(), 0):
        raise InputError(
            f"{path} belongs to another user (id {found.st_uid}), who could put code there that"
            f" runs as you; {remedy}"
        )
    if found.st_mode & 0o022:
        raise InputError(
            f"other users may write to {path} and put code there that runs as you: delete"
            f" it, or run `chmod go-w {path}` if you trust all that is in it, or {remedy}"
        )
    return path


def check_regular(path: Path) -> int:
    """The bytes of a regular file. Raises InputError if `path` is none: a pipe might never begin or
    end."""
    with _readable(path):
        found = path.stat()
    if stat.S_ISDIR(found.st_mode):
        raise InputError(f"{path}: is a directory, not a regular file; name a file")
    if not stat.S_ISREG(found.st_mode):
        raise InputError(f"{path}: is not a regular file; copy its content to one")
    return found.st_size


def check_size(path: Path, largest: int) -> None:
    """Raises InputError unless `path` is a regular file of at most `largest` bytes, which its
    content would fill the memory with."""
    size = check_regular(path)
    if size > largest:
        raise InputError(f"{path}: is too large: {size} bytes, and at most {largest} are read")


def read_whole(path: Path, largest: int) -> str:
    """The file's text. Raises InputError as `check_size` does, and if the file is not text."""
    check_size(path, largest)
    with _readable(path):
        return path.read_text(encoding="utf-8")


def read_lines(path: Path, longest: int, largest: int) -> Iterator[str]:
    """The lines of a file, which gzip may have compressed. Raises InputError if it cannot be read,
    is not text, has a line of more than `longest` characters, or more than `largest` of them in
    all."""
    with _readable(path), _text(path) as file:
        total = 0
        while line := file.readline(longest + 1):
            total += len(line)
            if len(line) > longest:
                raise InputError(f"{path}: a line has more than {longest} characters")
            if total > largest:
                raise InputError(f"{path}: has more than {largest} characters")
            yield line


def _text(path: Path) -> IO[str]:
    """The file opened as text, decompressed if gzip has compressed it."""
    with path.open("rb") as file:
        compressed = file.read(len(_GZIP)) == _GZIP
    return gzip.open(path, "rt", encoding="utf-8") if compressed else path.open(encoding="utf-8")


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise InputError(
            f"{path}: cannot be read: {error.strerror}; name a file that exists"
        ) from error
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise InputError(f"{path}: its compressed content is damaged: {error}") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: is not a text file") from error
