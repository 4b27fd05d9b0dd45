"""The cache of compiled files on disk: objects, and libraries of candidates. The least recently
used are removed when the cache grows too large.

An entry's modification time is the time of its last use: each use touches it (`used`), since file
systems record times of reading unreliably. Entries of the last hour stay whatever their size, since
a running build may need them.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from onnxbolt.errors import InputError
from onnxbolt.options import cache_directory, cache_size

KEPT_SECONDS = 3600.0


@dataclass(frozen=True)
class Entry:
    """A directory with a translation unit's source, log and object, or a file beside the
    libraries of candidates."""

    kind: str  # "object", "library", or "record" (the result of a candidate)
    path: Path
    size: int  # bytes
    used: float  # seconds since the epoch


def objects() -> Path:
    """The directory that holds an entry for each translation unit."""
    return cache_directory() / "objects"


def candidates() -> Path:
    """The directory of libraries and records of candidates."""
    return cache_directory() / "candidates"


def lock() -> FileLock:
    """The lock that a process holds while it compiles or removes compiled files."""
    return FileLock(cache_directory() / "compile.lock")


def used(path: Path) -> Path:
    """Note that an entry is used now, and return it."""
    with contextlib.suppress(OSError):  # this user may have no permission to write the cache
        os.utime(path)
    return path


def entries() -> list[Entry]:
    """All entries of the cache, the least recently used first."""
    return sorted(
        (*_entries(objects(), "object"), *_entries(candidates())),
        key=lambda entry: (entry.used, entry.path),
    )


def trim() -> None:
    """Remove the least recently used entries until the rest is no larger than ONNXBOLT_CACHE_SIZE.
    The caller holds the lock."""
    found, limit = entries(), cache_size()
    total = sum(entry.size for entry in found)
    old = [entry for entry in found if entry.used < time.time() - KEPT_SECONDS]
    doomed = []
    for entry in old:
        if total <= limit:
            break
        total -= entry.size
        doomed.append(entry)
    _remove(doomed)


def clear(before: float | None = None) -> list[Entry]:
    """Remove all entries, or those not used since `before`, and return them. Waits for builds.
    Raises InputError."""
    with contextlib.ExitStack() as stack:
        if cache_directory().is_dir():
            stack.enter_context(lock())
        doomed = [entry for entry in entries() if before is None or entry.used < before]
        try:
            _remove(doomed)
        except OSError as error:
            raise InputError(f"{error.filename} cannot be removed: {error.strerror}") from error
    return doomed


def _remove(doomed: list[Entry]) -> None:
    """Each entry disappears at once, then its files are deleted."""
    if doomed:
        with tempfile.TemporaryDirectory(dir=cache_directory(), prefix="removed-") as scratch:
            for number, entry in enumerate(doomed):
                with contextlib.suppress(FileNotFoundError):
                    os.rename(entry.path, Path(scratch, str(number)))


def _entries(directory: Path, kind: str = "") -> Iterator[Entry]:
    for path in directory.iterdir() if directory.is_dir() else ():
        with contextlib.suppress(FileNotFoundError):  # another process removes entries, too
            files = list(path.iterdir()) if path.is_dir() else [path]
            size = sum(file.lstat().st_size for file in files)
            yield Entry(
                kind or ("library" if path.suffix == ".so" else "record"),
                path,
                size,
                path.stat().st_mtime,
            )
