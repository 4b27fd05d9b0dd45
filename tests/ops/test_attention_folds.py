"""Masks with one axis for batch and heads are divided."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.ops.attention_form import (
    B,
    D,
    FoldedForm,
    Form,
    H,
    S,
    T,
    assert_same_answers,
    optimized,
)
from tests.support import matched, prepare


class Folded(FoldedForm):
    """torch.nn.MultiheadAttention's mask for each head: products by torch.bmm, and a mask
    [batch x heads, queries, keys]."""

    def mask(self) -> str:
        heads = self.net.node("Add", "added", self.net.normal(1, H, S, T))
        return self.transpose(self.reshape(self.transpose(heads, 0, 1, 3, 2), -1, T, S), 0, 2, 1)

    def masked(self, scores: str) -> str:
        return self.net.node("Add", scores, self.mask())


class OneQuery(Folded):
    """The same for all queries."""

    def mask(self) -> str:
        return self.net.node("ReduceMin", super().mask(), axes=[1], keepdims=1)


class Excluded(Folded):
    """A boolean."""

    def masked(self, scores: str) -> str:
        mask = self.net.node("Less", super().mask(), self.net.const(-1.0))
        return self.net.node("Where", mask, self.net.const(-np.inf), scores)


class SingleHead(Form):
    """Scores [batch, queries, keys], and a mask of these axes."""

    def projected(self, x: str, positions: int) -> str:
        return self.net.node("MatMul", x, self.net.normal(H * D, D, scale=(H * D) ** -0.5))

    def k(self) -> str:
        return self.transpose(self.projected("context", T), 0, 2, 1)

    def mask(self) -> str:
        return self.reshape("added", -1, S, T)

    def masked(self, scores: str) -> str:
        return self.net.node("Add", scores, self.mask())

    def output(self, y: str) -> str:
        return self.net.node("MatMul", y, self.net.normal(D, H * D))


class SingleHeadExcluded(SingleHead):
    """A boolean."""

    def masked(self, scores: str) -> str:
        mask = self.net.node("Less", self.mask(), self.net.const(-1.0))
        return self.net.node("Where", mask, self.net.const(-np.inf), scores)


class SingleHeadOneQuery(SingleHead):
    """The same for all queries."""

    def mask(self) -> str:
        return self.net.node("ReduceMin", super().mask(), axes=[1], keepdims=1)


class TwoLayers(Folded):
    """Both layers have the same mask."""

    def mask(self) -> str:
        if not hasattr(self, "shared"):
            self.shared = super().mask()
        return self.shared

    def attended(self) -> str:
        return self.net.node("Add", super().attended(), super().attended())


class ConstantAndCausal(Folded):
    """BLOOM's without padding: a constant bias of heads and keys, and a causal mask behind a
    Reshape that divides batch and heads."""

    second_mask = np.where(np.tri(S, T) > 0, 0, np.finfo(np.float32).min)

    def mask(self) -> str:
        return self.net.const(-np.random.default_rng(3).random((B * H, 1, T)))

    def masked(self, scores: str) -> str:
        scores = self.reshape(super().masked(scores), B, H, S, T)
        return self.net.node("Add", scores, self.net.const(self.second_mask))

    def weights(self, scores: str) -> str:
        return self.reshape(super().weights(scores), B * H, S, T)


class ComputedAndCausal(ConstantAndCausal):
    """DeBERTa's without padding: the bias is computed. A mask of two numbers becomes one with it,
    since the bias of a key without weight may be any number."""

    def mask(self) -> str:
        return Folded.mask(self)


class OneForAll(ConstantAndCausal):
    """A constant that is the same for batch and heads."""

    def mask(self) -> str:
        return self.net.const(-np.random.default_rng(3).random((1, S, T)))


@pytest.mark.parametrize("precision", ["keep", "fp16", "bf16"])
@pytest.mark.parametrize(
    ("form", "words"),
    [
        (ConstantAndCausal, ["masks divided into batch and heads"]),
        (
            ComputedAndCausal,
            ["several masks joined to one", "masks divided into batch and heads"],
        ),
        (OneForAll, []),
    ],
)
def test_a_divided_mask_and_another_one(
    form: type[Form], words: list[str], precision: str, tmp_path: Path
) -> None:
    source = form().model()
    report = optimized(source, tmp_path / "out.onnx", precision)
    assert report.passed
    assert len([node for node in report.fused if "Attention" in node.op]) == 1
    assert [line for line in report.changes if line.startswith("attention: ")] == [
        f"attention: 1 ({each})" for each in words
    ]
    if precision == "keep":
        assert_same_answers(source, tmp_path / "out.onnx")


@pytest.mark.parametrize("batch", [2, "batch"])
@pytest.mark.parametrize("precision", ["keep", "fp16"])
@pytest.mark.parametrize(
    "form", [Folded, OneQuery, Excluded, SingleHead, SingleHeadExcluded, SingleHeadOneQuery]
)
def test_masks_are_divided(
    form: type[Form], precision: str, batch: int | str, tmp_path: Path
) -> None:
    source = form(batch).model()
    report = optimized(source, tmp_path / "out.onnx", precision)
    assert report.passed
    assert len([node for node in report.fused if "Attention" in node.op]) == 1
    assert "attention: 1 (masks divided into batch and heads)" in report.changes
    if precision == "keep":
        assert_same_answers(source, tmp_path / "out.onnx")


def test_layers_share_the_mask() -> None:
    graph = prepare(TwoLayers().model())
    softmaxes = [node for node in graph.nodes if node.op == "Softmax"]
    assert len(softmaxes) == 2
    assert len({node.inputs[0].inputs[0].inputs[1].name for node in softmaxes}) == 1


class OtherResult(Folded):
    """The heads of the result are not brought behind its queries."""

    def output(self, y: str) -> str:
        return self.reshape(y, -1, S, H * D)


def test_what_is_refused_for_other_reasons_stays() -> None:
    source = OtherResult().model()
    assert not [node for node in prepare(source).nodes if node.op == "Shape"]
    _, refusals = matched(source)
    reasons = [refusal.reason for refusal in refusals if refusal.op == "Softmax"]
    assert reasons == ["its result is not brought to [batch, queries, heads, size]"]


class SumOfSquares(SingleHead):
    """Squares where a Squeeze might be."""

    def k(self) -> str:
        return self.net.node("Unsqueeze", super().k(), self.ints(1))

    def q(self) -> str:
        return self.net.node("Unsqueeze", super().q(), self.ints(1))

    def masked(self, scores: str) -> str:
        return scores

    def weights(self, scores: str) -> str:
        return self.net.node("ReduceSumSquare", super().weights(scores), axes=[1], keepdims=0)


def test_other_nodes_join_no_axes() -> None:
    candidates, refusals = matched(SumOfSquares().model())
    assert not [each for each in candidates if each.anchor.op.name == "attention"]
    reasons = [refusal.reason for refusal in refusals if refusal.op == "Softmax"]
    assert reasons == ["its probabilities are read by ReduceSumSquare"]
