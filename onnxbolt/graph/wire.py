"""Reads and writes a model's file without holding the data of all its large initializers in memory.

`read_model` leaves them in the file, as if they were external data that lie in it; `parts` gives
the file piece by piece. Protobuf has no means for either, so this module walks over the fields of
messages: https://protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from google.protobuf.message import DecodeError, Message  # type: ignore[import-untyped]
from onnx import ModelProto, TensorProto

from onnxbolt.graph.fields import copy_fields
from onnxbolt.graph.weights import LARGE, Weights, lacks_data, put_apart, raw, stored_bytes

# numbers of these fields of ModelProto, GraphProto and TensorProto
_GRAPH, _INITIALIZER, _RAW_DATA = 7, 5, 9
_BYTES = 2  # wire type of a field with a length


def read_model(path: Path) -> ModelProto:
    """The model in a file; the data of large initializers stay in the file, as external data of the
    same name.

    Raises OSError, and DecodeError for what is no protobuf message or cut off.
    """
    with path.open("rb") as file:
        if not path.stat().st_size:
            return ModelProto()
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return ModelProto.FromString(b"".join(_model(data, path.name)))


def _model(data: mmap.mmap, name: str) -> Iterator[bytes]:
    """The message with its fields unchanged, except for the graph."""
    for number, begin, payload, end in _fields(data, 0, len(data)):
        if number == _GRAPH and end - payload > LARGE:
            message = b"".join(_graph(data, payload, end, name))
            yield _tag(_GRAPH, len(message)) + message
        else:
            yield data[begin:end]


def _graph(data: mmap.mmap, begin: int, end: int, name: str) -> Iterator[bytes]:
    for number, field, payload, following in _fields(data, begin, end):
        if number == _INITIALIZER and following - payload > LARGE:
            message = _tensor(data, payload, following, name)
            yield _tag(_INITIALIZER, len(message)) + message
        else:
            yield data[field:following]


def _tensor(data: mmap.mmap, begin: int, end: int, name: str) -> bytes:
    """The tensor as external data if its data are one large piece; else unchanged."""
    fields = list(_fields(data, begin, end))
    raw = [(payload, following) for number, _, payload, following in fields if number == _RAW_DATA]
    if len(raw) != 1 or raw[0][1] - raw[0][0] < LARGE:
        return data[begin:end]
    tensor = TensorProto.FromString(
        b"".join(
            data[field:following] for number, field, _, following in fields if number != _RAW_DATA
        )
    )
    if tensor.external_data or raw[0][1] - raw[0][0] != stored_bytes(tensor):
        return data[begin:end]
    put_apart(tensor, name, raw[0][0], raw[0][1] - raw[0][0])
    return bytes(tensor.SerializeToString())


def parts(model: ModelProto, large: Weights) -> Iterator[bytes | memoryview]:
    """The bytes that `SerializeToString` gives for the model with all of its data, in pieces;
    `large` has the data that initializers lack."""
    initializers = [_Initializer.of(tensor, large) for tensor in model.graph.initializer]
    before, after = _around(model, _GRAPH)
    begin, rest = _around(model.graph, _INITIALIZER)
    yield (
        before
        + _tag(_GRAPH, len(begin) + sum(item.size for item in initializers) + len(rest))
        + begin
    )
    for item, tensor in zip(initializers, model.graph.initializer, strict=True):
        yield item.head
        if item.apart:
            yield raw(tensor, large)
        yield item.tail
    yield rest + after


@dataclass(frozen=True)
class _Initializer:
    """A tensor as a field of the graph: the bytes before its data and after them, and the size of
    the whole field."""

    head: bytes
    tail: bytes
    size: int
    apart: bool  # the data are not in `head`

    @classmethod
    def of(cls, tensor: TensorProto, large: Weights) -> _Initializer:
        if not lacks_data(tensor, large):
            message = tensor.SerializeToString(deterministic=True)
            head = _tag(_INITIALIZER, len(message)) + message
            return cls(head, b"", len(head), False)
        plain = TensorProto()
        plain.CopyFrom(tensor)
        plain.ClearField("external_data")
        plain.ClearField("data_location")
        before, after = _around(plain, _RAW_DATA)
        data = stored_bytes(tensor)
        head = before + _tag(_RAW_DATA, data)
        head = _tag(_INITIALIZER, len(head) + data + len(after)) + head
        return cls(head, after, len(head) + data + len(after), True)


def _around(message: Message, number: int) -> tuple[bytes, bytes]:
    """The fields of a message before the field of this number, and those after it."""
    names = {field.number: field.name for field, _ in message.ListFields()}
    before, after = type(message)(), type(message)()
    copy_fields(message, before, skip=[name for n, name in names.items() if n >= number])
    copy_fields(message, after, skip=[name for n, name in names.items() if n <= number])
    return before.SerializeToString(deterministic=True), after.SerializeToString(deterministic=True)


def _tag(number: int, size: int) -> bytes:
    """The bytes that precede a field of `size` bytes: its tag and its length."""
    return _encoded(number << 3 | _BYTES) + _encoded(size)


def _fields(data: mmap.mmap, begin: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """For each field of a message: its number, the positions where the field and its payload begin,
    and where it ends."""
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
    """A number in protobuf's variable-length encoding, and the position after it."""
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
