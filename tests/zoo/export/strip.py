"""Replaces a model's weights by recipes, so that its graph takes kilobytes.

A recipe is what tests/zoo/materialize.py draws a tensor from: mean, standard deviation, extremes
and a seed. Integers, short tensors, masks, frequencies and rotary tables are kept as they
are, because the graph's meaning depends on them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, ModelProto, TensorProto, numpy_helper

SHORT = 16  # elements; and a mask has no more distinct values


def stripped(model: ModelProto, folder: Path) -> ModelProto:
    """`model` with recipes in place of its weights, and without what only a debugger reads.

    `folder` holds the external data of `model`, which is changed.
    """
    for seed, tensor in enumerate(_tensors(model.graph)):
        values = numpy_helper.to_array(tensor, str(folder))
        name = tensor.name
        if _is_kept(values):
            tensor.CopyFrom(numpy_helper.from_array(values, name))
        else:
            tensor.CopyFrom(_recipe(values, name, seed))
    _forget(model)
    return model


def _tensors(graph: GraphProto) -> Iterator[TensorProto]:
    """Initializers and tensors of attributes, those of subgraphs too."""
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                yield from _tensors(attribute.g)
            elif attribute.type == AttributeProto.TENSOR:
                yield attribute.t


def _is_kept(values: np.ndarray) -> bool:
    """True if other values of the same distribution would change what the graph means."""
    if values.dtype not in (np.float32, np.float16) or values.size <= SHORT:
        return True
    return _is_mask(values) or _is_rotary(values) or _is_sorted(values)


def _is_mask(values: np.ndarray) -> bool:
    """True if there are few distinct values, as in a mask."""
    first = values.reshape(-1)[: 16 * SHORT]  # tells most weights from masks at once
    return all(len(np.unique(part)) <= SHORT for part in (first, values))


def _is_sorted(values: np.ndarray) -> bool:
    """True of frequencies and positions."""
    return values.ndim == 1 and len(set(np.sign(np.diff(values))) - {0}) < 2


def _is_rotary(values: np.ndarray) -> bool:
    """True if the halves of each row are the same, as in a table of sines for rotary embedding, or
    all neighbours are."""
    rows = values.reshape(-1, values.shape[-1])
    if rows.shape[-1] % 2:
        return False
    first, second = np.split(rows, 2, axis=-1)
    return np.array_equal(first, second) or np.array_equal(rows[:, ::2], rows[:, 1::2])


def _recipe(values: np.ndarray, name: str, seed: int) -> TensorProto:
    """A tensor whose values materialize.py draws. Its rule for four axes is one of convolutions,
    He's; "scale" turns that into the deviation that `values` have."""
    tensor = TensorProto(name=name, dims=values.shape)
    tensor.data_type = onnx.helper.np_dtype_to_tensor_dtype(values.dtype)
    tensor.data_location = TensorProto.EXTERNAL
    wide = values.astype(np.float64)
    recipe = {"mean": wide.mean(), "std": wide.std(), "min": wide.min(), "max": wide.max()}
    if values.ndim == 4:
        recipe["scale"] = wide.std() / math.sqrt(2 / math.prod(values.shape[1:]))
    texts = {key: f"{value:.4g}" for key, value in recipe.items()}
    for key, text in {"location": "seeded", "seed": str(seed), **texts}.items():
        tensor.external_data.add(key=key, value=text)
    return tensor


def _forget(model: ModelProto) -> None:
    """Remove stack traces, the exporter's notes, and types that inference finds again."""
    model.doc_string = ""
    del model.metadata_props[:]
    for part in (model.graph, *model.functions):
        part.doc_string = ""
        del part.metadata_props[:]
        for node in part.node:
            node.doc_string = ""
            del node.metadata_props[:]
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        value.doc_string = ""
        del value.metadata_props[:]
    for tensor in model.graph.initializer:
        del tensor.metadata_props[:]
