"""Masks of attention, as exporters write them, become a band, the smallest tensor, or both."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

import onnxbolt
from onnxbolt.ops import OPS
from onnxbolt.ops.attention.found import CAPPED, AttentionAnchor, Band, Masked, Masking
from tests.ops.attention_form import (
    ALL,
    SOME,
    B,
    D,
    FoldedForm,
    Form,
    H,
    S,
    T,
    answers,
    feeds,
)
from tests.support import Net, matched, prepare

LOW = float(np.finfo(np.float32).min)
CAUSAL = Band(last=0)


class Masks(Form):
    """Parts of masks."""

    def range(self, source: str, axis: int, *axes: int) -> str:
        """Positions along an axis of `source`, with further axes of one index."""
        length = self.net.node(
            "Gather", self.net.node("Shape", source), self.net.const(axis, "int64")
        )
        zero, one = (self.net.const(value, np.int64) for value in (0, 1))
        positions = self.net.node("Range", zero, length, one)
        return self.net.node("Unsqueeze", positions, self.ints(*axes))

    def causal(self) -> str:
        """Booleans [1, 1, S, T]: key <= query."""
        rows, columns = self.range("x", 1, 0, 1, 3), self.range("context", 1, 0, 1, 2)
        return self.net.node("LessOrEqual", columns, rows)


# --- constants ------------------------------------------------------------------------------------


class ConstantCausal(Masks):
    def masked(self, scores: str) -> str:
        return self.add(scores, self.net.const(np.triu(np.full((1, 1, S, T), -np.inf), 1)))


class ConstantWindow(Masks):
    def masked(self, scores: str) -> str:
        distance = np.arange(T) - np.arange(S)[:, None]
        kept = self.net.const((distance >= -1) & (distance <= 2), np.bool_)
        return self.net.node("Where", kept, scores, self.net.const(LOW))


class ConstantBlocks(Masks):
    """It is no band, and stays a tensor."""

    def masked(self, scores: str) -> str:
        blocks = np.arange(S)[:, None] // 2 == np.arange(T) // 2
        return self.add(scores, self.net.const(np.where(blocks, 0, -np.inf)))


class EverythingKept(Masks):
    def masked(self, scores: str) -> str:
        kept = self.net.const(np.ones((1, 1, S, T)), np.bool_)
        return self.net.node("Where", kept, scores, self.net.const(-np.inf))


class Finite(Masks):
    """A key with -10000 may still count."""

    def masked(self, scores: str) -> str:
        return self.add(scores, self.net.const(np.triu(np.full((S, T), -1e4), 1)))


# --- computed of positions ------------------------------------------------------------------------


class Computed(Masks):
    """Hugging Face's."""

    def masked(self, scores: str) -> str:
        return self.add(scores, self.numbers(self.causal(), LOW))


class Sliding(Masks):
    """Hugging Face's: key > query - window."""

    def masked(self, scores: str) -> str:
        rows, columns = self.range("x", 1, 0, 1, 3), self.range("context", 1, 0, 1, 2)
        begin = self.net.node("Sub", rows, self.net.const(2, np.int64))
        window = self.net.node("Greater", columns, begin)
        kept = self.net.node("And", window, self.causal())
        return self.net.node("Where", self.net.node("Not", kept), self.net.const(LOW), scores)


class Around(Masks):
    """ModernBERT's: |query - key| <= 2."""

    def masked(self, scores: str) -> str:
        rows, columns = self.range("x", 1, 1), self.range("context", 1, 0)
        distance = self.net.node("Abs", self.net.node("Sub", rows, columns))
        far = self.net.node("Greater", distance, self.net.const(2, np.int64))
        far = self.net.node("Unsqueeze", far, self.ints(0, 1))
        return self.add(
            scores, self.net.node("Where", far, self.net.const(LOW), self.net.const(0.0))
        )


