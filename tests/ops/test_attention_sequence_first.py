"""Attention of torch.nn.MultiheadAttention, which computes with positions in front of batch."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from onnxbolt.ops.attention.found import AttentionAnchor
from tests.ops.attention_form import answers, assert_in_16_bits, optimized
from tests.support import Net, matched


@dataclass(frozen=True)
class Module:
    """The module as it is exported. `batch_first`: as it is for its inputs; `form`: "apart",
    "folded" (with need_weights, batch and heads are one axis) or "operator" (of opset 23);
    `symbolic`: the batch has a name."""

    batch_first: bool = False
    form: str = "apart"
    cross: bool = False
    mask: str = ""  # "added" [S, T], "padding" [B, T], or "heads" [B x heads, S, T]
    symbolic: bool = False
    bias: bool = True
    batch: int = 2
    heads: int = 4
    queries: int = 5
    keys: int = 7
    size: int = 8

    @property
    def span(self) -> int:
        return self.keys if self.cross else self.queries

    @property
    def width(self) -> int:
        return self.heads * self.size

    def model(self) -> onnx.ModelProto:
        b: int | str = "batch" if self.symbolic else self.batch
        shapes: dict[str, Sequence[int | str]] = {"x": self._input(b, self.queries)}
        if self.cross:
            shapes["context"] = self._input(b, self.span)
        types = dict[str, int]()
        if self.mask == "added":
            shapes["mask"] = (self.queries, self.span)
        elif self.mask == "heads":
            rows = "rows" if self.symbolic else self.batch * self.heads
            shapes["mask"] = (rows, self.queries, self.span)
        elif self.mask:
            shapes["mask"], types["mask"] = (b, self.span), TensorProto.BOOL
        net = Net(shapes, opset=23 if self.form == "operator" else 17, types=types)
        inputs = ["x", "context"] if self.cross else ["x"]
        if self.batch_first:
            inputs = [net.node("Transpose", name, perm=[1, 0, 2]) for name in inputs]
        q, k, v = self._projected(net, inputs)
        parts = [self._by_heads(net, *each) for each in self._positions(q, k, v)]
        y = self._folded(net, *parts) if self.form == "folded" else self._apart(net, *parts)
        rows = net.node("Reshape", y, self._ints(net, -1, self.width))
        y = self._linear(net, rows, self.width)
        y = net.node("Reshape", y, self._ints(net, self.queries, -1, self.width))
        if self.batch_first:
            y = net.node("Transpose", y, perm=[1, 0, 2])
        return net.model(y)

    def _input(self, batch: int | str, positions: int) -> tuple[int | str, ...]:
        two = (batch, positions) if self.batch_first else (positions, batch)
        return (*two, self.width)

    def _ints(self, net: Net, *values: int) -> str:
        return net.const(values, np.int64)

    def _linear(self, net: Net, x: str, columns: int) -> str:
        y = net.node("MatMul", x, net.normal(self.width, columns, scale=self.width**-0.5))
        return net.node("Add", net.normal(columns), y) if self.bias else y

    def _projected(self, net: Net, inputs: Sequence[str]) -> list[str]:
        """One product of each input, whose parts are those of an axis of their own."""
        if self.cross:
            q = self._linear(net, inputs[0], self.width)
            return [q, *self._parts(net, inputs[1], self.span, 2)]
        return self._parts(net, inputs[0], self.queries, 3)

    def _parts(self, net: Net, x: str, positions: int, count: int) -> list[str]:
        y = self._linear(net, x, count * self.width)
        y = net.node("Reshape", y, self._ints(net, positions, -1, count, self.width))
        y = net.node("Unsqueeze", y, self._ints(net, 0))
        y = net.node("Transpose", y, perm=[3, 1, 2, 0, 4])
        y = net.node("Squeeze", y, self._ints(net, 3))
        return [net.node("Gather", y, net.const(i, np.int64), axis=0) for i in range(count)]

    def _positions(self, q: str, k: str, v: str) -> list[tuple[str, int]]:
        return [(q, self.queries), (k, self.span), (v, self.span)]

    def _by_heads(self, net: Net, x: str, positions: int) -> str:
        """[batch x heads, positions, size]."""
        y = net.node("Reshape", x, self._ints(net, positions, -1, self.size))
        return net.node("Transpose", y, perm=[1, 0, 2])

    def _folded(self, net: Net, q: str, k: str, v: str) -> str:
        q = net.node("Mul", q, net.const(self.size**-0.5))
        scores = net.node("MatMul", q, net.node("Transpose", k, perm=[0, 2, 1]))
        if self.mask == "padding":
            split = self._ints(net, -1, self.heads, self.queries, self.span)
            scores = net.node("Add", net.node("Reshape", scores, split), self._mask(net))
            joined = self._ints(net, -1, self.queries, self.span)
            scores = net.node("Reshape", scores, joined)
        elif self.mask:
            scores = net.node("Add", scores, self._mask(net))
        y = net.node("MatMul", net.node("Softmax", scores, axis=-1), v)
        return net.node("Transpose", y, perm=[1, 0, 2])

    def _apart(self, net: Net, q: str, k: str, v: str) -> str:
        lengths = (self.queries, self.span, self.span)
        q, k, v = (
            net.node("Reshape", x, self._ints(net, -1, self.heads, length, self.size))
            for x, length in zip((q, k, v), lengths, strict=True)
        )
        mask = [self._mask(net)] if self.mask else []
        if self.form == "operator":
            y = net.node("Attention", q, k, v, *mask)
        else:
            k, root = net.node("Transpose", k, perm=[0, 1, 3, 2]), net.const(self.size**-0.25)
            scores = net.node("MatMul", net.node("Mul", q, root), net.node("Mul", k, root))
            scores = net.node("Add", scores, *mask) if mask else scores
            y = net.node("MatMul", net.node("Softmax", scores, axis=-1), v)
        return net.node("Transpose", y, perm=[2, 0, 1, 3])

    def _mask(self, net: Net) -> str:
        if self.mask == "heads":
            return "mask"
        if self.mask == "added":
            return net.node("Unsqueeze", "mask", self._ints(net, 0))
        low, zero = net.const(-np.inf), net.const(0.0)
        numbers = net.node("Where", "mask", low, zero)
        mask = net.node("Unsqueeze", numbers, self._ints(net, 1, 2))
        if self.form == "operator":  # ONNX Runtime broadcasts no queries
            return net.node("Expand", mask, self._ints(net, 1, 1, self.queries, 1))
        return mask

    def feeds(self) -> dict[str, np.ndarray]:
        """Random inputs; the last batch's padding begins in front of its last key."""
        rng = np.random.default_rng(0)
        names = {"x": self.queries, "context": self.span}
        drawn = {
            name: rng.standard_normal(self._sizes(length)).astype(np.float32)
            for name, length in names.items()
            if name == "x" or self.cross
        }
        if self.mask in ("added", "heads"):
            first = (self.batch * self.heads,) if self.mask == "heads" else ()
            shape = (*first, self.queries, self.span)
            drawn["mask"] = rng.standard_normal(shape).astype(np.float32)
        elif self.mask:
            drawn["mask"] = np.zeros((self.batch, self.span), bool)
            drawn["mask"][-1, -1:] = True
        return drawn

    def _sizes(self, positions: int) -> tuple[int, ...]:
        two = (self.batch, positions) if self.batch_first else (positions, self.batch)
        return (*two, self.width)


