"""Masks and scores are followed back through any graph in a moment."""

from __future__ import annotations

import numpy as np
import pytest

from onnxbolt.ops.attention.found import AttentionAnchor, Masking
from tests.ops.attention_form import B, Form, S, T
from tests.support import matched

LONG = 1200  # more than Python's stack holds
FACTORS = 80  # more than are followed
DOUBLINGS = 60  # 2^60 paths


class Doubled(Form):
    """A mask that is joined with itself again and again."""

    def masked(self, scores: str) -> str:
        mask = self.net.node("Relu", "added")
        for _ in range(DOUBLINGS):
            mask = self.net.node("Add", mask, mask)
        return self.net.node("Add", scores, mask)


class DoubledCondition(Form):
    def masked(self, scores: str) -> str:
        kept = self.net.node("Not", "kept")
        for _ in range(DOUBLINGS):
            kept = self.net.node("And", kept, kept)
        return self.net.node("Where", kept, scores, self.net.const(-np.inf))


class DoubledNumbers(Form):
    def masked(self, scores: str) -> str:
        kept = self.net.node("Cast", "kept", to=1)
        for _ in range(DOUBLINGS):
            kept = self.net.node("Mul", kept, kept)
        return self.net.node("Add", scores, kept)


class LongSum(Form):
    def masked(self, scores: str) -> str:
        mask = self.net.node("Relu", "added")
        for _ in range(LONG):
            mask = self.net.node("Add", mask, "added")
        return self.net.node("Add", scores, mask)


class LongScale(Form):
    def masked(self, scores: str) -> str:
        for index in range(FACTORS):
            scores = self.times(scores, 2.0 if index % 2 else 0.5)
        return scores


@pytest.mark.parametrize("form", [Doubled, DoubledCondition, DoubledNumbers, LongSum])
def test_masks_of_any_graph(form: type[Form]) -> None:
    (found,) = (
        candidate.anchor
        for candidate in matched(form().model())[0]
        if isinstance(candidate.anchor, AttentionAnchor)
    )
    mask = found.attention.mask
    assert mask.kind is not Masking.NONE
    assert mask.tensor is not None
    assert [*mask.tensor.shape] == [B, 1, S, T]


def test_a_long_chain_of_factors_is_refused() -> None:
    candidates, refusals = matched(LongScale().model())
    assert not any(isinstance(each.anchor, AttentionAnchor) for each in candidates)
    assert [each.reason for each in refusals if each.op == "Softmax"] == [
        "its scores are no product of queries and keys"
    ]