class Triangle(Masks):
    """TorchScript's is_causal, of the shapes of queries and keys."""

    def masked(self, scores: str) -> str:
        size = self.net.node("Slice", self.net.node("Shape", scores), self.ints(2), self.ints(4))
        ones = self.net.node("Expand", self.net.const([1.0]), size)
        ones = self.net.node("Trilu", ones, upper=0)
        none = self.net.node("Equal", ones, self.net.const([0.0]))
        low, zero = self.net.const([-np.inf]), self.net.const([0.0])
        return self.add(scores, self.net.node("Where", none, low, zero))


class Multiplied(Masks):
    """Hugging Face's of 2024: triu(full(low), 1) x (key > query)."""

    def masked(self, scores: str) -> str:
        size = self.net.node("Slice", self.net.node("Shape", scores), self.ints(2), self.ints(4))
        value = onnx.numpy_helper.from_array(np.array([LOW], np.float32))
        full = self.net.node("ConstantOfShape", size, value=value)
        full = self.net.node("Trilu", full, self.net.const(1, np.int64), upper=1)
        rows, columns = self.range("x", 1, 1), self.range("context", 1, 0)
        beyond = self.net.node("Greater", columns, rows)
        beyond = self.net.node("Cast", beyond, to=onnx.TensorProto.FLOAT)
        mask = self.net.node("Unsqueeze", self.net.node("Mul", full, beyond), self.ints(0, 1))
        return self.add(scores, mask)


class Part(Masks):
    """GPT-2's: rows and columns of a larger constant."""

    def masked(self, scores: str) -> str:
        whole = self.net.const(np.tril(np.ones((1, 1, 16, 16))), np.bool_)
        shape = self.net.node("Shape", scores)
        ends = (self.net.node("Gather", shape, self.ints(axis)) for axis in (2, 3))
        for axis, end in zip((2, 3), ends, strict=True):
            whole = self.net.node("Slice", whole, self.ints(0), end, self.ints(axis))
        return self.net.node("Where", whole, scores, self.net.const(LOW))


class OneSequence(Masks):
    """Hugging Face's: only keys of the same sequence, of which each batch has one."""

    def masked(self, scores: str) -> str:
        rows, columns = (self.net.const(np.zeros(shape), "int64") for shape in ((S, 1), (1, T)))
        length = self.net.node("Shape", "x", start=1, end=2)
        rows = self.net.node("Expand", rows, self.net.node("Concat", length, self.ints(1), axis=0))
        same = self.net.node("Equal", rows, columns)
        return self.add(scores, self.numbers(self.net.node("And", same, self.causal())))


# --- padding --------------------------------------------------------------------------------------


class Padding(Masks):
    """BERT's: (1 - padding) x the lowest number, [B, 1, 1, T]."""

    low = LOW

    def masked(self, scores: str) -> str:
        numbers = self.net.node("Unsqueeze", "padding", self.ints(1, 2))
        numbers = self.net.node("Cast", numbers, to=onnx.TensorProto.FLOAT)
        numbers = self.net.node("Sub", self.net.const(1.0), numbers)
        return self.add(scores, self.net.node("Mul", numbers, self.net.const(self.low)))


class FinitePadding(Padding):
    low = -1e4


class ExpandedPadding(Masks):
    """Hugging Face's: masked_fill of 1 - padding, expanded to [B, 1, S, T]."""

    def masked(self, scores: str) -> str:
        keys = self.net.node("Unsqueeze", "padding", self.ints(1, 2))
        keys = self.net.node("Expand", keys, self.ints(1, 1, S, T))
        numbers = self.net.node("Cast", keys, to=onnx.TensorProto.FLOAT)
        numbers = self.net.node("Sub", self.net.const(1.0), numbers)
        dropped = self.net.node("Cast", numbers, to=onnx.TensorProto.BOOL)
        mask = self.net.node("Where", dropped, self.net.const(LOW), numbers)
        return self.add(scores, mask)


