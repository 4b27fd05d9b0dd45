"""Several masks of an attention become one that is added."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxbolt
from tests.ops.attention_form import ALL, SOME, B, Form, H, S, T, answers, feeds
from tests.support import matched, prepare

LOW = float(np.finfo(np.float32).min)
SHAPES = ((T,), (S, T), (1, 1, S, T), (B, 1, S, T), (1, H, S, T), (B, H, S, T), (B, 1, 1, T))


class Sums(Form):
    """Parts of masks."""

    def add(self, scores: str, mask: str) -> str:
        return self.net.node("Add", scores, mask)

    def numbers(self, kept: str, low: float = -np.inf) -> str:
        return self.net.node("Where", kept, self.net.const(0.0), self.net.const(low))

    def padded(self) -> str:
        kept = self.net.node("Cast", "padding", to=onnx.TensorProto.BOOL)
        return self.net.node("Unsqueeze", kept, self.ints(1, 2))


class PositionsAndPadding(Sums):
    """T5's."""

    def masked(self, scores: str) -> str:
        scores = self.add(scores, self.net.node("Sigmoid", self.net.normal(1, H, S, T)))
        return self.add(scores, self.numbers(self.padded(), LOW))


class PaddingAndPositions(Sums):
    def masked(self, scores: str) -> str:
        scores = self.add(scores, self.numbers(self.padded(), LOW))
        return self.add(scores, self.net.normal(1, H, S, T))


class PutBehindAdded(Sums):
    """BLOOM's: masked_fill behind a bias."""

    low = -np.inf

    def masked(self, scores: str) -> str:
        scores = self.add(scores, self.net.normal(1, H, 1, T))
        return self.net.node("Where", "kept", scores, self.net.const(self.low))


class LowPutBehindAdded(PutBehindAdded):
    low = LOW


class PutFirst(Sums):
    def masked(self, scores: str) -> str:
        masked = self.net.node("Not", "kept")
        scores = self.net.node("Where", masked, self.net.const(-np.inf), scores)
        return self.add(scores, self.net.normal(H, S, T))


class TwoConditions(Sums):
    def masked(self, scores: str) -> str:
        scores = self.add(scores, self.numbers(self.padded()))
        return self.add(scores, self.numbers("kept"))


class LowTwice(Sums):
    """Keys that both exclude have -inf, and others the lowest number."""

    def masked(self, scores: str) -> str:
        scores = self.add(scores, self.numbers(self.padded(), LOW))
        return self.add(scores, self.numbers("kept", LOW))


class Three(Sums):
    def masked(self, scores: str) -> str:
        scores = self.add(self.add(scores, self.net.normal(1, H, S, T)), "added")
        return self.add(scores, self.numbers(self.padded(), LOW))


@pytest.mark.parametrize(
    "form",
    [
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
    report = onnxbolt.optimize(
        source,
        tmp_path / "out.onnx",
        archs="sm_80",
        precision="keep",
        fuse="all",
        library=False,
    )
    assert report.passed
    assert len([node for node in report.fused if "Attention" in node.op]) == 1
    assert any("several masks joined to one" in line for line in report.changes)
    for excluded in (SOME, ALL):
        given = feeds(source, excluded)
        got = answers(onnx.load(tmp_path / "out.onnx"), given)
        np.testing.assert_allclose(got, answers(source, given), atol=1e-5)


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize("form", [PositionsAndPadding, LowPutBehindAdded])
def test_it_is_right_in_low_precision(form: type[Form], precision: str, tmp_path: Path) -> None:
    report = onnxbolt.optimize(
        form().model(),
        tmp_path / "out.onnx",
        archs="sm_80",
        precision=precision,
        fuse="all",
        library=False,
    )
    assert report.passed
    (op,) = (node.op for node in report.fused if "Attention" in node.op)
    assert op.endswith({"fp16": "_f16", "bf16": "_bf16"}[precision])


class AnyShapes(Sums):
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
    report = onnxbolt.optimize(
        source,
        tmp_path / "out.onnx",
        archs="sm_80",
        precision="keep",
        fuse="all",
        library=False,
    )
    assert [node for node in report.fused if "Attention" in node.op]
    given = feeds(source, SOME)
    got = answers(onnx.load(tmp_path / "out.onnx"), given)
    np.testing.assert_allclose(got, answers(source, given), atol=1e-5)


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


class Scaled(Sums):
    def masked(self, scores: str) -> str:
        scores = self.times(self.add(scores, "added"), 0.5)
        return self.add(scores, self.numbers(self.padded(), LOW))


class PutsScore(Sums):
    def masked(self, scores: str) -> str:
        scores = self.add(self.add(scores, "added"), self.net.normal(1, H, S, T))
        return self.net.node("Where", "kept", scores, self.net.const(-10000.0))


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        (Scaled, "its mask is scaled"),
        (PutsScore, "its mask puts a number that scores may have: -10000"),
    ],
)
def test_near_misses_say_why(form: type[Form], reason: str) -> None:
    candidates, refusals = matched(form().model())
    assert not [each for each in candidates if each.anchor.op.name == "attention"]
    assert [refusal.reason for refusal in refusals if refusal.op == "Softmax"] == [reason]
