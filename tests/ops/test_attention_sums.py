"""Several masks of an attention become one that is added."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.ops.attention_form import (
    SOME,
    B,
    D,
    Form,
    H,
    S,
    T,
    assert_in_16_bits,
    assert_same_answers,
    optimized,
)
from tests.support import matched, prepare

LOW = float(np.finfo(np.float32).min)
SHAPES = ((T,), (S, T), (1, 1, S, T), (B, 1, S, T), (1, H, S, T), (B, H, S, T), (B, 1, 1, T))


class PositionsAndPadding(Form):
    """T5's."""

    def masked(self, scores: str) -> str:
        scores = self.add(scores, self.net.node("Sigmoid", self.net.normal(1, H, S, T)))
        return self.add(scores, self.numbers(self.padded(), LOW))


class PaddingAndPositions(Form):
    def masked(self, scores: str) -> str:
        scores = self.add(scores, self.numbers(self.padded(), LOW))
        return self.add(scores, self.net.normal(1, H, S, T))


class PutBehindAdded(Form):
    """BLOOM's: masked_fill behind a bias."""

    low = -np.inf

    def masked(self, scores: str) -> str:
        scores = self.add(scores, self.net.normal(1, H, 1, T))
        return self.net.node("Where", "kept", scores, self.net.const(self.low))


class LowPutBehindAdded(PutBehindAdded):
    low = LOW


class PutFirst(Form):
    def masked(self, scores: str) -> str:
        masked = self.net.node("Not", "kept")
        scores = self.net.node("Where", masked, self.net.const(-np.inf), scores)
        return self.add(scores, self.net.normal(H, S, T))


class TwoConditions(Form):
    def masked(self, scores: str) -> str:
        scores = self.add(scores, self.numbers(self.padded()))
        return self.add(scores, self.numbers("kept"))


class LowTwice(Form):
    """Keys that both exclude have -inf, and others the lowest number."""

    def masked(self, scores: str) -> str:
        scores = self.add(scores, self.numbers(self.padded(), LOW))
        return self.add(scores, self.numbers("kept", LOW))


class Three(Form):
    def masked(self, scores: str) -> str:
        scores = self.add(self.add(scores, self.net.normal(1, H, S, T)), "added")
        return self.add(scores, self.numbers(self.padded(), LOW))


class Folded(Form):
    """Products over batch and heads as one axis, divided behind the first mask."""

    def scaled(self, q: str, k: str) -> tuple[str, str]:
        q, k = super().scaled(q, k)
        return self.reshape(q, -1, S, D), self.reshape(k, -1, D, T)

    def bias(self) -> str:
        return self.net.normal(1, S, T)

    def masked(self, scores: str) -> str:
        scores = self.reshape(self.add(scores, self.bias()), -1, H, S, T)
        return self.add(scores, self.numbers(self.padded(), LOW))


class Alibi(Folded):
    """BLOOM's bias of a head and a key, by the number of keys before it that are no padding."""

    def bias(self) -> str:
        keys = self.net.node("CumSum", "padding", self.net.const(1, np.int64))
        keys = self.net.node("Cast", keys, to=onnx.TensorProto.FLOAT)
        slopes = self.net.const(np.float32(2.0) ** -np.arange(H, dtype=np.float32).reshape(H, 1))
        bias = self.net.node("Mul", slopes, self.net.node("Unsqueeze", keys, self.ints(1)))
        return self.reshape(bias, -1, 1, T)


class Disentangled(Folded):
    """DeBERTa's bias, computed from queries, and a condition behind the Reshape."""

    def bias(self) -> str:
        q = self.reshape(self.projected("x", S), -1, S, D)
        return self.net.node("MatMul", q, self.net.normal(D, T))

    def masked(self, scores: str) -> str:
        scores = self.reshape(self.add(scores, self.bias()), -1, H, S, T)
        masked = self.net.node("Not", "kept")
        return self.net.node("Where", masked, self.net.const(LOW), scores)


FOLDED = (Folded, Alibi, Disentangled)


@pytest.mark.parametrize(
    "form",
    [
        *FOLDED,
        PositionsAndPadding,
        PaddingAndPositions,
        PutBehindAdded,
        LowPutBehindAdded,
        PutFirst,
        TwoConditions,
        LowTwice,
        Three,
    ],
)
def test_several_masks_are_one(form: type[Form], tmp_path: Path) -> None:
    source = form("batch").model()
    report = optimized(source, tmp_path / "out.onnx")
    assert report.passed
    assert len([node for node in report.fused if "Attention" in node.op]) == 1
    assert any("several masks joined to one" in line for line in report.changes)
    assert_same_answers(source, tmp_path / "out.onnx")


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize("form", [*FOLDED, PositionsAndPadding, LowPutBehindAdded])
def test_it_is_right_in_low_precision(form: type[Form], precision: str, tmp_path: Path) -> None:
    assert_in_16_bits(form().model(), precision, tmp_path / "out.onnx")


class AnyShapes(Form):
    shapes: tuple[tuple[int, ...], ...] = ()

    def masked(self, scores: str) -> str:
        for shape in self.shapes:
            random = self.net.node("Sigmoid", self.net.normal(*shape))
            scores = self.add(scores, random)
        return scores


@pytest.mark.parametrize("seed", range(6))
def test_masks_of_all_shapes_are_joined(seed: int, tmp_path: Path) -> None:
    form = AnyShapes()
    picked = np.random.default_rng(seed).permutation(len(SHAPES))[:2]
    form.shapes = tuple(SHAPES[index] for index in picked)
    source = form.model()
    report = optimized(source, tmp_path / "out.onnx")
    assert [node for node in report.fused if "Attention" in node.op]
    assert_same_answers(source, tmp_path / "out.onnx", [SOME])


class TwoLayers(PositionsAndPadding):
    """Both layers have the same masks."""

    def masked(self, scores: str) -> str:
        if not hasattr(self, "parts"):
            self.parts = self.net.normal(1, H, S, T), self.numbers(self.padded(), LOW)
        return self.add(self.add(scores, self.parts[0]), self.parts[1])

    def attended(self) -> str:
        return self.add(super().attended(), super().attended())


def test_layers_share_the_sum() -> None:
    graph = prepare(TwoLayers().model())
    masks = {
        tensor.name
        for node in graph.nodes
        if node.op == "Softmax"
        for tensor in node.inputs[0].inputs[0].inputs[1:]
    }
    assert len(masks) == 1


class PutsScore(Form):
    def masked(self, scores: str) -> str:
        scores = self.add(self.add(scores, "added"), self.net.normal(1, H, S, T))
        return self.net.node("Where", "kept", scores, self.net.const(-10000.0))


class ReadBetween(Folded):
    """The scores between the masks are an output."""

    def reshape(self, x: str, *shape: int) -> str:
        y = super().reshape(x, *shape)
        self.outputs += [y] if shape == (-1, H, S, T) else []
        return y


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        (ReadBetween, "it has several masks"),
        (PutsScore, "its mask puts a number that scores may have: -10000"),
    ],
)
def test_near_misses_say_why(form: type[Form], reason: str) -> None:
    candidates, refusals = matched(form().model())
    assert not [each for each in candidates if each.anchor.op.name == "attention"]
    assert [refusal.reason for refusal in refusals if refusal.op == "Softmax"] == [reason]
