"""Values that are multiplied by transposed probabilities."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ops.attention_form import (
    SOME,
    D,
    Form,
    H,
    S,
    assert_in_16_bits,
    assert_same_answers,
    optimized,
)
from tests.support import matched


class Turned(Form):
    """YOLOv12's: the result is transposed once, to [B, S, heads, size]."""

    def v(self) -> str:
        return self.transpose(super().v(), 0, 1, 3, 2)

    def attended(self) -> str:
        q, k, v = self.q(), self.k(), self.v()
        scores = self.masked(self.net.node("MatMul", *self.scaled(q, k)))
        weights = self.transpose(self.weights(scores), 0, 1, 3, 2)
        return self.output(self.net.node("MatMul", v, weights))

    def output(self, y: str) -> str:
        return self.reshape(self.transpose(y, 0, 3, 1, 2), -1, S, H * D)


class TransposedBack(Turned):
    """By a Transpose of its own in front of that of other attentions."""

    def output(self, y: str) -> str:
        return super(Turned, self).output(self.transpose(y, 0, 1, 3, 2))


class Masked(Turned):
    def masked(self, scores: str) -> str:
        return self.add(scores, "added")


@pytest.mark.parametrize("form", [Turned, TransposedBack, Masked])
def test_probabilities_are_multiplied_by_values(form: type[Form], tmp_path: Path) -> None:
    source, out = form().model(), tmp_path / "out.onnx"
    report = optimized(source, out)
    assert report.passed
    assert len([node for node in report.fused if "Attention" in node.op]) == 1
    assert any("probabilities multiplied by values" in line for line in report.changes)
    assert_same_answers(source, out, (SOME,))


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_it_is_right_in_low_precision(precision: str, tmp_path: Path) -> None:
    assert_in_16_bits(Turned().model(), precision, tmp_path / "out.onnx")


class ReadElsewhere(Turned):
    """Another node reads the probabilities."""

    def weights(self, scores: str) -> str:
        weights = super().weights(scores)
        self.outputs.append(self.net.node("ReduceMax", weights, axes=[-1], keepdims=1))
        return weights


class MixedAxes(Turned):
    """The result keeps its axes."""

    def output(self, y: str) -> str:
        return self.reshape(y, -1, S, H * D)


@pytest.mark.parametrize("form", [ReadElsewhere, MixedAxes])
def test_near_misses_say_why(form: type[Form]) -> None:
    candidates, refusals = matched(form().model())
    assert not [each for each in candidates if each.anchor.op.name == "attention"]
    reasons = [refusal.reason for refusal in refusals if refusal.op == "Softmax"]
    assert reasons == ["its probabilities are read by Transpose"]
