"""A small attention between projections, of which tests replace parts, and its inputs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto

import onnxbolt
from onnxbolt.report import Report
from tests.support import Net, run

B, S, T, H, D = 2, 5, 7, 4, 8  # batch, queries, keys, heads, size
SCALE = D**-0.5
SOME, ALL = "some keys", "no key for a query"


class Form:
    """Attention between projections, of which tests replace parts. Inputs are x [B, S, H x D],
    context and values [B, T, H x D], the masks added [B, 1, S, T] and kept [B, 1, S, T], and
    padding [B, T], integers that are 1 for keys and 0 for padding."""

    opset = 17

    def __init__(self, batch: int | str = B) -> None:
        shapes: dict[str, Sequence[int | str]] = {
            "x": (batch, S, H * D),
            "context": (batch, T, H * D),
            "values": (batch, T, H * D),
            "added": (batch, 1, S, T),
            "kept": (batch, 1, S, T),
            "padding": (batch, T),
        }
        types: dict[str, int] = {"kept": TensorProto.BOOL, "padding": TensorProto.INT64}
        self.net = Net(shapes, opset=self.opset, types=types)
        self.outputs = list[str]()

    def ints(self, *values: int) -> str:
        return self.net.const(values, np.int64)

    def reshape(self, x: str, *shape: int) -> str:
        return self.net.node("Reshape", x, self.ints(*shape))

    def transpose(self, x: str, *perm: int) -> str:
        return self.net.node("Transpose", x, perm=perm)

    def add(self, x: str, y: str) -> str:
        return self.net.node("Add", x, y)

    def numbers(self, kept: str, low: float = -np.inf) -> str:
        """0 where a boolean is true, else `low`."""
        return self.net.node("Where", kept, self.net.const(0.0), self.net.const(low))

    def padded(self) -> str:
        """Booleans [B, 1, 1, T]: true for keys that are no padding."""
        kept = self.net.node("Cast", "padding", to=TensorProto.BOOL)
        return self.net.node("Unsqueeze", kept, self.ints(1, 2))

    def times(self, x: str, factor: float) -> str:
        return self.net.node("Mul", x, self.net.const(factor))

    def projected(self, x: str, positions: int) -> str:
        """[B, H, positions, D]."""
        y = self.net.node("MatMul", x, self.net.normal(H * D, H * D, scale=(H * D) ** -0.5))
        return self.transpose(self.reshape(y, -1, positions, H, D), 0, 2, 1, 3)

    def q(self) -> str:
        return self.projected("x", S)

    def k(self) -> str:
        """Its transposition, [B, H, D, T]."""
        return self.transpose(self.projected("context", T), 0, 1, 3, 2)

    def v(self) -> str:
        return self.projected("values", T)

    def scaled(self, q: str, k: str) -> tuple[str, str]:
        return self.times(q, SCALE**0.5), self.times(k, SCALE**0.5)

    def masked(self, scores: str) -> str:
        return scores

    def weights(self, scores: str) -> str:
        return self.net.node("Softmax", scores, axis=-1)

    def output(self, y: str) -> str:
        return self.reshape(self.transpose(y, 0, 2, 1, 3), -1, S, H * D)

    def attended(self) -> str:
        q, k, v = self.q(), self.k(), self.v()
        scores = self.masked(self.net.node("MatMul", *self.scaled(q, k)))
        return self.output(self.net.node("MatMul", self.weights(scores), v))

    def model(self) -> onnx.ModelProto:
        y = self.attended()
        last = self.net.node("MatMul", y, self.net.normal(H * D, H * D, scale=(H * D) ** -0.5))
        return self.net.model(last, *self.outputs)


class FoldedForm(Form):
    """Products over one axis for batch and heads, as torch.bmm has them."""

    def q(self) -> str:
        return self.reshape(super().q(), -1, S, D)

    def k(self) -> str:
        return self.reshape(super().k(), -1, D, T)

    def v(self) -> str:
        return self.reshape(super().v(), -1, T, D)

    def output(self, y: str) -> str:
        return super().output(self.reshape(y, -1, H, S, D))


def feeds(model: onnx.ModelProto, excluded: str) -> dict[str, np.ndarray]:
    """Random inputs; some keys are excluded, or all of one query and of one batch's padding."""
    rng = np.random.default_rng(1)
    kept = rng.random((B, 1, S, T)) < 0.7
    kept[:, :, :, 0] = True
    padding = (np.arange(T) < [[T], [T - 2]]).astype(np.int64)
    if excluded == ALL:
        kept[1, 0, 2] = False
        padding[1] = 0
    values = {
        "x": rng.standard_normal((B, S, H * D)).astype(np.float32),
        "context": rng.standard_normal((B, T, H * D)).astype(np.float32),
        "values": rng.standard_normal((B, T, H * D)).astype(np.float32),
        "added": np.where(kept, 0, -np.inf).astype(np.float32),
        "kept": kept,
        "padding": padding,
    }
    return {value.name: values[value.name] for value in model.graph.input}


def answers(model: onnx.ModelProto, given: dict[str, np.ndarray]) -> np.ndarray:
    return run(model, given)[0]


def optimized(source: onnx.ModelProto, out: Path, precision: str = "keep") -> Report:
    """The report of a model that is written to `out`, with all fused that can be."""
    return onnxbolt.optimize(
        source, out, archs="sm_80", precision=precision, fuse="all", library=False
    )


def assert_same_answers(
    source: onnx.ModelProto, out: Path, excluded: Sequence[str] = (SOME, ALL)
) -> None:
    """Fail unless the model in `out` answers as its source does."""
    for which in excluded:
        given = feeds(source, which)
        expected = answers(source, given)
        np.testing.assert_allclose(answers(onnx.load(out), given), expected, atol=1e-5)


def assert_in_16_bits(source: onnx.ModelProto, precision: str, out: Path) -> None:
    """Fail unless one attention is fused in this precision, and verification passes."""
    report = optimized(source, out, precision)
    assert report.passed
    (op,) = (node.op for node in report.fused if "Attention" in node.op)
    assert op.endswith({"fp16": "_f16", "bf16": "_bf16"}[precision])
