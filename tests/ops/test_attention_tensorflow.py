"""Attention as tf2onnx writes it: shapes computed in int32, products of 2-D rows, Einsum, and masks
(1 - mask) x -10000."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from tests.ops.attention_form import B, D, H, S, answers, optimized
from tests.support import Net

WIDTH = H * D


@dataclass(frozen=True)
class Layer:
    """Self attention. `rows`: projections are products of [B x S, H x D], as in TensorFlow 1;
    `chosen`: the mask is a Where; `symbolic`: batch and positions have names."""

    rows: bool = False
    chosen: bool = False
    symbolic: bool = False
    positions: int = S

    def model(self) -> onnx.ModelProto:
        net, shape = self._net(), self._shape
        q, k, v = (self._projected(net) for _ in range(3))
        q, v = (net.node("Transpose", each, perm=[0, 2, 1, 3]) for each in (q, v))
        scores = net.node("MatMul", q, net.node("Transpose", k, perm=[0, 2, 3, 1]))
        scores = net.node("Mul", scores, net.const(D**-0.5))
        p = net.node("Softmax", net.node("Add", scores, self._mask(net)), axis=3)
        y = net.node("Transpose", net.node("MatMul", p, v), perm=[0, 2, 1, 3])
        y = net.node("Reshape", y, shape(net, *((-1,) if self.rows else ("b", "s")), WIDTH))
        return net.model(net.node("MatMul", y, self._weight(net, WIDTH, WIDTH)))

    def _net(self) -> Net:
        sizes: tuple[int | str, ...] = (B, self.positions)
        sizes = ("batch", "positions") if self.symbolic else sizes
        shapes: dict[str, Sequence[int | str]] = {"x": (*sizes, WIDTH), "mask": sizes}
        types: dict[str, int] = {"mask": TensorProto.INT32}
        return Net(shapes, types=types)

    def _weight(self, net: Net, *shape: int) -> str:
        return net.normal(*shape, scale=WIDTH**-0.5)

    def _shape(self, net: Net, *parts: int | str) -> str:
        """A shape of numbers, "b" and "s"."""
        zero = net.const([0], np.int64)
        sizes = []
        for part in parts:
            if isinstance(part, int):
                sizes.append(net.const([part], np.int32))
                continue
            axis = "bs".index(part)
            whole = net.node("Cast", net.node("Shape", "x"), to=TensorProto.INT32)
            ends = (net.const([end], np.int64) for end in (axis, axis + 1))
            size = net.node("Squeeze", net.node("Slice", whole, *ends, zero), zero)
            sizes.append(net.node("Unsqueeze", size, zero))
        return net.node("Cast", net.node("Concat", *sizes, axis=0), to=TensorProto.INT64)

    def _projected(self, net: Net) -> str:
        """[B, S, H, D]."""
        x = net.node("Reshape", "x", self._shape(net, -1, WIDTH)) if self.rows else "x"
        y = net.node("MatMul", x, self._weight(net, WIDTH, WIDTH))
        y = net.node("Add", y, net.normal(WIDTH))
        return net.node("Reshape", y, self._shape(net, "b", "s" if self.rows else -1, H, D))

    def _mask(self, net: Net) -> str:
        kept = net.node("Unsqueeze", "mask", net.const([1, 2], np.int64))
        if self.chosen:
            kept = net.node("Cast", kept, to=TensorProto.BOOL)
            return net.node("Where", kept, net.const(0.0), net.const(-10000.0))
        numbers = net.node("Sub", net.const(1.0), net.node("Cast", kept, to=TensorProto.FLOAT))
        return net.node("Mul", numbers, net.const(-10000.0))

    def feeds(self) -> dict[str, np.ndarray]:
        """Random inputs; the last batch has one key."""
        rng = np.random.default_rng(0)
        mask = rng.integers(0, 2, (B, self.positions)).astype(np.int32)
        mask[:, 0], mask[-1, 1:] = 1, 0
        x = rng.standard_normal((B, self.positions, WIDTH)).astype(np.float32)
        return {"x": x, "mask": mask}


class KerasLayer(Layer):
    """EinsumDense and Einsum."""

    def model(self) -> onnx.ModelProto:
        net = self._net()
        q, k, v = (self._projected(net) for _ in range(3))
        q = net.node("Mul", q, net.const(D**-0.5))
        scores = net.node("Einsum", k, q, equation="aecd,abcd->acbe")
        p = net.node("Softmax", net.node("Add", scores, self._mask(net)), axis=-1)
        y = net.node("Einsum", p, v, equation="acbe,aecd->abcd")
        weight = self._weight(net, H, D, WIDTH)
        return net.model(net.node("Einsum", y, weight, equation="abcd,cde->abe"))

    def _projected(self, net: Net) -> str:
        y = net.node("Einsum", "x", self._weight(net, WIDTH, H, D), equation="abc,cde->abde")
        return net.node("Add", y, net.normal(H, D))


CASES = [
    kind(rows, chosen, symbolic, positions)
    for kind, rows in ((Layer, False), (Layer, True), (KerasLayer, False))
    for chosen, symbolic, positions in itertools.product((False, True), (False, True), (S, H))
]


@pytest.mark.parametrize("layer", CASES)
def test_it_is_fused(layer: Layer, tmp_path: Path) -> None:
    source, out = layer.model(), tmp_path / "out.onnx"
    report = optimized(source, out)
    assert report.passed
    (op,) = (node.op for node in report.fused if "Attention" in node.op)
    assert "_added_f32" in op
    given = layer.feeds()
    np.testing.assert_allclose(answers(onnx.load(out), given), answers(source, given), atol=1e-5)
