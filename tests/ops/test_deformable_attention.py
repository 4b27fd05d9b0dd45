"""Deformable attention as one node: the forms that exporters write, and what is none."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from onnxbolt.ops.deformable_attention import pattern
from onnxbolt.verify import verify
from onnxbolt.verify.session import CPU
from tests.support import Net, fused, matched, ops, run

LEVELS = ((4, 6), (2, 3))
QUERIES, HEADS, SIZE, POINTS = 5, 2, 8, 3
ROWS, CHANNELS = sum(h * w for h, w in LEVELS), HEADS * SIZE


class Attention(Net):
    """A deformable attention whose inputs are an image's rows, positions and scores. `style`:
    "slices" (transformers by TorchScript) or "splits" (by dynamo)."""

    def __init__(self, batch: Any = "N", style: str = "slices", opset: int = 17) -> None:
        count = len(LEVELS)
        super().__init__(
            {
                "x": (batch, ROWS, CHANNELS),
                "at": (batch, QUERIES, HEADS, count, POINTS, 2),
                "scores": (batch, QUERIES, HEADS, count * POINTS),
            },
            opset=opset,
        )
        self.batch, self.style = batch, style

    def sizes(self, *sizes: int) -> str:
        return self.const(sizes, np.int64)

    def image(self, value: str, level: int) -> str:
        """[N H, D, h, w] of one level."""
        first = sum(h * w for h, w in LEVELS[:level])
        h, w = LEVELS[level]
        if self.style == "splits":
            parts = self.sizes(*(a * b for a, b in LEVELS))
            rows = self.several("Split", value, parts, outputs=len(LEVELS), axis=1)[level]
            turned = self.node("Transpose", rows, perm=[0, 2, 3, 1])
        else:
            rows = self.node("Slice", value, *map(self.sizes, (first, first + h * w, 1)))
            rows = self.node("Reshape", rows, self.sizes(0, 0, -1))
            turned = self.node("Transpose", rows, perm=[0, 2, 1])
        return self.node("Reshape", turned, self.sizes(-1, SIZE, h, w))

    def samples(self, value: str, grid: str, level: int, order: int) -> str:
        """[N H, D, Q, 1, P]."""
        at = self.node("Gather", grid, self.const(order, np.int64), axis=3)
        at = self.node("Transpose", at, perm=[0, 2, 1, 3, 4])
        at = self.node("Reshape", at, self.sizes(-1, QUERIES, POINTS, 2))
        mode = "linear" if self.opset >= 20 else "bilinear"
        found = self.node("GridSample", self.image(value, level), at, mode=mode)
        return self.node("Unsqueeze", found, self.sizes(-2))

    def attention(self, order: tuple[int, ...] = (0, 1), wrong: str = "") -> str:
        value = self.linear("x", CHANNELS, CHANNELS)
        value = self.node("Reshape", value, self.sizes(0, 0, HEADS, SIZE))
        grid = self.node("Sub", self.node("Mul", "at", self.const(2.0)), self.const(1.0))
        parts = [self.samples(value, grid, level, at) for level, at in enumerate(order)]
        together = self.node("Concat", *parts, axis=-2)
        together = self.node("Reshape", together, self.sizes(0, SIZE, QUERIES, -1))
        weights = self.node("Softmax", "scores", axis=-1)
        if wrong != "weights":
            weights = self.node("Transpose", weights, perm=[0, 2, 1, 3])
        weights = self.node("Reshape", weights, self.sizes(-1, 1, QUERIES, len(LEVELS) * POINTS))
        product = self.node("Mul", together, weights)
        total = self.node("ReduceSum", product, self.sizes(-1), keepdims=0)
        if wrong == "heads":  # channels of heads would be mixed
            total = self.node("Reshape", total, self.sizes(-1, SIZE, HEADS, QUERIES))
            total = self.node("Transpose", total, perm=[0, 2, 1, 3])
        total = self.node("Reshape", total, self.sizes(-1, CHANNELS, QUERIES))
        return self.node("Transpose", total, perm=[0, 2, 1])


def _model(*args: Any, **options: Any) -> onnx.ModelProto:
    net = Attention(*args, **options)
    return net.model(net.linear(net.attention(), CHANNELS, 8))


def _feeds(batch: int = 3) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    count = len(LEVELS)
    shapes = {
        "x": (batch, ROWS, CHANNELS),
        "at": (batch, QUERIES, HEADS, count, POINTS, 2),
        "scores": (batch, QUERIES, HEADS, count * POINTS),
    }
    found = {name: rng.uniform(-0.1, 1.1, shape) for name, shape in shapes.items()}
    return {name: values.astype(np.float32) for name, values in found.items()}


@pytest.mark.parametrize("style", ["slices", "splits"])
@pytest.mark.parametrize("batch", ["N", 3])
@pytest.mark.parametrize("opset", [17, 20])
def test_it_is_one_node(style: str, batch: Any, opset: int) -> None:
    model = _model(batch, style, opset)
    optimized = fused(model)
    (name,) = (op for op in ops(optimized) if op.startswith("Deformable"))
    assert name == "DeformableAttention_2x8x3_4x6_2x3_linear_zeros_grid_f32_f32"
    left = [op for op in ops(optimized) if not op.startswith(("Deformable", "FusedGemm"))]
    assert left == ["Mul", "Sub", "Softmax"]
    (expected,), (got,) = run(model, _feeds()), run(optimized, _feeds())
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_conversions_inside_belong_to_it(precision: str) -> None:
    """ONNX Runtime has GridSample in float32 alone."""
    optimized = fused(_model(), precision)
    kind = "f16" if precision == "fp16" else "bf16"
    assert f"DeformableAttention_2x8x3_4x6_2x3_linear_zeros_{kind}" in ops(optimized)
    if precision == "bf16":
        return  # ONNX Runtime's CPU provider has no product of bf16
    (expected,), (got,) = run(_model(), _feeds()), run(optimized, _feeds())
    assert np.linalg.norm(got - expected) <= 4e-2 * np.linalg.norm(expected)


def test_verification_judges_it() -> None:
    result = verify(_model(3), fused(_model(3), "fp16"), providers=(CPU,))
    assert result.passed


def _refusals(net: Attention, *outputs: str) -> list[str]:
    candidates, refusals = matched(net.model(*outputs))
    assert not [c for c in candidates if c.anchor.op.name == "deformable_attention"]
    return [refusal.reason for refusal in refusals if refusal.op == "GridSample"]


@pytest.mark.parametrize("wrong", ["weights", "heads"])
def test_values_that_move_otherwise_are_refused(wrong: str) -> None:
    net = Attention()
    (reason,) = _refusals(net, net.attention(wrong=wrong))
    assert reason == "its samples are no deformable attention: they are moved or summed otherwise"


def test_levels_that_read_another_level_s_positions_are_refused() -> None:
    net = Attention()
    assert _refusals(net, net.attention(order=(1, 0)))


def test_many_samples_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The op finds out what nodes do by computing them, which has to stay cheap."""
    monkeypatch.setattr(pattern, "_MOST_VALUES", 2 * CHANNELS * QUERIES * 2 * POINTS - 1)
    net = Attention()
    assert _refusals(net, net.attention()) == [pattern._LARGE]