class Gathered(Masks):
    """Hugging Face's: GatherND with a constant grid, And with constants."""

    def kept(self) -> str:
        rows = self.net.node("Cast", "padding", to=onnx.TensorProto.BOOL)
        grid = np.stack(np.meshgrid(np.arange(2), np.arange(T), indexing="ij"), -1)
        keys = self.net.node("GatherND", rows, self.net.const(grid[:, None, None], np.int64))
        return self.net.node("And", self.net.const(np.ones((1, 1, S, 1)), np.bool_), keys)

    def masked(self, scores: str) -> str:
        return self.add(scores, self.numbers(self.kept(), LOW))


class CausalPadding(Gathered):
    def masked(self, scores: str) -> str:
        kept = self.net.node("And", self.causal(), self.kept())
        return self.add(scores, self.numbers(kept, LOW))


class EitherDropped(Masks):
    """Or of what is dropped."""

    def masked(self, scores: str) -> str:
        dropped = [self.net.node("Not", each) for each in (self.causal(), self.padded())]
        return self.net.node("Where", self.net.node("Or", *dropped), self.net.const(LOW), scores)


class Dropped(Masks):
    """A boolean that is true where a key is dropped."""

    def masked(self, scores: str) -> str:
        dropped = self.net.node("Equal", "padding", self.net.const(0, np.int64))
        dropped = self.net.node("Unsqueeze", dropped, self.ints(1, 2))
        return self.net.node("Where", dropped, self.net.const(LOW), scores)


# --- several --------------------------------------------------------------------------------------


class TwoForGood(Masks):
    """Both exclude keys by -inf."""

    def masked(self, scores: str) -> str:
        scores = self.add(scores, self.numbers(self.padded()))
        return self.add(scores, self.numbers(self.causal()))


class BiasAndBand(Masks):
    """A bias per head, and a causal mask."""

    def masked(self, scores: str) -> str:
        scores = self.add(scores, self.net.normal(1, H, S, T))
        return self.net.node("Where", self.causal(), scores, self.net.const(LOW))


class Windows(Masks):
    """Swin's: a bias per head, and a mask per window, of which an image has two."""

    def masked(self, scores: str) -> str:
        scores = self.add(scores, self.net.normal(1, H, S, T))
        scores = self.reshape(scores, -1, 2, H, S, T)
        scores = self.add(scores, self.net.normal(1, 2, 1, S, T))
        return self.reshape(scores, -1, H, S, T)


class AddedAndBand(Masks):
    def masked(self, scores: str) -> str:
        return self.add(self.add(scores, "added"), self.numbers(self.causal()))


class ScaledBehind(Masks):
    """The scale multiplies -inf, too."""

    def scaled(self, q: str, k: str) -> tuple[str, str]:
        return q, k

    def masked(self, scores: str) -> str:
        return self.times(self.add(scores, self.numbers("kept")), 0.25)


class OneNumber(Masks):
    """A choice between equal numbers keeps every key."""

    def masked(self, scores: str) -> str:
        one = self.net.node("Where", "kept", self.net.const(1.0), self.net.const(1.0))
        every = self.net.node("Cast", one, to=onnx.TensorProto.BOOL)
        return self.net.node("Where", every, scores, self.net.const(-np.inf))


class BeyondFloats(Masks):
    """Twice the number that it puts is -inf in fp32."""

    def masked(self, scores: str) -> str:
        return self.times(self.net.node("Where", "kept", scores, self.net.const(-3e38)), 2.0)


