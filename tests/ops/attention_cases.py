"""Attentions as nodes with random inputs, and their answers in float64."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from onnx import FunctionProto, TensorProto, helper

from onnxbolt.dtypes import DType
from onnxbolt.graph.windows import Windows
from onnxbolt.ops import OPS
from onnxbolt.ops.attention.attributes import attributes, bounds
from onnxbolt.ops.attention.body import Variant
from onnxbolt.ops.attention.found import Band, Mask, Masked, Masking, ScaledDotProduct
from onnxbolt.ops.attention.views import HEADS, ROWS, View
from onnxbolt.ops.base import Signature
from onnxbolt.ops.functions import DOMAIN, build

OPSET = 17
NO_BAND = Band()
ORDERS = ("rows", "by heads", "mixed", "packed", "interleaved", "keys with values")


@dataclass(frozen=True)
class Case:
    """An attention. `order`: how queries, keys and values lie (`operands`); `batch_of_keys`: 1
    where all batches share keys and values; `mask_shape` broadcasts to [batch, heads, queries,
    keys], and a boolean mask excludes all keys of the first query of its last batch."""

    order: str = "rows"
    batch: int = 2
    heads: int = 4
    key_heads: int = 4
    queries: int = 5
    keys: int = 5
    size: int = 8
    value_size: int = 8
    batch_of_keys: int = 0
    scale: float = 0.3
    masking: Masking = Masking.NONE
    mask_type: DType = DType.F32
    mask_shape: tuple[int, ...] = ()
    masked: Masked = Masked.PLAIN
    band: Band = NO_BAND
    joined: bool = True
    dtype: DType = DType.F32
    # the batches are windows of images, which have so many axes for their pixels
    windows: Windows | None = None
    image_axes: int = 2
    period: int = 0  # the mask has so many batches, and begins again; 0: no period

    # --- the node ---------------------------------------------------------------------------------

    def attention(self) -> ScaledDotProduct:
        """It as recognition finds it."""
        tensors = {
            name: gs.Variable(name, self.dtype.numpy, shape) for name, shape in self.shapes.items()
        }
        q, k, v = (self._view(name, tensors) for name in "qkv")
        mask = tensors.get("mask")
        if mask is not None:
            added = self.masking is Masking.ADDED
            mask.dtype = self.mask_type.numpy if added else np.dtype(bool)
        return ScaledDotProduct(
            q,
            k,
            v,
            self.heads,
            self.key_heads,
            self.scale,
            Mask(self.masking, mask, band=self.band, period=self.period),
            self.masked,
            gs.Variable("y"),
            self.joined,
            self.windows,
        )

    @property
    def signature(self) -> Signature:
        """The signature of its node."""
        return Signature(OPS["attention"], self.dtype, variant=Variant.of(self.attention()))

    @property
    def body(self) -> FunctionProto:
        """The function of its node."""
        return build(self.signature, OPSET)

    @property
    def inputs(self) -> list[str]:
        """Names of the node's inputs."""
        tensors = [self._tensor(name) for name in "qkv"]
        return [*tensors, *(["mask"] if self.masking is not Masking.NONE else [])]

    def model(
        self, more: Mapping[str, object] | None = None, symbols: Mapping[str, Sequence[str]] = {}
    ) -> onnx.ModelProto:
        """The node by itself, with further attributes. Inputs and output are float32, and are cast
        to the node's types and back; `symbols` are shapes of inputs in place of numbers."""
        body = self.body
        masks = {"mask": self.mask_type.onnx} if self.masking is Masking.ADDED else {"mask": 9}
        given, nodes = [], []
        for name, shape in self.shapes.items():
            kind = masks.get(name, self.dtype.onnx)
            stored = TensorProto.BOOL if kind == TensorProto.BOOL else TensorProto.FLOAT
            given.append(helper.make_tensor_value_info(name, stored, symbols.get(name, shape)))
            if kind != stored:
                nodes.append(helper.make_node("Cast", [name], [f"{name}_cast"], to=kind))
        cast = {node.input[0]: node.output[0] for node in nodes}
        inputs = [cast.get(name, name) for name in self.inputs]
        output = "y" if self.dtype is DType.F32 else "stored"
        attrs: dict[str, Any] = {**attributes(self.attention()), **(more or {})}
        nodes.append(
            helper.make_node(body.name, inputs, [output], "the node", domain=DOMAIN, **attrs)
        )
        if output != "y":
            nodes.append(helper.make_node("Cast", [output], ["y"], to=TensorProto.FLOAT))
        y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
        graph = helper.make_graph(nodes, "graph", given, [y])
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(DOMAIN, 1)]
        return helper.make_model(graph, functions=[body], opset_imports=opsets, ir_version=8)

    # --- tensors ----------------------------------------------------------------------------------

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of its tensors by name."""
        heads = {"q": self.heads, "k": self.key_heads, "v": self.key_heads}
        sizes = {"q": self.size, "k": self.size, "v": self.value_size}
        widths: dict[str, int] = {}
        for name in "qkv":
            tensor = self._tensor(name)
            widths[tensor] = widths.get(tensor, 0) + heads[name] * sizes[name]
        shapes: dict[str, tuple[int, ...]] = {}
        for tensor, width in widths.items():
            queries = tensor.startswith("q")
            batch = self.batch if queries else self.batch_of_keys or self.batch
            positions = self.queries if queries else self.keys
            shapes[tensor] = (batch, positions, width)
            if self._by_heads(tensor):
                shapes[tensor] = (batch, heads[tensor], positions, sizes[tensor])
            elif self.order == "mixed" and tensor == "v":  # rows of two axes
                shapes[tensor] = (batch, positions, heads[tensor], sizes[tensor])
            if self.windows is not None:
                rows = np.empty((batch, positions, width), bool)
                shapes[tensor] = self.windows.image(rows, self.image_axes).shape
        if self.masking is not Masking.NONE:
            shapes["mask"] = self.mask_shape
        return shapes

    def draw(self, seed: int = 0) -> dict[str, np.ndarray]:
        """Random inputs, in float32 with the precision of its types."""
        random = np.random.default_rng(seed)
        drawn: dict[str, np.ndarray] = {
            name: random.standard_normal(shape).astype(self.dtype.numpy).astype(np.float32)
            for name, shape in self.shapes.items()
        }
        if self.masking is not Masking.NONE:
            kept = self._kept(random)
            if self.masking is Masking.ADDED:
                added = np.where(kept, drawn["mask"], self._excluding).astype(self.mask_type.numpy)
                drawn["mask"] = added.astype(np.float32)
            else:
                drawn["mask"] = kept if self.masking is Masking.KEPT else ~kept
        return drawn

    @property
    def _excluding(self) -> float:
        """A value that excludes a key where it is added: finite unless the original's is not."""
        if self.masked is not Masked.PLAIN:
            return -np.inf
        return -1e4 if self.mask_type is DType.F16 else -3e38

    def _kept(self, random: np.random.Generator) -> np.ndarray:
        """The keys that a mask of such a shape keeps: most of those between two positions of a row,
        and none of the first row. Where excluded scores of fp16 would differ by their rounding, a
        row has a key."""
        keys, shape = self.mask_shape[-1], (*self.mask_shape[:-1], 1)
        ends = np.sort(random.integers(0, keys + 1, (2, *shape)), axis=0)
        position = np.arange(keys)
        kept = (random.random(self.mask_shape) < 0.8) & (ends[0] <= position) & (position < ends[1])
        kept.reshape(-1, keys)[0] = False
        if self.masking is Masking.ADDED and self.mask_type is DType.F16:
            kept[..., keys // 2] = True
        answer: np.ndarray = kept
        return answer

    def operands(self, drawn: Mapping[str, np.ndarray]) -> tuple[np.ndarray, ...]:
        """q, k and v as [batch, heads, positions, size] in float64."""
        return tuple(self._operand(name, drawn) for name in "qkv")

    def answer(
        self, drawn: Mapping[str, np.ndarray], queries: slice | Sequence[int] = slice(None)
    ) -> np.ndarray:
        """y in float64, of some queries."""
        q, k, v = self.operands(drawn)
        q = q[:, :, queries]
        sharing = np.arange(self.heads) // (self.heads // self.key_heads)
        k, v = k[:, sharing], v[:, sharing]
        scores = self.scale * (q @ k.swapaxes(2, 3))
        if self.masking is Masking.ADDED:
            scores = scores + self._mask(drawn, queries)
        elif self.masking is not Masking.NONE:
            kept = self._mask(drawn, queries) == (self.masking is Masking.KEPT)
            scores = np.where(kept, scores, -np.inf)
        y = softmax(np.where(self._in_band()[queries], scores, -np.inf), self.masked) @ v
        y = y.swapaxes(1, 2)
        y = y.reshape(*y.shape[:2], -1) if self.joined else y
        return self.windows.image(y, self.image_axes) if self.windows else y

    def _mask(self, drawn: Mapping[str, np.ndarray], queries: slice | Sequence[int]) -> np.ndarray:
        """Rows of the mask."""
        mask = drawn["mask"]
        if self.period:
            mask = np.tile(mask, (self.batch // self.period, 1, 1, 1))
        return mask[..., queries, :] if mask.ndim > 1 and mask.shape[-2] > 1 else mask

    @property
    def limits(self) -> tuple[int, int, int]:
        """The band as kernels take it: first, last, shift."""
        return (*bounds(self.band), self.keys - self.queries if self.band.at_end else 0)

    def _in_band(self) -> np.ndarray:
        first, last, shift = self.limits
        distance = np.arange(self.keys) - np.arange(self.queries)[:, None] - shift
        inside: np.ndarray = (first <= distance) & (distance <= last)
        return inside

    # --- places -----------------------------------------------------------------------------------

    def _by_heads(self, name: str) -> bool:
        return self.order == "by heads" or (self.order == "mixed" and name == "k")

    def _tensor(self, name: str) -> str:
        """The tensor that holds queries, keys or values."""
        if self.order in ("packed", "interleaved"):
            return "qkv"
        return "kv" if self.order == "keys with values" and name != "q" else name

    def _view(self, name: str, tensors: Mapping[str, gs.Tensor]) -> View:
        tensor = tensors[self._tensor(name)]
        heads = self.heads if name == "q" else self.key_heads
        size = self.value_size if name == "v" else self.size
        order = HEADS if self._by_heads(name) else ROWS
        positions = tensor.shape[2 if order == HEADS else 1]
        pitch, first, lead = size, 0, 0
        if self.order == "interleaved":
            pitch, lead = 3 * size, "qkv".index(name) * size
        elif self._tensor(name) != name:
            before = {"q": 0, "k": self.heads, "v": self.heads + self.key_heads}
            first = before[name] - (self.heads if self._tensor(name) == "kv" else 0)
        whole = self._tensor(name) == name
        dims = tensor.shape[0], positions, heads, size
        return View(tensor, order, *dims, pitch, first, lead, whole)

    def _operand(self, name: str, drawn: Mapping[str, np.ndarray]) -> np.ndarray:
        values = drawn[self._tensor(name)].astype(np.float64)
        if self.windows is not None:
            pixels = values.reshape(len(values), self.windows.pixels, -1)
            values = pixels[:, self.windows.rows()].reshape(self.batch, self.queries, -1)
        if self._by_heads(name):
            return values
        heads = self.heads if name == "q" else self.key_heads
        values = values.reshape(*values.shape[:2], -1)
        if self.order == "interleaved":
            split = values.reshape(*values.shape[:2], heads, 3, -1)
            return split[..., "qkv".index(name), :].swapaxes(1, 2)
        widths = {"q": self.heads, "k": self.key_heads, "v": self.key_heads}
        held = [each for each in "qkv" if self._tensor(each) == self._tensor(name)]
        size = values.shape[-1] // sum(widths[each] for each in held)
        begin = sum(widths[each] for each in held[: held.index(name)]) * size
        part = values[..., begin : begin + heads * size]
        return part.reshape(*values.shape[:2], heads, size).swapaxes(1, 2)


def softmax(scores: np.ndarray, masked: Masked) -> np.ndarray:
    """Weights of keys in float64; scores of -inf exclude keys, and `masked` says what a row without
    any other score has."""
    peak = scores.max(axis=-1, keepdims=True)
    empty = np.isneginf(peak)
    weights = np.exp(scores - np.where(empty, 0, peak))
    total = weights.sum(axis=-1, keepdims=True)
    plain = {Masked.PLAIN: 1 / scores.shape[-1], Masked.ZERO: 0.0, Masked.NAN: np.nan}[masked]
    answer: np.ndarray = np.where(empty, plain, weights / np.where(empty, 1, total))
    return answer
