"""The requirements of a library on the machine that loads it, read from the symbol versions of the
ELF file."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator
from pathlib import Path

from onnxbolt import library

NEWEST = (2, 28)  # glibc's version in RHEL 8 and Debian 10
VERSIONS_NEEDED = 0x6FFFFFFE  # SHT_GNU_verneed


def versions_needed(path: Path) -> Iterator[tuple[str, str]]:
    """(library, version) pairs, such as ("libc.so.6", "GLIBC_2.17"), of a 64-bit little-endian
    ELF file; see the gABI's supplement LSB, "Symbol Versioning"."""
    data = path.read_bytes()
    start, (size, count) = (
        struct.unpack_from("<Q", data, 40)[0],
        struct.unpack_from("<HH", data, 58),
    )
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, start + i * size) for i in range(count)]
    for _, kind, _, _, offset, _, linked, _, _, _ in sections:
        strings = sections[linked][4]

        def text(at: int, strings: int = strings) -> str:
            return data[strings + at : data.index(b"\0", strings + at)].decode()

        while kind == VERSIONS_NEEDED:
            _, entries, file, auxiliary, following = struct.unpack_from("<HHIII", data, offset)
            at = offset + auxiliary
            for _ in range(entries):
                _, _, _, name, step = struct.unpack_from("<IHHII", data, at)
                yield text(file), text(name)
                at += step
            if not following:
                break
            offset += following


def test_a_library_runs_beside_older_c_libraries(tmp_path: Path) -> None:
    path = tmp_path / "out.onnxbolt.so"
    library.build(library.make_manifest([], set()), path)
    assert ctypes.CDLL(str(path)).onnxbolt_manifest
    needed = set(versions_needed(path))
    glibc = {
        tuple(map(int, version.removeprefix("GLIBC_").split(".")))
        for _, version in needed
        if version.startswith("GLIBC_2")
    }
    assert (2, 2, 5) in glibc  # else the reader found nothing
    assert max(glibc) <= NEWEST
    assert not any(version.startswith(("GLIBCXX", "CXXABI")) for _, version in needed)
