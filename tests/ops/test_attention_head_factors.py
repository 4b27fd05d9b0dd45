"""Constant factors of heads, which queries are multiplied by."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from onnxbolt.ops.attention.found import CAPPED
from tests.ops.attention_form import (
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

FACTORS = np.array([2.0, 100.0, 0.01, 7.0], np.float32)


class Cosine(Form):
    """Swin v2's: queries and keys of length 1, and a factor for each head."""

    factors: np.ndarray = FACTORS.reshape(H, 1, 1)

    def unit(self, x: str) -> str:
        length = self.net.node("ReduceL2", x, axes=[-1], keepdims=1)
        return self.net.node("Div", x, self.net.node("Clip", length, self.net.const(1e-12)))

    def q(self) -> str:
        return self.unit(super().q())

    def k(self) -> str:
        return self.transpose(self.unit(self.projected("context", T)), 0, 1, 3, 2)

    def scaled(self, q: str, k: str) -> tuple[str, str]:
        return q, k

    def masked(self, scores: str) -> str:
        scores = self.net.node("Mul", scores, self.net.const(self.factors))
        return self.net.node("Add", scores, self.net.normal(1, H, S, T))


class Divided(Cosine):
    """By the reciprocals."""

    def masked(self, scores: str) -> str:
        scores = self.net.node("Div", scores, self.net.const(1 / self.factors))
        return self.net.node("Add", scores, "added")


class ScaledBefore(Cosine):
    """A number and factors, of which some are 0 or negative."""

    factors = np.array([1.0, -2.0, 0.0, 5.0], np.float32).reshape(1, H, 1, 1)

    def masked(self, scores: str) -> str:
        scores = self.net.node("Mul", self.net.const(self.factors), self.times(scores, 0.5))
        return self.net.node("Where", "kept", scores, self.net.const(-np.inf))


class Windows(Cosine):
    """Masks of windows that are added to scores of rank 5, twice; an image has one window here."""

    def masked(self, scores: str) -> str:
        scores = self.reshape(super().masked(scores), -1, 1, H, S, T)
        mask = self.net.normal(1, 1, 1, S, T)
        scores = self.net.node("Add", self.net.node("Add", scores, mask), mask)
        return self.reshape(scores, -1, H, S, T)


@pytest.mark.parametrize("form", [Cosine, Divided, ScaledBefore, Windows])
def test_factors_move_to_queries(form: type[Form], tmp_path: Path) -> None:
    source = form().model()
    report = optimized(source, tmp_path / "out.onnx")
    assert report.passed
    assert len([node for node in report.fused if "Attention" in node.op]) == 1
    assert "attention: 1 (factors of heads moved to queries)" in report.changes
    assert_same_answers(source, tmp_path / "out.onnx")


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize("form", [Cosine, ScaledBefore, Windows])
def test_it_is_right_in_low_precision(form: type[Form], precision: str, tmp_path: Path) -> None:
    """Casts to 16 bits stand between what makes the queries and keys units and the products."""
    assert_in_16_bits(form("batch").model(), precision, tmp_path / "out.onnx")


def test_the_greatest_factor_is_the_scale() -> None:
    graph = prepare(Cosine().model())
    (softmax,) = (node for node in graph.nodes if node.op == "Softmax")
    scaled = softmax.inputs[0].inputs[0].inputs[0].inputs[0]
    assert scaled.op == "Mul"
    assert scaled.inputs[1].values == 100
    queries = scaled.inputs[0].inputs[0].inputs[0].inputs[0]
    np.testing.assert_allclose(queries.inputs[1].values.reshape(-1), FACTORS / 100)


class OfQueries(Cosine):
    factors = np.linspace(1, 2, H * S, dtype=np.float32).reshape(H, S, 1)


class Unknown(Cosine):
    """Factors that are no constants."""

    def masked(self, scores: str) -> str:
        factors = self.net.node("ReduceMax", "added", axes=[2, 3])
        return self.net.node("Mul", scores, factors)


class Infinite(Cosine):
    factors = np.array([1, np.inf, 1, 1], np.float32).reshape(H, 1, 1)


class Folded(Cosine):
    """Products over batch and heads as one axis: queries times factors are no view of heads."""

    factors = np.tile(FACTORS, B).reshape(B * H, 1, 1)

    def scaled(self, q: str, k: str) -> tuple[str, str]:
        return self.reshape(q, -1, S, D), self.reshape(k, -1, D, T)

    def masked(self, scores: str) -> str:
        scores = self.net.node("Mul", scores, self.net.const(self.factors))
        return self.reshape(scores, -1, H, S, T)


class ReadTwice(Cosine):
    """The scores before the factors are an output as well."""

    def masked(self, scores: str) -> str:
        self.outputs.append(scores)
        return super().masked(scores)


class Capped(Form):
    """Gemma 2's: tanh between the scale and the mask."""

    def masked(self, scores: str) -> str:
        scores = self.times(self.net.node("Tanh", self.times(scores, 0.02)), 50.0)
        return self.net.node("Add", scores, "added")


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        (OfQueries, "its scores are changed by Mul"),
        (Unknown, "its scores are changed by Mul"),
        (Folded, "its scores are changed by Mul"),
        (Infinite, "its scores are changed by Mul"),
        (ReadTwice, "its scores are changed by Mul"),
        (Capped, CAPPED),
    ],
)
def test_near_misses_say_why(form: type[Form], reason: str) -> None:
    candidates, refusals = matched(form().model())
    assert not [each for each in candidates if each.anchor.op.name == "attention"]
    assert [refusal.reason for refusal in refusals if refusal.op == "Softmax"] == [reason]


class WindowsOfQueries(Windows):
    factors = OfQueries.factors


class MaskOfManyNodes(OfQueries):
    """Nodes that make a mask are more than those of the scores."""

    def masked(self, scores: str) -> str:
        mask = "added"
        for _ in range(12):
            mask = self.net.node("Add", self.times(mask, 1.5), self.net.node("Exp", mask))
        return self.net.node("Add", super().masked(scores), mask)


@pytest.mark.parametrize("form", [WindowsOfQueries, MaskOfManyNodes])
def test_no_attention_is_without_a_reason(form: type[Form]) -> None:
    _, refusals = matched(form().model())
    reasons = [refusal.reason for refusal in refusals if refusal.op == "Softmax"]
    assert reasons == ["its scores are changed by Mul"]