NONE, KEPT, DROPPED, ADDED = Masking.NONE, Masking.KEPT, Masking.DROPPED, Masking.ADDED
PLAIN, NAN = Masked.PLAIN, Masked.NAN
FORMS = [
    (ConstantCausal, NONE, None, CAUSAL, NAN),
    (ConstantWindow, NONE, None, Band(-1, 2), PLAIN),
    (ConstantBlocks, ADDED, [S, T], Band(), NAN),
    (EverythingKept, NONE, None, Band(), PLAIN),
    (Finite, ADDED, [S, T], Band(), PLAIN),
    (Computed, NONE, None, CAUSAL, NAN),
    (Sliding, NONE, None, Band(-1, 0), PLAIN),
    (Around, NONE, None, Band(-2, 2), PLAIN),
    (Triangle, NONE, None, CAUSAL, NAN),
    (Multiplied, NONE, None, CAUSAL, NAN),
    (OneSequence, NONE, None, CAUSAL, NAN),
    (Part, NONE, None, CAUSAL, NAN),
    (Padding, ADDED, ["batch", 1, 1, T], Band(), NAN),
    (FinitePadding, ADDED, ["batch", 1, 1, T], Band(), NAN),
    (ExpandedPadding, DROPPED, ["batch", 1, 1, T], Band(), PLAIN),
    (Gathered, KEPT, [2, 1, 1, T], Band(), PLAIN),
    (CausalPadding, KEPT, [2, 1, 1, T], CAUSAL, PLAIN),
    (EitherDropped, KEPT, ["batch", 1, 1, T], CAUSAL, PLAIN),
    (Dropped, DROPPED, ["batch", 1, 1, T], Band(), PLAIN),
    (TwoForGood, KEPT, ["batch", 1, 1, T], CAUSAL, NAN),
    (BiasAndBand, ADDED, [1, H, S, T], CAUSAL, PLAIN),
    (Windows, ADDED, [2, H, S, T], Band(), PLAIN),
    (AddedAndBand, ADDED, ["batch", 1, S, T], CAUSAL, NAN),
    (ScaledBehind, KEPT, ["batch", 1, S, T], Band(), NAN),
    (OneNumber, NONE, None, Band(), PLAIN),
    (BeyondFloats, KEPT, ["batch", 1, S, T], Band(), NAN),
]


@pytest.mark.parametrize(("form", "kind", "shape", "band", "masked"), FORMS)
def test_masks_are_what_they_say(
    form: type[Form],
    kind: Masking,
    shape: list[int | str] | None,
    band: Band,
    masked: Masked,
    tmp_path: Path,
) -> None:
    source, out = form("batch").model(), tmp_path / "out.onnx"
    (found,) = (c.anchor for c in matched(source)[0] if c.anchor.op.name == "attention")
    assert isinstance(found, AttentionAnchor)
    mask = found.attention.mask
    assert (mask.kind, mask.band, found.attention.masked) == (kind, band, masked)
    assert (None if mask.tensor is None else list(mask.tensor.shape)) == shape
    onnxbolt.optimize(source, out, archs="sm_80", precision="keep", library=False, verify=False)
    optimized = onnx.load(out)
    assert any(node.op_type.startswith("FusedAttention") for node in optimized.graph.node)
    for excluded in (SOME, ALL):
        given = feeds(source, excluded)
        expected, got = answers(source, given), answers(optimized, given)
        np.testing.assert_allclose(got, expected, atol=1e-5)


# --- near misses ----------------------------------------------------------------------------------


class PutsScore(Masks):
    """A key with -10000 put in the place of its score may still count."""

    def masked(self, scores: str) -> str:
        return self.net.node("Where", "kept", scores, self.net.const(-1e4))


class WindowsOfImages(Masks):
    """Swin's windows, whose number of images is an axis, with a mask that is computed."""

    def masked(self, scores: str) -> str:
        scores = self.reshape(scores, -1, 2, H, S, T)
        scores = self.add(scores, self.net.node("Unsqueeze", "added", self.ints(0)))
        return self.reshape(scores, -1, H, S, T)


class Capped(Masks):
    """Gemma's."""

    def masked(self, scores: str) -> str:
        return self.times(self.net.node("Tanh", self.times(scores, 0.02)), 50.0)


class MoreScores(Masks):
    def masked(self, scores: str) -> str:
        return self.add(scores, self.net.normal(3, 1, 1, S, T))


class ChangedBehind(Masks):
    """The first query has no key, and so the weights that the numbers added behind make."""

    def masked(self, scores: str) -> str:
        kept = self.net.const(np.tril(np.ones((S, T)), -1), np.bool_)
        scores = self.net.node("Where", kept, scores, self.net.const(-1e5))
        return self.add(scores, self.net.normal(1, H, S, T))