FORMS = ("apart", "folded", "operator")
MODULES = [
    Module(batch_first, form, cross, mask)
    for batch_first in (False, True)
    for form in FORMS
    for cross, mask in ((False, ""), (True, "added"), (True, "padding"), (False, "padding"))
] + [Module(batch_first, "folded", mask="heads") for batch_first in (False, True)]


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize("sizes", ["apart", "equal", "symbolic"])
def test_it_is_fused_in_all_forms(module: Module, sizes: str, tmp_path: Path) -> None:
    if sizes == "equal":  # no axis can be told by its size
        module = dataclasses.replace(module, batch=4, heads=4, queries=4, keys=4, size=4)
    module = dataclasses.replace(module, symbolic=sizes == "symbolic")
    source, out = module.model(), tmp_path / "out.onnx"
    report = optimized(source, out)
    assert report.passed
    assert len([node for node in report.fused if "Attention" in node.op]) == 1
    assert any("batch moved in front of positions" in line for line in report.changes)
    given = module.feeds()
    np.testing.assert_allclose(answers(onnx.load(out), given), answers(source, given), atol=1e-5)


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize("form", FORMS)
def test_it_is_right_in_low_precision(form: str, precision: str, tmp_path: Path) -> None:
    assert_in_16_bits(
        Module(form=form, cross=True, mask="padding").model(), precision, tmp_path / "out.onnx"
    )


@pytest.mark.parametrize("form", FORMS)
def test_the_input_of_a_batch_first_module_is_read_as_it_is(form: str, tmp_path: Path) -> None:
    """Nothing stands between input, projection and attention."""
    optimized(Module(batch_first=True, form=form).model(), tmp_path / "out.onnx")
    nodes = onnx.load(tmp_path / "out.onnx").graph.node
    kinds = [node.op_type.split("_")[0] for node in nodes]
    assert kinds[:2] == ["FusedGemm", "FusedAttention"]
    assert nodes[0].input[0] == "x"
    assert Counter(kinds)["Transpose"] == 2  # behind attention, and that of the module's result


def test_one_head_is_not_told_from_batch() -> None:
    candidates, _ = matched(Module(form="folded", heads=1, size=32).model())
    (found,) = (each for each in candidates if each.anchor.op.name == "attention")
    assert isinstance(found.anchor, AttentionAnchor)
    assert [tensor.shape for tensor in (found.anchor.x, found.output)] == [[2, 5, 32]] * 2


def test_an_operator_that_is_refused_stays_as_it_was(tmp_path: Path) -> None:
    """Capped scores: no axes are exchanged around it."""
    source = Module(form="operator").model()
    (attention,) = (node for node in source.graph.node if node.op_type == "Attention")
    attention.attribute.append(onnx.helper.make_attribute("softcap", 2.0))
    report = optimized(source, tmp_path / "out.onnx")
    assert report.passed
    assert not any("batch moved" in line for line in report.changes)
    assert [node.op_type for node in onnx.load(tmp_path / "out.onnx").graph.node].count(
        "Attention"
    ) == 1
