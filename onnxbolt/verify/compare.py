"""The comparison itself: which tensors stand for which, in chunks that bound memory, each against its own limit."""
from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto

from onnxbolt import tolerances
from onnxbolt.dtypes import DType
from onnxbolt.errors import InputError
from onnxbolt.graph.exporter import FUSED_DOMAIN
from onnxbolt.graph.functions import TO_CHANNELS_FIRST
from onnxbolt.graph.shapes import import_domains
from onnxbolt.precision import rounded_original
from onnxbolt.runtime import OnnxboltWarning, session_options
from onnxbolt.verify.feeds import Feeds
from onnxbolt.verify.result import NOT_FINITE, Row, VerifyResult
from onnxbolt.verify.session import CPU, RUNTIME_ERRORS, Runner, identity, uses_bfloat16
from onnxbolt.verify.widen import widened

_LOW = {"fp16": DType.F16, "bf16": DType.BF16}
_WIDENED = ("bfloat16 tensors were compared as float32, their weights rounded to bfloat16: ONNX Runtime has practically no bfloat16 "
            "kernels for function bodies")
_UNKNOWN_SIZE = 1 << 24  # elements assumed of a tensor whose shape is not known


@dataclass(frozen=True)
class Pair:
    """A tensor of the optimized model and the original tensor that it is."""

    kind: str
    stored: str
    name: str
    node: str = ""
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


class Comparison:
    """Both models, what to compare, and the rows found so far; `feeds` are set before `on` is called."""

    def __init__(self, original: ModelProto, optimized: ModelProto, library: Path | None,
                 elementwise: tuple[float | None, float | None], memory_limit: int) -> None:
        self.original, self.optimized, self.library = original, optimized, library
        self.elementwise, self.memory_limit = elementwise, memory_limit
        properties = {entry.key: entry.value for entry in optimized.metadata_props}
        self.precision = properties.get("onnxbolt.precision", "keep")
        self.rows: list[Row] = []
        self.notes: dict[str, None] = {}
        self.pairs, self.orphans = _pairs(original, optimized)
        self.on_cpu = self._runner(original, CPU)
        self.feeds: Feeds = {}
        self.sizes: dict[str, int] = {}
        self._rounded: ModelProto | None = None

    def result(self) -> VerifyResult:
        return VerifyResult(self.precision, tuple(self.rows), tuple(self.notes))

    def on(self, provider: str) -> None:
        """Compare everything on one execution provider."""
        library, where = self._library_for(provider), _short(provider)
        reference = self.on_cpu if provider == CPU else self._runner(self.original, provider)
        candidate = self._runner(self.optimized, provider, library)
        self.sizes = self.sizes or _sizes(reference.skeleton, self.feeds)
        self.rows += [_failed(pair, where, "the original model has no such tensor").judged() for pair in self.orphans]
        for chunk in self._chunks():
            rows = self._compare(reference, candidate, chunk, where)
            yardsticks = self._yardsticks(reference, library, [row for row in rows if row.error > row.limit > 0])
            self.rows += [row.judged(yardsticks.get(row.name, 0.0)) for row in rows]

    def _library_for(self, provider: str) -> Path | None:
        """The library, where this machine can use it; a library of another model is an error."""
        if provider == CPU or self.library is None:
            return None
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", OnnxboltWarning)
            session_options(identity(self.optimized), library=self.library)
        self.notes.update(dict.fromkeys(str(warning.message) for warning in caught))
        return None if caught else self.library

    def _runner(self, model: ModelProto, provider: str, library: Path | None = None) -> Runner:
        if library is None and uses_bfloat16(model):
            self.notes[_WIDENED] = None
            model = widened(model)
        return Runner(model, provider, library, tf32=library is not None)

    def _limit(self, library: Path | None) -> float:
        """The table's limit; a model that is in 16 bits already is judged like one that was converted."""
        low = _LOW.get(self.precision) or _weights_dtype(self.original)
        if low is not None:
            return tolerances.MODEL[low]
        return tolerances.BODIES if library is None else tolerances.MODEL[DType.F32]

    def _chunks(self) -> Iterator[list[Pair]]:
        """Graph outputs alone first, as they are computed in use; then fused nodes, as many at a time as memory allows."""
        yield [pair for pair in self.pairs if pair.kind == "output"]
        chunk: list[Pair] = []
        held = 0
        for pair in self.pairs:
            size = 2 * 4 * self.sizes.get(pair.name, _UNKNOWN_SIZE)  # both models', as float32
            if pair.kind == "output":
                continue
            if chunk and held + size > self.memory_limit:
                yield chunk
                chunk, held = [], 0
            chunk.append(pair)
            held += size
        if chunk:
            yield chunk

    def _compare(self, reference: Runner, candidate: Runner, pairs: Sequence[Pair], where: str) -> list[Row]:
        """Rows without a verdict."""
        try:
            expected = reference.run(self.feeds, [pair.name for pair in pairs])
        except RUNTIME_ERRORS as error:
            raise InputError(f"the original model does not run on {where} with these inputs: {error}") from error
        try:
            got = candidate.run(self.feeds, [pair.stored for pair in pairs])
        except RUNTIME_ERRORS as error:
            return [_failed(pair, where, f"the optimized model does not run: {error}") for pair in pairs]
        limit = self._limit(candidate.library)
        return [self._row(pair, where, got[pair.stored], expected[pair.name], limit) for pair in pairs]

    def _row(self, pair: Pair, where: str, stored: np.ndarray, expected: np.ndarray, limit: float) -> Row:
        try:
            got = pair.restored(stored)
        except (KeyError, IndexError, ValueError) as error:
            return _failed(pair, where, f"its layout or channel map does not fit shape {stored.shape}: {error}")
        if got.shape == (*expected.shape, 1, 1):  # means of images, whose axes the source drops
            got = got.reshape(expected.shape)
        if got.shape != expected.shape:
            return _failed(pair, where, f"shape {got.shape} instead of {expected.shape}")
        if not tolerances.is_float(expected):
            return Row(pair.name, pair.kind, where, tolerances.error(got, expected), 0.0, math.nan, math.nan, node=pair.node)
        found, reason = tolerances.measure(got, expected), self._blemish(got, expected)
        return Row(pair.name, pair.kind, where, found.relative_l2, limit, found.max_abs, found.cosine, reason=reason, node=pair.node)

    def _blemish(self, got: np.ndarray, expected: np.ndarray) -> str:
        """What is wrong with the values beside their error as a whole."""
        if not tolerances.same_non_finite(got, expected):
            return NOT_FINITE
        if all(bound is None for bound in self.elementwise):
            return ""
        atol, rtol = (bound or 0.0 for bound in self.elementwise)
        close = np.allclose(got.astype(np.float64), expected.astype(np.float64), rtol=rtol, atol=atol, equal_nan=True)
        return "" if close else f"an element differs by more than {atol:g} + {rtol:g} |y0|"

    def _yardsticks(self, reference: Runner, library: Path | None, rows: Sequence[Row]) -> dict[str, float]:
        """For rows above the table's limit: what rounding alone does to the same tensors of the original."""
        rounded = self._rounded_runner(reference.provider, library) if rows else None
        if rounded is None:
            return {}
        names = list(dict.fromkeys(row.name for row in rows))
        try:
            got = rounded.run(self.feeds, names)
        except RUNTIME_ERRORS as error:
            self.notes[f"no yardstick: the original in {self.precision} does not run on {_short(reference.provider)}: {error}"] = None
            return {}
        expected = reference.run(self.feeds, names)
        # where rounding changes even the shape (what a threshold lets pass), there is nothing to compare with
        return {name: tolerances.error(got[name], expected[name]) for name in names if got[name].shape == expected[name].shape}

    def _rounded_runner(self, provider: str, library: Path | None) -> Runner | None:
        """The original itself, rounded as the optimized model is: to 16 bits, or to TF32 where our kernels multiply in that."""
        if self.precision not in _LOW:
            return Runner(self.original, provider, tf32=True) if library is not None else None
        if self._rounded is None:
            self._rounded = rounded_original(self.original, self.precision)
        return self._runner(self._rounded, provider)


