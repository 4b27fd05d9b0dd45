"""Reads a model's metadata_props without onnx, by a few lines that skip all other fields of the
protobuf message.

ModelProto is fields of (tag, value); metadata_props is its field 14, each a StringStringEntryProto
(key 1, value 2). See onnx.proto, and "Encoding" in protobuf's documentation.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path

from onnxbolt.errors import InputError
from onnxbolt.files import check_regular

Source = Path | str | bytes
_METADATA_PROPS, _KEY, _VALUE = 14, 1, 2
_VARINT, _EIGHT_BYTES, _LENGTH, _FOUR_BYTES = 0, 1, 2, 5


def read_metadata(model: Source) -> dict[str, str]:
    """The entries of a model, given as a path or as the file's bytes. Raises InputError unless it
    is a complete ONNX file."""
    if isinstance(model, bytes):
        return _entries(model, "the model")
    check_regular(Path(model))
    try:
        with (
            open(model, "rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view,
        ):
            # skipping over a mapped file reads only what lies between the skips
            return _entries(view, str(model))
    except OSError as error:
        raise InputError(f"{model}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise InputError(f"{model} is empty") from error


def _entries(data: bytes | mmap.mmap, name: str) -> dict[str, str]:
    entries = {}
    try:
        for field, start, end in _fields(data, 0, len(data)):
            if field == _METADATA_PROPS:
                entry = {part: data[a:b].decode() for part, a, b in _fields(data, start, end)}
                entries[entry.get(_KEY, "")] = entry.get(_VALUE, "")
    except (IndexError, UnicodeDecodeError) as error:
        raise InputError(f"{name} is not an ONNX model, or is truncated") from error
    return entries


def _fields(data: bytes | mmap.mmap, position: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """Number, start and end of each field between two positions. Raises IndexError if the bytes are
    not a message."""
    while position < stop:
        tag, position = _varint(data, position)
        kind = tag & 7
        if kind == _VARINT:
            _, end = _varint(data, position)
        elif kind == _LENGTH:
            length, position = _varint(data, position)
            end = position + length
        elif kind in (_EIGHT_BYTES, _FOUR_BYTES):
            end = position + (8 if kind == _EIGHT_BYTES else 4)
        else:
            raise IndexError(f"unknown wire type {kind}")
        if end > stop:
            raise IndexError("a field extends past the end")
        yield tag >> 3, position, end
        position = end


def _varint(data: bytes | mmap.mmap, position: int) -> tuple[int, int]:
    """A little-endian number of 7 bits per byte, and the position after it."""
    number = 0
    for shift in range(0, 70, 7):
        byte = data[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, position
    raise IndexError("a number of more than 10 bytes")
