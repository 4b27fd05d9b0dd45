"""Biases that are products of the queries and of tables of positions (SAM, ViTDet): which operand
of an Add the scores are, and scores that are reshaped to a grid for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ops.attention_form import (
    B,
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


class Tables(Form):
    """A grid of 5x1 queries and 7x1 keys. The bias of a key is the product of the query with its
    row's entry of one table, plus that with its column's of another one."""

    first = False  # True: the bias is the first operand

    def q(self) -> str:
        self.queries = super().q()
        return self.queries

    def summands(self) -> tuple[str, str]:
        """[batch x heads, 5, 1, 7, 1] and [batch x heads, 5, 1, 1, 1]."""
        grid = self.reshape(self.queries, -1, S, 1, D)
        tall, wide = (
            self.net.node("Einsum", grid, self.net.normal(*shape, D), equation=equation)
            for shape, equation in (((S, T), "bhwc,hkc->bhwk"), ((1, 1), "bhwc,wkc->bhwk"))
        )
        tall = self.net.node("Unsqueeze", tall, self.ints(4))
        return tall, self.net.node("Unsqueeze", wide, self.ints(3))

    def bias(self) -> str:
        """[batch x heads, 5, 1, 7, 1]"""
        return self.add(*self.summands())

    def masked(self, scores: str) -> str:
        terms = scores, self.reshape(self.bias(), -1, H, S, T)
        return self.add(*(terms[::-1] if self.first else terms))


class First(Tables):
    first = True


class Folded(FoldedForm, Tables):
    """SAM's without SDPA: batch and heads are one axis."""

    def masked(self, scores: str) -> str:
        return self.add(scores, self.reshape(self.bias(), -1, S, T))


class FoldedFirst(Folded):
    def masked(self, scores: str) -> str:
        return self.add(self.reshape(self.bias(), -1, S, T), scores)


class Grid(Folded):
    """ViTDet's: the scores are reshaped for both summands."""

    def masked(self, scores: str) -> str:
        tall, wide = self.summands()
        grid = self.add(self.add(self.reshape(scores, -1, S, 1, T, 1), tall), wide)
        return self.reshape(grid, -1, S, T)


class GridFirst(Grid):
    """The other way round, with the summands in one sum."""

    def masked(self, scores: str) -> str:
        grid = self.add(self.bias(), self.reshape(scores, -1, S, 1, T, 1))
        return self.reshape(grid, -1, S, T)


class GridOfHeads(Grid):
    """Scores with axes for batch and heads."""

    def q(self) -> str:
        self.queries = Form.q(self)
        return self.queries

    def k(self) -> str:
        return Form.k(self)

    def v(self) -> str:
        return Form.v(self)

    def output(self, y: str) -> str:
        return Form.output(self, y)

    def masked(self, scores: str) -> str:
        tall, wide = (
            self.reshape(each, -1, H, *shape)
            for each, shape in zip(self.summands(), ((S, T), (S, 1)), strict=True)
        )
        tall = self.reshape(tall, -1, H, S, T, 1)
        wide = self.reshape(wide, -1, H, S, 1, 1)
        grid = self.add(self.add(self.reshape(scores, -1, H, S, T, 1), tall), wide)
        return self.reshape(grid, -1, H, S, T)


FORMS = [Tables, First, Folded, FoldedFirst, Grid, GridFirst, GridOfHeads]


@pytest.mark.parametrize("batch", [B, "batch"])
@pytest.mark.parametrize("form", FORMS)
def test_biases_are_masks_that_are_added(
    form: type[Form], batch: int | str, tmp_path: Path
) -> None:
    source, out = form(batch).model(), tmp_path / "out.onnx"
    report = optimized(source, out)
    assert report.passed
    (op,) = (node.op for node in report.fused if "Attention" in node.op)
    assert "_added_f32" in op
    assert_same_answers(source, out)


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize("form", [Tables, Folded, Grid])
def test_they_are_fused_in_16_bits(form: type[Form], precision: str, tmp_path: Path) -> None:
    assert_in_16_bits(form().model(), precision, tmp_path / "out.onnx")


class Twins(Form):
    """Two products of queries and keys: either may be the bias of the other."""

    def q(self) -> str:
        self.queries = super().q()
        return self.queries

    def masked(self, scores: str) -> str:
        return self.add(scores, self.net.node("MatMul", self.queries, self.k()))


def test_two_products_of_the_same_sizes_are_refused() -> None:
    candidates, refusals = matched(Twins().model())
    assert not [each for each in candidates if each.anchor.op.name == "attention"]
    reasons = [refusal.reason for refusal in refusals if refusal.op == "Softmax"]
    assert reasons == ["its scores are changed by Add"]


class RowsAlone(Grid):
    """A bias of rows alone is broadcast to the grid."""

    def masked(self, scores: str) -> str:
        tall, _ = self.summands()
        table = self.reshape(tall, -1, S, 1, 1, T)
        grid = self.add(self.reshape(scores, -1, S, 1, 1, T), table)
        more = self.add(self.reshape(grid, -1, 1, S, 1, T), self.net.normal(1, 1, 1, 1, 1))
        return self.reshape(more, -1, S, T)


class SameForAllKeys(Grid):
    """The bias lacks the keys' axes."""

    def masked(self, scores: str) -> str:
        _, wide = self.summands()
        return self.reshape(self.add(self.reshape(scores, -1, S, 1, T, 1), wide), -1, S, T)


class ReadOnTheWay(Grid):
    """The grid is an output as well."""

    def reshape(self, x: str, *shape: int) -> str:
        y = super().reshape(x, *shape)
        if shape == (-1, S, 1, T, 1):
            self.outputs.append(y)
        return y


@pytest.mark.parametrize("form", [RowsAlone, SameForAllKeys, ReadOnTheWay])
def test_other_grids_are_refused_and_answer_as_before(form: type[Form], tmp_path: Path) -> None:
    source, out = form("batch").model(), tmp_path / "out.onnx"
    report = optimized(source, out)
    assert not [node for node in report.fused if "Attention" in node.op]
    assert [refusal.op for refusal in report.refusals if refusal.op == "Softmax"] == ["Softmax"]
    assert_same_answers(source, out)
