"""Maxima of rows that are subtracted in front of the softmax."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxbolt
from onnxbolt.ops.attention.found import AttentionAnchor
from tests.ops.attention_form import ALL, SCALE, SOME, Form, answers, feeds
from tests.support import matched

ALPHA = 32.0


class CogView(Form):
    """LayoutLMv3's, as TorchScript writes it."""

    alpha = ALPHA

    def maxima(self, x: str) -> str:
        maxima = self.net.node("ReduceMax", x, axes=[-1], keepdims=0)
        return self.net.node("Unsqueeze", maxima, self.ints(-1))

    def masked(self, scores: str) -> str:
        x = self.net.node("Div", self.net.node("Add", scores, "added"), self.net.const(self.alpha))
        return self.times(self.net.node("Sub", x, self.maxima(x)), self.alpha)


class Plain(CogView):
    """softmax(x - max(x))."""

    def masked(self, scores: str) -> str:
        return self.net.node("Sub", scores, self.maxima(scores))

    def maxima(self, x: str) -> str:
        return self.net.node("ReduceMax", x, axes=[3], keepdims=1)


class OfColumns(CogView):
    def maxima(self, x: str) -> str:
        return self.net.node("ReduceMax", x, axes=[2], keepdims=1)


class OfOthers(CogView):
    def maxima(self, x: str) -> str:
        return super().maxima(self.times(x, 2.0))


class Reversed(CogView):
    """max(x) - x."""

    def masked(self, scores: str) -> str:
        return self.net.node("Sub", self.maxima(scores), scores)


class Negative(CogView):
    alpha = -ALPHA


@pytest.mark.parametrize("form", [CogView, Plain])
def test_maxima_are_not_subtracted(form: type[Form], tmp_path: Path) -> None:
    source, out = form().model(), tmp_path / "out.onnx"
    report = onnxbolt.optimize(
        source, out, archs="sm_80", precision="keep", fuse="all", library=False
    )
    assert report.passed
    assert "attention: 1 (maxima of rows no longer subtracted)" in report.changes
    result = onnx.load(out)
    assert not {"ReduceMax", "Softmax"} & {node.op_type for node in result.graph.node}
    for excluded in (SOME, ALL):
        given = feeds(source, excluded)
        np.testing.assert_allclose(answers(result, given), answers(source, given), atol=1e-5)


def test_the_factors_around_the_difference_are_the_scale() -> None:
    (found,) = (
        candidate.anchor
        for candidate in matched(CogView().model())[0]
        if isinstance(candidate.anchor, AttentionAnchor)
    )
    assert found.attention.scale == pytest.approx(SCALE)


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_it_is_right_in_low_precision(precision: str, tmp_path: Path) -> None:
    report = onnxbolt.optimize(
        CogView().model(),
        tmp_path / "out.onnx",
        archs="sm_80",
        precision=precision,
        fuse="all",
        library=False,
    )
    assert report.passed


@pytest.mark.parametrize("form", [OfColumns, OfOthers, Reversed, Negative])
def test_other_differences_stay(form: type[Form]) -> None:
    candidates, refusals = matched(form().model())
    assert not any(isinstance(each.anchor, AttentionAnchor) for each in candidates)
    assert "its scores are changed by Sub" in [each.reason for each in refusals]
