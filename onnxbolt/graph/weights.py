"""Large weights stay in the files that hold them; the model in memory refers to their places.

Such an initializer has ONNX's entries for external data, with an absolute path as its location,
which `importer.load_model` has checked. `values` maps the data into memory; it is free again as
soon as no reference to the array is left.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from onnx import ModelProto, TensorProto

from onnxbolt.graph.element_types import numpy_dtype

LARGE = 1 << 20  # bytes; the data of smaller tensors are read with the model
# constants by name of their initializers, which hold no data
Weights: TypeAlias = Mapping[str, gs.Constant]
_PACKED: dict[int, int] = {  # elements in a byte
    TensorProto.INT4: 2,
    TensorProto.UINT4: 2,
    TensorProto.FLOAT4E2M1: 2,
    TensorProto.INT2: 4,
    TensorProto.UINT2: 4,
}


def is_apart(tensor: TensorProto) -> bool:
    """True if the tensor's data are in a file that `importer.load_model` has found."""
    outside = tensor.data_location == TensorProto.EXTERNAL
    return outside and any(
        entry.key == "location" and os.path.isabs(entry.value) for entry in tensor.external_data
    )


def put_apart(tensor: TensorProto, path: Path | str, offset: int, length: int) -> None:
    """Make the tensor refer to `length` bytes of a file from `offset` on."""
    tensor.ClearField("raw_data")
    tensor.ClearField("external_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", path), ("offset", offset), ("length", length)):
        tensor.external_data.add(key=key, value=str(value))


def place(tensor: TensorProto) -> tuple[Path, int, int]:
    """File, offset and length of external data, as `put_apart` wrote them."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    return Path(entries["location"]), int(entries["offset"]), int(entries["length"])


def values(tensor: TensorProto) -> np.ndarray:
    """The tensor's values; external data are mapped read-only."""
    if not is_apart(tensor):
        return onnx.numpy_helper.to_array(tensor)
    dtype = numpy_dtype(tensor.data_type)
    if tensor.data_type in _PACKED or not isinstance(dtype, np.dtype):
        return onnx.numpy_helper.to_array(whole(tensor))
    return np.frombuffer(_mapped(tensor), dtype, math.prod(tensor.dims)).reshape(tuple(tensor.dims))


def raw(tensor: TensorProto, large: Weights) -> bytes | memoryview:
    """The tensor's data in the form of `raw_data`: computed if its name is in `large`, mapped if
    they are external."""
    if tensor.name in large:
        return np.ascontiguousarray(large[tensor.name].values).reshape(-1).view(np.uint8).data
    return _mapped(tensor).data if is_apart(tensor) else tensor.raw_data


def whole(tensor: TensorProto) -> TensorProto:
    """The tensor with its data in it; the tensor itself if it has them."""
    if not is_apart(tensor):
        return tensor
    return TensorProto(
        name=tensor.name,
        dims=tensor.dims,
        data_type=tensor.data_type,
        raw_data=_mapped(tensor).tobytes(),
    )


def complete(model: ModelProto, large: Weights) -> ModelProto:
    """The model with the data of all its initializers in it; the model itself if it has them."""
    if not any(lacks_data(tensor, large) for tensor in model.graph.initializer):
        return model
    copy = ModelProto()
    copy.CopyFrom(model)
    for tensor in copy.graph.initializer:
        if lacks_data(tensor, large):
            data = bytes(raw(tensor, large))
            tensor.ClearField("external_data")
            tensor.ClearField("data_location")
            tensor.raw_data = data
    return copy


def stored_size(tensor: TensorProto, large: Weights) -> int:
    """The size in bytes of the tensor's data, wherever they are."""
    if lacks_data(tensor, large):
        return stored_bytes(tensor)
    return len(tensor.raw_data) if tensor.HasField("raw_data") else 0


def stored_bytes(tensor: TensorProto) -> int:
    """The size in bytes that type and shape ask for; 0 for a type without a fixed size."""
    dtype, elements = numpy_dtype(tensor.data_type), math.prod(tensor.dims)
    if per_byte := _PACKED.get(tensor.data_type):
        return -(-elements // per_byte)
    return elements * dtype.itemsize if isinstance(dtype, np.dtype) else 0


def lacks_data(tensor: TensorProto, large: Weights) -> bool:
    """True if the tensor's data are not in the message itself."""
    return tensor.name in large or is_apart(tensor)


def _mapped(tensor: TensorProto) -> np.ndarray:
    path, offset, length = place(tensor)
    return np.memmap(path, np.uint8, "r", offset, (length,))
