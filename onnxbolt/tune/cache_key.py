"""The key under which a CI keeps the cache directory between its runs."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterable, Iterator
from pathlib import Path

from onnxbolt import extensions
from onnxbolt.codegen.digest import present_sources_digest
from onnxbolt.codegen.nvcc import find_toolchain, is_absent
from onnxbolt.errors import InputError
from onnxbolt.files import check_size
from onnxbolt.tune.library import cutlass_version

_DIGITS = 16
_LARGEST = 2**28  # bytes of a lock file


def cache_key(paths: Iterable[Path] = ()) -> str:
    """The key of compiled objects: "onnxbolt-" and a digest of all that decides them, kernels'
    sources, compiler, CUTLASS and processor; with `paths` another "-" and a digest of these files,
    or of the files named *.lock below these directories.

    An entry under the longer key has every kernel that these lock files choose. One under any key
    that begins with the shorter one is a good start. Raises InputError for a path that cannot be
    read, and ToolchainError for a compiler that cannot be used.
    """
    extensions.load()
    if is_absent():
        compiler = ["no compiler"]
    else:
        toolchain = find_toolchain()
        compiler = [toolchain.version, cutlass_version(toolchain)]
    parts = [_digest([present_sources_digest(), platform.machine(), *compiler])]
    if listed := list(paths):
        parts.append(_digest(_contents(listed)))
    return "-".join(["onnxbolt", *parts])


def _contents(paths: Iterable[Path]) -> Iterator[str]:
    """The sums of all files, in any order of `paths`, whatever their names."""
    files = {
        file.resolve()
        for path in paths
        for file in (path.rglob("*.lock") if path.is_dir() else [path])
        if not file.is_dir()
    }
    for file in files:
        check_size(file, _LARGEST)
    try:
        yield from sorted(hashlib.sha256(file.read_bytes()).hexdigest() for file in files)
    except OSError as error:
        raise InputError(
            f"{error.filename}: cannot be read: {error.strerror}; name a lock file, or a directory"
            " of lock files"
        ) from error


def _digest(texts: Iterable[str]) -> str:
    """The first digits of SHA-256, in hex, over texts without line ends."""
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:_DIGITS]