class Folded(FoldedForm, Masks):
    """Scores with one axis for batch and heads."""


class OtherHeads(Folded):
    """The second axis of the mask is batch and heads."""

    def masked(self, scores: str) -> str:
        turned = self.net.node("Transpose", "added", perm=[1, 0, 2, 3])
        whole = self.net.node("Concat", *[turned] * H, axis=1)
        return self.add(scores, self.reshape(whole, -1, S, T))


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        (ChangedBehind, "its mask puts a number that another one changes"),
        (OtherHeads, "its mask has other batches or heads than its scores"),
        (PutsScore, "its mask puts a number that scores may have: -10000"),
        (WindowsOfImages, "its masks of windows are no constants that are added"),
        (Capped, CAPPED),
    ],
)
def test_near_misses_say_why(form: type[Form], reason: str) -> None:
    candidates, refusals = matched(form().model())
    assert not [c for c in candidates if c.anchor.op.name == "attention"]
    assert reason in [refusal.reason for refusal in refusals if refusal.op == "Softmax"]


class OtherLength(Masks):
    """The positions are those of another tensor, whose length may differ."""

    def causal(self) -> str:
        rows, columns = self.range("x", 1, 0, 1, 3), self.range("padding", 1, 0, 1, 2)
        return self.net.node("LessOrEqual", columns, rows)

    def masked(self, scores: str) -> str:
        return self.add(scores, self.numbers(self.causal()))


def test_positions_count_only_along_queries_and_keys() -> None:
    form = OtherLength()
    for value in form.net.inputs:
        if value.name == "padding":
            value.type.tensor_type.shape.dim[1].dim_param = "length"
    pattern = OPS["attention"].anchors()[0]
    graph = prepare(form.model())
    (match,) = (pattern.match(node) for node in graph.nodes if node.op == "Softmax")
    assert isinstance(match, tuple)
    assert isinstance(match[0], AttentionAnchor)
    mask = match[0].attention.mask
    assert (mask.kind, mask.band) == (Masking.KEPT, Band())


# --- fp16's lowest number -------------------------------------------------------------------------


def test_the_lowest_number_of_fp16_is_all_that_is_left_of_a_score() -> None:
    """Queries without keys get the mean of all values, as the sum in fp16 gives them."""
    half = np.dtype(np.float16)
    names = {"q": S, "k": T, "v": T}
    types: dict[str, int] = {**dict.fromkeys(names, TensorProto.FLOAT16), "kept": TensorProto.BOOL}
    shapes: dict[str, Sequence[int | str]] = {n: (B, count, H * D) for n, count in names.items()}
    shapes["kept"] = (B, 1, S, T)
    net = Net(shapes, types=types)

    def by_heads(name: str, *perm: int) -> str:
        shape = net.const((0, 0, H, D), np.int64)
        return net.node("Transpose", net.node("Reshape", name, shape), perm=perm)

    q, k, v = by_heads("q", 0, 2, 1, 3), by_heads("k", 0, 2, 3, 1), by_heads("v", 0, 2, 1, 3)
    zero, low = net.const(0, half), net.const(np.finfo(half).min, half)
    mask = net.node("Where", "kept", zero, low)
    scores = net.node("Add", net.node("MatMul", q, k), mask)
    y = net.node("MatMul", net.node("Softmax", scores, axis=-1), v)
    rows = net.const((0, 0, H * D), np.int64)
    y = net.node("Reshape", net.node("Transpose", y, perm=[0, 2, 1, 3]), rows)
    (match,) = (
        pattern.match(node)
        for pattern in OPS["attention"].anchors()[:1]
        for node in prepare(net.model(y)).nodes
        if node.op == "Softmax"
    )
    assert isinstance(match, tuple)
    assert isinstance(match[0], AttentionAnchor)
    found = match[0].attention
    assert (found.mask.kind, found.masked) == (Masking.KEPT, PLAIN)

    scores_of_16_bits = np.linspace(-15.9, 15.9, 9).astype(half)
    assert np.unique(scores_of_16_bits + np.finfo(half).min).size == 1
