"""Masks that nodes make of constants, which windows of images repeat, become one constant."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest

import onnxbolt
from onnxbolt.match.matcher import match
from onnxbolt.ops.attention.found import AttentionAnchor, Mask
from tests.support import Net, feeds_of, prepare, run

IMAGES, WINDOWS, S, H, D = 3, 4, 6, 2, 8


class Form:
    """Attention over windows [batch, S, H x D] with a bias per head and a mask per window."""

    def __init__(self, batch: int | str) -> None:
        self.batch = batch
        self.net = Net({"x": (batch, S, H * D)})
        self.bias = self.net.normal(1, H, S, S)
        self.windows = self.net.rng.standard_normal((WINDOWS, 1, S, S)).astype(np.float32)

    def model(self, mask: str) -> onnx.ModelProto:
        q, k, v = (self.by_heads(perm) for perm in ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3)))
        scores = self.net.node("MatMul", q, k)
        scores = self.net.node("Add", scores, mask) if mask else self.split(scores)
        y = self.net.node("MatMul", self.net.node("Softmax", scores, axis=-1), v)
        y = self.net.node("Transpose", y, perm=[0, 2, 1, 3])
        y = self.net.node("Reshape", y, self.net.const([0, 0, -1], np.int64))
        return self.net.model(self.net.node("Relu", y))

    def by_heads(self, perm: tuple[int, ...]) -> str:
        x = self.net.linear("x", H * D, H * D)
        x = self.net.node("Reshape", x, self.net.const([0, 0, H, D], np.int64))
        return self.net.node("Transpose", x, perm=list(perm))

    def expanded(self) -> str:
        """bias + the windows' mask expanded to images x windows (dynamo)."""
        images = self.net.const([IMAGES, WINDOWS, H, S, S], np.int64)
        if not isinstance(self.batch, int):
            shape = self.net.node("Shape", "x", start=0, end=1)
            count = self.net.node("Div", shape, self.net.const([WINDOWS], np.int64))
            rest = self.net.const([WINDOWS, H, S, S], np.int64)
            images = self.net.node("Concat", count, rest, axis=0)
        mask = self.net.node("Expand", self.net.const(self.windows[None]), images)
        mask = self.net.node("Reshape", mask, self.net.const([-1, H, S, S], np.int64))
        return self.net.node("Add", self.net.const(self.values(self.bias)), mask)

    def reshaped(self) -> str:
        """None: `split` adds bias and mask to the scores (timm, eager)."""
        return ""

    def split(self, scores: str) -> str:
        """The windows' mask is added to scores [images, windows, heads, S, S]."""
        scores = self.net.node("Add", scores, self.bias)
        shape = self.net.const([-1, WINDOWS, H, S, S], np.int64)
        scores = self.net.node("Reshape", scores, shape)
        scores = self.net.node("Add", scores, self.net.const(self.windows[None]))
        return self.net.node("Reshape", scores, self.net.const([-1, H, S, S], np.int64))

    def tiled(self) -> str:
        """bias + the windows' mask for each batch (Hugging Face)."""
        return self.net.node(
            "Add", self.bias, self.net.const(np.tile(self.windows, (IMAGES, 1, 1, 1)))
        )

    def values(self, name: str) -> np.ndarray:
        found = next(t for t in self.net.initializers if t.name == name)
        return onnx.numpy_helper.to_array(found)

    @property
    def expected(self) -> np.ndarray:
        return self.values(self.bias) + self.windows


def masks(graph: gs.Graph) -> list[Mask]:
    anchors = [candidate.anchor for candidate in match(graph).candidates]
    return [each.attention.mask for each in anchors if isinstance(each, AttentionAnchor)]


@pytest.mark.parametrize(
    ("kind", "batch"),
    [
        (Form.expanded, IMAGES * WINDOWS),
        (Form.expanded, "N"),
        (Form.tiled, IMAGES * WINDOWS),  # the mask itself has the number of images
        (Form.reshaped, IMAGES * WINDOWS),
        (Form.reshaped, "N"),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_the_mask_is_one_constant(
    kind: Callable[[Form], str], batch: int | str, tmp_path: Path
) -> None:
    form = Form(batch)
    model = form.model(kind(form))
    (mask,) = masks(prepare(model))
    assert isinstance(mask.tensor, gs.Constant)
    assert mask.period == WINDOWS
    np.testing.assert_allclose(mask.tensor.values, form.expected, rtol=1e-6)
    path = tmp_path / "out.onnx"
    report = onnxbolt.optimize(
        model,
        path,
        archs="sm_90a",
        library=False,
        fuse="all",
        precision="keep",
        opt_shapes={"x": (IMAGES * WINDOWS, S, H * D)},
    )
    assert report.passed
    result = onnx.load(path)
    assert not {node.op_type for node in result.graph.node} & {"Expand", "Shape", "Tile"}
    (node,) = (node for node in result.graph.node if node.op_type.startswith("FusedAttention"))
    assert "periodic" in node.op_type
    feeds = feeds_of(model, IMAGES * WINDOWS)
    np.testing.assert_allclose(run(result, feeds)[0], run(model, feeds)[0], rtol=1e-4, atol=1e-4)


def test_masks_that_differ_in_all_batches_stay() -> None:
    form = Form(WINDOWS)
    (mask,) = masks(prepare(form.model(form.net.const(form.windows))))
    assert not mask.period
    assert mask.tensor is not None
    assert mask.tensor.shape[0] == WINDOWS


def test_equal_batches_are_one() -> None:
    form = Form(WINDOWS)
    (mask,) = masks(
        prepare(form.model(form.net.const(np.tile(form.windows[:1], (WINDOWS, 1, 1, 1)))))
    )
    assert mask.tensor is not None
    assert (mask.period, mask.tensor.shape[0]) == (0, 1)
