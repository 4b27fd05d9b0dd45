"""Scores that are scaled behind masks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.ops.attention_form import (
    SOME,
    D,
    FoldedForm,
    Form,
    H,
    S,
    T,
    assert_in_16_bits,
    assert_same_answers,
    optimized,
)
from tests.support import matched

LOW = float(np.finfo(np.float32).min)


class Relative(Form):
    """A Conformer's: scores and a part of a product of queries and relative positions, divided
    together."""

    def scaled(self, q: str, k: str) -> tuple[str, str]:
        return q, k

    def bias(self) -> str:
        product = self.net.node("MatMul", self.projected("x", S), self.net.normal(1, H, D, T + 1))
        return self.net.node("Slice", product, *(self.ints(n) for n in (0, T, 3)))

    def behind(self, scores: str) -> str:
        return self.net.node("Div", scores, self.net.const(D**0.5))

    def masked(self, scores: str) -> str:
        return self.behind(self.add(scores, self.bias()))


class Multiplied(Relative):
    def behind(self, scores: str) -> str:
        return self.net.node("Mul", self.net.const(D**-0.5), scores)


class Constant(Relative):
    def bias(self) -> str:
        return self.net.normal(1, H, S, T)


class ThenExcluded(Relative):
    """WeNet's and NeMo's: masked_fill behind the division."""

    def masked(self, scores: str) -> str:
        masked = self.net.node("Not", "kept")
        return self.net.node("Where", masked, self.net.const(-np.inf), super().masked(scores))


class ThenPadding(Relative):
    def masked(self, scores: str) -> str:
        return self.add(super().masked(scores), self.numbers(self.padded(), LOW))


class TwoProducts(Relative):
    """wav2vec2-BERT's: the bias is a whole product of queries and a table of distances."""

    def bias(self) -> str:
        q, table = self.projected("x", S), self.net.normal(S, T, D)
        return self.net.node("Einsum", q, table, equation="bhld,lrd->bhlr")


class TwoSums(Relative):
    """XLNet's: a third product, of segments."""

    def masked(self, scores: str) -> str:
        segments = self.net.node("Tanh", self.net.normal(1, H, S, T))
        return self.behind(self.add(self.add(scores, self.bias()), segments))


class Folded(Relative, FoldedForm):
    """One axis for batch and heads."""

    def bias(self) -> str:
        return self.reshape(super().bias(), -1, S, T)


FORMS = (Relative, Multiplied, Constant, ThenExcluded, ThenPadding, TwoProducts, TwoSums, Folded)


@pytest.mark.parametrize("form", FORMS)
def test_masks_are_scaled_in_front_of_the_sum(form: type[Form], tmp_path: Path) -> None:
    source, out = form().model(), tmp_path / "out.onnx"
    report = optimized(source, out)
    assert report.passed
    assert len([node for node in report.fused if "Attention" in node.op]) == 1
    assert any("masks scaled before they are added" in line for line in report.changes)
    assert_same_answers(source, out, (SOME,))


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_it_is_right_in_low_precision(precision: str, tmp_path: Path) -> None:
    assert_in_16_bits(Relative().model(), precision, tmp_path / "out.onnx")


class ReadBetween(Relative):
    """Another node reads the sum that is scaled."""

    def masked(self, scores: str) -> str:
        total = self.add(scores, self.bias())
        self.outputs = [self.net.node("ReduceMax", total, axes=[-1], keepdims=1)]
        return self.behind(total)


class ExcludedBetween(Relative):
    """A Where stands between the sum and its scale."""

    def masked(self, scores: str) -> str:
        total = self.add(scores, self.bias())
        return self.behind(self.net.node("Where", "kept", total, self.net.const(-np.inf)))


class DividedBetween(Folded):
    """Batch and heads are divided between the sum and its scale."""

    def masked(self, scores: str) -> str:
        total = self.add(scores, self.bias())
        return self.reshape(self.behind(self.reshape(total, -1, H, S, T)), -1, S, T)


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        (ReadBetween, "its scores are read elsewhere, too"),
        (ExcludedBetween, "its mask is scaled"),
        (DividedBetween, "its mask is scaled"),
    ],
)
def test_near_misses_say_why(form: type[Form], reason: str) -> None:
    candidates, refusals = matched(form().model())
    assert not [each for each in candidates if each.anchor.op.name == "attention"]
    assert [refusal.reason for refusal in refusals if refusal.op == "Softmax"] == [reason]
