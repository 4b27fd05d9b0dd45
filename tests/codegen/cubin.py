"""The machine code in a cubin, which is a 64-bit ELF file."""

from __future__ import annotations

import struct
from collections.abc import Iterator


def instructions(cubin: bytes) -> Iterator[tuple[str, bytes]]:
    """Name and content of each section of instructions: one for each kernel, and for each
    function that is not inlined."""
    (start,) = struct.unpack_from("<Q", cubin, 40)
    size, count, names = struct.unpack_from("<3H", cubin, 58)
    headers = [struct.unpack_from("<IIQQQQ", cubin, start + i * size) for i in range(count)]
    table = headers[names][4]
    for name, _, _, _, offset, length in headers:
        word = cubin[table + name : cubin.index(b"\0", table + name)].decode()
        if word.startswith(".text"):
            yield word, cubin[offset : offset + length]
