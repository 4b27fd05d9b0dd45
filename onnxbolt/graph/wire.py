"""A model's file, parsed without the data of its large initializers, as if these were external data that lie in this file.

Protobuf has no means for that, so this module walks over the fields of the message: https://protobuf.dev/programming-guides/encoding.
"""
from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import ModelProto, TensorProto

from onnxbolt.graph.weights import LARGE, put_apart, stored_bytes

_GRAPH, _INITIALIZER, _RAW_DATA = 7, 5, 9  # numbers of these fields of ModelProto, GraphProto and TensorProto
_BYTES = 2  # wire type of a field with a length


def read_model(path: Path) -> ModelProto:
    """The model in a file, large initializers apart, in the file of the same name.

    Raises OSError, and DecodeError for what is no protobuf message or cut off.
    """
    with path.open("rb") as file:
        if not path.stat().st_size:
            return ModelProto()
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return ModelProto.FromString(b"".join(_model(data, path.name)))


def _model(data: mmap.mmap, name: str) -> Iterator[bytes]:
    """The message's fields as they are, except for the graph."""
    for number, begin, payload, end in _fields(data, 0, len(data)):
        if number == _GRAPH and end - payload > LARGE:
            yield from _framed(_GRAPH, b"".join(_graph(data, payload, end, name)))
        else:
            yield data[begin:end]


def _graph(data: mmap.mmap, begin: int, end: int, name: str) -> Iterator[bytes]:
    for number, field, payload, following in _fields(data, begin, end):
        if number == _INITIALIZER and following - payload > LARGE:
            yield from _framed(_INITIALIZER, _tensor(data, payload, following, name))
        else:
            yield data[field:following]


def _tensor(data: mmap.mmap, begin: int, end: int, name: str) -> bytes:
    """The tensor apart, if it has its data in one large piece; else as it is."""
    fields = list(_fields(data, begin, end))
    raw = [(payload, following) for number, _, payload, following in fields if number == _RAW_DATA]
    if len(raw) != 1 or raw[0][1] - raw[0][0] < LARGE:
        return data[begin:end]
    tensor = TensorProto.FromString(b"".join(data[field:following] for number, field, _, following in fields if number != _RAW_DATA))
    if tensor.external_data or raw[0][1] - raw[0][0] != stored_bytes(tensor):
        return data[begin:end]
    put_apart(tensor, name, raw[0][0], raw[0][1] - raw[0][0])
    return bytes(tensor.SerializeToString())


def _framed(number: int, message: bytes) -> Iterator[bytes]:
    yield _encoded(number << 3 | _BYTES)
    yield _encoded(len(message))
    yield message


def _fields(data: mmap.mmap, begin: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Of each field of a message: its number, and where it begins, where its payload begins, and where it ends."""
    at = begin
    while at < end:
        key, payload = _varint(data, at, end)
        wire = key & 7
        if wire == _BYTES:
            size, payload = _varint(data, payload, end)
            following = payload + size
        elif wire == 0:
            following = _varint(data, payload, end)[1]
        elif wire in (1, 5):
            following = payload + (8 if wire == 1 else 4)
        else:
            raise DecodeError(f"unknown wire type {wire}")
        if following > end:
            raise DecodeError("cut off")
        yield key >> 3, at, payload, following
        at = following


def _varint(data: mmap.mmap, at: int, end: int) -> tuple[int, int]:
    """A number of protobuf's variable length, and where it ends."""
    number = 0
    for shift in range(0, 70, 7):
        if at >= end:
            break
        byte, at = data[at], at + 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, at
    raise DecodeError("no number")


def _encoded(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])