def _pairs(original: ModelProto, optimized: ModelProto) -> tuple[list[Pair], list[Pair]]:
    """What to compare; and fused nodes whose original tensor does not exist."""
    produced = {name for node in original.graph.node for name in node.output} | {value.name for value in original.graph.input}
    pairs = [Pair("output", value.name, value.name) for value in original.graph.output]
    fused = [pair for node in optimized.graph.node if node.domain == FUSED_DOMAIN for pair in _fused(node) if pair.name]
    return pairs + [pair for pair in fused if pair.name in produced], [pair for pair in fused if pair.name not in produced]


def _fused(node: NodeProto) -> Iterator[Pair]:
    values = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
    tensor, layout = (values.get(name, b"").decode() for name in ("tensor", "layout"))
    yield Pair("fused node", node.output[0], tensor, node.name, layout, tuple(values.get("channel_map", ())))
    if len(node.output) > 1:
        stored, layout = (values.get(name, b"").decode() for name in ("stored_tensor", "stored_layout"))
        yield Pair("fused node", node.output[1], stored, node.name, layout, tuple(values.get("stored_channel_map", ())))


def _failed(pair: Pair, where: str, reason: str) -> Row:
    return Row(pair.name, pair.kind, where, math.nan, 0.0, math.nan, math.nan, reason=reason, node=pair.node)


def _short(provider: str) -> str:
    return provider.removesuffix("ExecutionProvider")


def _weights_dtype(model: ModelProto) -> DType | None:
    """The 16-bit type of a model that has weights or inputs in one."""
    types = {t.data_type for t in model.graph.initializer} | {value.type.tensor_type.elem_type for value in model.graph.input}
    return DType.BF16 if TensorProto.BFLOAT16 in types else DType.F16 if TensorProto.FLOAT16 in types else None


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
