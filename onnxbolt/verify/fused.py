"""Each fused node's output, as the optimized model computes it, against the tensor of the original that it stands for."""
from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import ModelProto, NodeProto

from onnxbolt.graph.exporter import FUSED_DOMAIN
from onnxbolt.graph.functions import TO_CHANNELS_FIRST
from onnxbolt.graph.skeleton import import_domains
from onnxbolt.verify.feeds import Feeds
from onnxbolt.verify.models import Models
from onnxbolt.verify.result import Row
from onnxbolt.verify.session import RUNTIME_ERRORS
from onnxbolt.verify.whole import compared, failed, judged, run_reference

_KIND = "fused node"
_UNKNOWN_SIZE = 1 << 24  # elements assumed of a tensor whose shape is not known


@dataclass(frozen=True)
class Pair:
    """A tensor of the optimized model and the original tensor that it is."""

    stored: str
    name: str
    node: str
    layout: str = ""
    channels: tuple[int, ...] = ()  # original channel of each stored one, -1 for padding; empty: as they are

    def restored(self, values: np.ndarray) -> np.ndarray:
        """The stored values in the original's layout and channels."""
        axis = -1
        if self.layout == "NHWC":
            values, axis = values.transpose(TO_CHANNELS_FIRST[values.ndim]), 1
        if self.channels:
            places = {original: place for place, original in enumerate(self.channels) if original >= 0}
            values = np.take(values, [places[original] for original in sorted(places)], axis=axis)
        return values


def rows(models: Models, feeds: Feeds) -> Iterator[Row]:
    """One row for each output of a fused node that stands for a tensor of the original."""
    produced = {name for node in models.original.graph.node for name in node.output} | {v.name for v in models.original.graph.input}
    pairs = [pair for node in models.optimized.graph.node if node.domain == FUSED_DOMAIN for pair in _fused(node) if pair.name]
    for pair in pairs:
        if pair.name not in produced:
            yield _failed(models, pair, "the original model has no such tensor").judged()
    for chunk in _chunks([pair for pair in pairs if pair.name in produced], models, feeds):
        yield from _compare(models, feeds, chunk)


def _compare(models: Models, feeds: Feeds, pairs: list[Pair]) -> list[Row]:
    expected = run_reference(models, feeds, [pair.name for pair in pairs])
    try:
        got = models.candidate.run(feeds, [pair.stored for pair in pairs])
    except RUNTIME_ERRORS as error:
        return [_failed(models, pair, f"the optimized model does not run: {error}").judged() for pair in pairs]
    return judged(models, feeds, [_row(models, pair, got[pair.stored], expected[pair.name]) for pair in pairs])


def _row(models: Models, pair: Pair, stored: np.ndarray, expected: np.ndarray) -> Row:
    try:
        got = pair.restored(stored)
    except (KeyError, IndexError, ValueError) as error:
        return _failed(models, pair, f"its layout or channel map does not fit shape {stored.shape}: {error}")
    if got.shape == (*expected.shape, 1, 1):  # means of images, whose axes the source drops
        got = got.reshape(expected.shape)
    return compared(models, pair.name, got, expected, "node", _KIND, pair.node)


def _failed(models: Models, pair: Pair, reason: str) -> Row:
    return failed(models, pair.name, reason, "node", _KIND, pair.node)


def _fused(node: NodeProto) -> Iterator[Pair]:
    values = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
    tensor, layout = (values.get(name, b"").decode() for name in ("tensor", "layout"))
    yield Pair(node.output[0], tensor, node.name, layout, tuple(values.get("channel_map", ())))
    if len(node.output) > 1:
        stored, layout = (values.get(name, b"").decode() for name in ("stored_tensor", "stored_layout"))
        yield Pair(node.output[1], stored, node.name, layout, tuple(values.get("stored_channel_map", ())))


def _chunks(pairs: list[Pair], models: Models, feeds: Feeds) -> Iterator[list[Pair]]:
    """As many at a time as memory allows."""
    sizes = _sizes(models.reference.skeleton, feeds) if pairs else {}
    chunk: list[Pair] = []
    held = 0
    for pair in pairs:
        size = 2 * 4 * sizes.get(pair.name, _UNKNOWN_SIZE)  # both models', as float32
        if chunk and held + size > models.memory_limit:
            yield chunk
            chunk, held = [], 0
        chunk.append(pair)
        held += size
    if chunk:
        yield chunk


def _sizes(skeleton: ModelProto, feeds: Feeds) -> dict[str, int]:
    """Elements of each tensor of the main graph for inputs of the given shapes, as far as inference knows."""
    copy = ModelProto()
    copy.CopyFrom(skeleton)
    for value in copy.graph.input:
        if value.name in feeds:
            tensor = value.type.tensor_type
            value.CopyFrom(onnx.helper.make_tensor_value_info(value.name, tensor.elem_type, feeds[value.name].shape))
    del copy.graph.output[:]  # what they and value_info declare may be symbolic
    del copy.graph.value_info[:]
    import_domains(copy)
    inferred = onnx.shape_inference.infer_shapes(copy, data_prop=True).graph
    return {
        value.name: math.prod(dim.dim_value for dim in value.type.tensor_type.shape.dim)
        for value in inferred.value_info
        if value.type.tensor_type.HasField("shape") and all(dim.HasField("dim_value") for dim in value.type.tensor_type.shape.dim)
    }
