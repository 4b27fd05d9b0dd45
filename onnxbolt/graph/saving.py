"""ModelProto -> file, with a separate file for the weights if asked for; large weights are written
one at a time."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import BinaryIO

from onnx import ModelProto, TensorProto

from onnxbolt.errors import InputError
from onnxbolt.graph import weights, wire
from onnxbolt.graph.fields import copy_fields
from onnxbolt.graph.weights import Weights

# bytes; protobuf refuses 2 GiB; the rest is room for fields that are not counted
PROTOBUF_LIMIT = 2**31 - 2**24
_EXTERNAL_FROM, _ALIGNMENT = 1024, 4096  # bytes


def save_model(
    model: ModelProto, path: Path | str, external: bool = False, large: Weights | None = None
) -> None:
    """Write the model, or nothing if that fails. Weights go to `<path>.data` if asked for, and if a
    protobuf cannot hold them.

    `large` has the data that initializers of the model lack. Raises InputError where the disk is
    full or the place cannot be written to.
    """
    path, large = Path(path), large or {}
    if (
        external
        or sum(
            max(tensor.ByteSize(), weights.stored_size(tensor, large))
            for tensor in model.graph.initializer
        )
        >= PROTOBUF_LIMIT
    ):
        data = data_file(path)
        skeleton, apart = _without_data(model, large, data.name)
        _write(
            [
                (
                    data,
                    lambda file: _write_data(
                        file, (weights.raw(tensor, large) for tensor in apart)
                    ),
                ),
                (path, lambda file: file.write(skeleton.SerializeToString(deterministic=True))),
            ]
        )
    else:
        _write([(path, lambda file: file.writelines(wire.parts(model, large)))])


def data_file(path: Path) -> Path:
    """The path of the separate file for the weights of the model at `path`."""
    return path.with_name(path.name + ".data")


def _without_data(
    model: ModelProto, large: Weights, location: str
) -> tuple[ModelProto, list[TensorProto]]:
    """A copy of the model whose initializers refer to the file `location`, and these initializers
    in the file's order."""
    skeleton, moved, offset = ModelProto(), [], 0
    copy_fields(model, skeleton, skip=("graph",))
    copy_fields(model.graph, skeleton.graph, skip=("initializer",))
    for tensor in model.graph.initializer:
        size = weights.stored_size(tensor, large)
        if size < _EXTERNAL_FROM:
            skeleton.graph.initializer.append(tensor)
            continue
        target = skeleton.graph.initializer.add()
        copy_fields(tensor, target, skip=("raw_data", "external_data"))
        weights.put_apart(target, location, offset, size)
        moved.append(tensor)
        offset += -(-size // _ALIGNMENT) * _ALIGNMENT
    return skeleton, moved


def _write_data(file: BinaryIO, parts: Iterable[bytes | memoryview]) -> None:
    for part in parts:
        file.write(part)
        file.write(bytes(-file.tell() % _ALIGNMENT))


def _write(files: Sequence[tuple[Path, Callable[[BinaryIO], object]]]) -> None:
    """Write all files beside their places, then move them there: if writing fails, the previous
    files are still there."""
    temporaries = [path.with_name(f".{path.name}.{os.getpid()}.tmp") for path, _ in files]
    try:
        for temporary, (_, write) in zip(temporaries, files, strict=True):
            with open(temporary, "wb") as file:
                write(file)
        for temporary, (path, _) in zip(temporaries, files, strict=True):
            os.replace(temporary, path)
    except OSError as error:
        raise InputError(
            f"{files[-1][0]}: cannot be written: {error.strerror or error}; make room or choose"
            " another place"
        ) from error
    finally:
        for temporary in temporaries:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
