"""Attentions that are not recognized behind rewrites of the graph stay as they were."""

from __future__ import annotations

import onnx
import pytest

from onnxbolt.canonicalize import canonicalize
from onnxbolt.graph.importer import import_model
from onnxbolt.graph.shapes import infer
from onnxbolt.match import preparation
from tests.ops.attention_form import D, Form, H, S
from tests.ops.test_attention_folds import Folded
from tests.ops.test_attention_head_factors import Cosine
from tests.ops.test_attention_sums import PositionsAndPadding
from tests.support import matched


class _OtherResult(Form):
    """Its heads are not brought behind its queries."""

    def output(self, y: str) -> str:
        return self.reshape(y, -1, S, H * D)


class FactorsOfHeads(_OtherResult, Cosine):
    """Rewritten alone, queries would be multiplied by factors, and scores by another."""


class SeveralMasks(_OtherResult, PositionsAndPadding):
    """Rewritten alone, there would be one sum more."""


class FoldedMask(_OtherResult, Folded):
    """Rewritten alone, there would be two Reshapes more."""


class OneOfTwo(SeveralMasks):
    """The second layer's result is as kernels write it."""

    def attended(self) -> str:
        first = super().attended()
        self.output = PositionsAndPadding.output.__get__(self)  # type: ignore[method-assign]
        return self.add(first, super().attended())


def _prepared(
    model: onnx.ModelProto,
) -> tuple[list[tuple[str, ...]], list[tuple[str, ...]], list[str]]:
    """The nodes before and behind preparation, with what they read and write, and its lines."""
    graph = import_model(model)
    infer(graph)
    canonicalize(graph)

    def nodes() -> list[tuple[str, ...]]:
        return [
            (node.op, *(tensor.name for tensor in (*node.inputs, *node.outputs)))
            for node in graph.nodes
        ]

    before = nodes()
    lines = preparation.prepare(graph)
    return before, nodes(), lines


@pytest.mark.parametrize("form", [FactorsOfHeads, SeveralMasks, FoldedMask])
def test_what_is_not_recognized_stays(form: type[Form]) -> None:
    model = form().model()
    before, after, lines = _prepared(model)
    assert (after, lines) == (before, [])
    candidates, refusals = matched(model)
    assert not [each for each in candidates if each.anchor.op.name == "attention"]
    assert "Softmax" in [refusal.op for refusal in refusals]


def test_others_are_rewritten() -> None:
    model = OneOfTwo().model()
    before, after, lines = _prepared(model)
    assert lines == ["attention: 1 (several masks joined to one)"]
    assert len(after) == len(before)
    assert len(set(before) - set(after)) == 2  # the Adds of two masks
    candidates, _ = matched(model)
    assert len([each for each in candidates if each.anchor.op.name == "attention"]) == 1