def test_a_long_way_is_no_deformable_attention() -> None:
    """However long it is, nothing is called once for each of its nodes."""
    net = Attention()
    x = "x"
    for _ in range(2000):
        x = net.node("Reshape", x, net.sizes(0, 0, CHANNELS))
    net.nodes[-1].output[0] = "moved"
    sampled = net.samples(net.node("Reshape", "moved", net.sizes(0, 0, HEADS, SIZE)), "at", 0, 0)
    total = net.node("ReduceSum", net.node("Mul", sampled, sampled), net.sizes(-1), keepdims=0)
    candidates, _ = matched(net.model(total))
    assert not [c for c in candidates if c.anchor.op.name == "deformable_attention"]


def test_sampled_volumes_are_none() -> None:
    net = Net({"x": (1, 8, 4, 6, 6), "at": (1, 3, 3, 3, 3)}, opset=20)
    assert matched(net.model(net.node("GridSample", "x", "at", mode="linear"))) == ([], [])


def test_a_value_inside_that_is_an_output_is_refused() -> None:
    net = Attention()
    y = net.attention()
    inside = next(node.output[0] for node in net.nodes if node.op_type == "GridSample")
    assert _refusals(net, y, inside)


def test_an_image_that_is_sampled_alone_is_none() -> None:
    net = Net({"x": (1, 8, 6, 6), "at": (1, 3, 3, 2)})
    candidates, refusals = matched(net.model(net.node("GridSample", "x", "at", mode="bilinear")))
    assert (candidates, refusals) == ([], [])
