"""Shares a model's weights among all sessions that verification creates."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Collection
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import ModelProto, TensorProto

from onnxbolt.graph import weights
from onnxbolt.graph.fields import copy_fields
from onnxbolt.graph.importer import load_model
from onnxbolt.graph.saving import save_model
from onnxbolt.graph.scopes import captured
from onnxbolt.graph.weights import Weights

# bytes; smaller initializers stay in the model, since shapes are computed from them
_SHARED_FROM = 1024
_LARGE_MODEL = 1 << 28  # bytes of weights; for smaller models speed counts more than memory
_FOLDER = "session.model_external_initializers_file_folder_path"


class SharedWeights:
    """A model without its large initializers, whose values it gives to sessions.

    Weights in files are mapped by each session, weights in the model are copied once. `large` has
    the data that initializers lack; they are written to a temporary file that lives as long as this
    object. Initializers that nothing reads are left out, because ONNX Runtime drops them and then
    refuses values for them.
    """

    def __init__(self, model: ModelProto, large: Weights) -> None:
        if large:
            self._directory = tempfile.TemporaryDirectory(prefix="onnxbolt.")
            path = Path(self._directory.name) / "model.onnx"
            save_model(model, path, external=True, large=large)
            model = load_model(path)
        self.skeleton = ModelProto()
        copy_fields(model, self.skeleton, skip=("graph",))
        copy_fields(model.graph, self.skeleton.graph, skip=("initializer",))
        self._values: dict[str, ort.OrtValue] = {}
        read = (
            {name for node in model.graph.node for name in node.input}
            | {v.name for v in model.graph.output}
            | set(captured(model))
        )
        used = [
            tensor
            for tensor in model.graph.initializer
            if tensor.name in read or not _is_shared(tensor)
        ]
        places = {tensor.name: weights.place(tensor) for tensor in used if weights.is_apart(tensor)}
        self._folder = (
            os.path.commonpath([path.parent for path, _, _ in places.values()]) if places else ""
        )
        self.are_large = sum(length for _, _, length in places.values()) >= _LARGE_MODEL
        for tensor in used:
            if not _is_shared(tensor):
                self.skeleton.graph.initializer.append(tensor)
                continue
            outside = self.skeleton.graph.initializer.add(
                name=tensor.name, dims=tensor.dims, data_type=tensor.data_type
            )
            if tensor.name in places:
                path, offset, length = places[tensor.name]
                weights.put_apart(outside, path.relative_to(self._folder), offset, length)
            else:
                weights.put_apart(outside, "memory", 0, len(tensor.raw_data))
                self._values[tensor.name] = _ort_value(tensor)

    def give(self, options: ort.SessionOptions, names: Collection[str] | None = None) -> None:
        """Give a session with `options` the weights; a session of a part of the model, only those
        of its `names`."""
        values = (
            self._values
            if names is None
            else {name: value for name, value in self._values.items() if name in names}
        )
        if values:
            options.add_external_initializers(list(values), list(values.values()))
        if self._folder:
            options.add_session_config_entry(_FOLDER, self._folder)


def _is_shared(tensor: TensorProto) -> bool:
    """True for large ones; not if bytes hold several numbers, as no array's do."""
    size = weights.stored_size(tensor, {})
    return size >= max(_SHARED_FROM, math.prod(tensor.dims))


def _ort_value(tensor: TensorProto) -> ort.OrtValue:
    values = onnx.numpy_helper.to_array(tensor)
    # numpy has no such type; ONNX Runtime takes the bits
    if values.dtype.isbuiltin != 1:
        bits = values.view(np.dtype(f"u{values.dtype.itemsize}"))
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, tensor.data_type)
    return ort.OrtValue.ortvalue_from_numpy(values)
