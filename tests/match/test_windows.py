"""Attention over windows of images reads and writes the images: no node moves rows any more."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxbolt
from onnxbolt.graph.windows import Windows, fitted
from onnxbolt.inspection import inspect_model
from onnxbolt.match import projections, windows
from onnxbolt.match.matcher import match
from onnxbolt.ops.attention.found import AttentionAnchor
from tests.support import Net, feeds_of, prepare, run

B, H, D, C = 2, 2, 8, 16  # images, heads, a head's size, channels
PLAIN, SHIFTED = Windows(4, 6, 2, 3), Windows(4, 6, 2, 3, 1, 2)
ORDERS = (
    PLAIN,
    SHIFTED,
    Windows(4, 6, 2, 3, 0, 2),  # rolled along one axis
    Windows(6, 6, 6, 2, 3, 1),  # one window high
    Windows(6, 3, 2, 3, 1, 0),  # one window wide
    Windows(4, 4, 1, 2, 0, 1),
)
MOVING = {"Transpose", "Gather", "Slice", "Concat"}


class Block:
    """A block of Swin; `x` is an input [batch, height, width, C], or with one axis for pixels."""

    def __init__(
        self,
        order: Windows = SHIFTED,
        batch: int | str = B,
        flat: bool = False,
        gathers: bool = False,
        packed: bool = True,
        direct: bool = False,
    ) -> None:
        self.direct = direct  # no tensor is [batch, height, width, C]
        self.order, self.flat, self.gathers, self.packed = order, flat, gathers, packed
        size = (order.pixels,) if flat else (order.height, order.width)
        self.net = Net({"x": (batch, *size, C)})

    def model(self, back: Windows | None = None, *outputs: str) -> onnx.ModelProto:
        """x + attention of x; `back`: the windows that are united, in place of those divided."""
        x = self.net.node("Relu", "x")
        y = self.attended(self.divided(x))
        y = self.united(self.projected(y, C), back or self.order)
        return self.net.model(self.net.node("Add", x, y), *outputs)

    def projected(self, x: str, columns: int) -> str:
        return self.net.linear(x, C, columns)

    def divided(self, x: str) -> str:
        """[batch x windows, positions, C]."""
        order = self.order
        if self.flat and not self.direct:
            x = self.reshaped(x, -1, order.height, order.width, C)
        x = self.rolled(x, 1, order.shift_y)
        x = self.rolled(x, 2, order.shift_x)
        down, across = order.height // order.window_height, order.width // order.window_width
        x = self.reshaped(x, -1, down, order.window_height, across, order.window_width, C)
        x = self.net.node("Transpose", x, perm=[0, 1, 3, 2, 4, 5])
        x = self.reshaped(x, -1, order.window_height, order.window_width, C)
        return self.reshaped(x, -1, order.positions, C)

    def united(self, x: str, order: Windows) -> str:
        """The inverse."""
        down, across = order.height // order.window_height, order.width // order.window_width
        x = self.reshaped(x, -1, down, across, order.window_height, order.window_width, C)
        x = self.net.node("Transpose", x, perm=[0, 1, 3, 2, 4, 5])
        if self.direct:
            return self.reshaped(x, -1, order.pixels, C)
        x = self.reshaped(x, -1, order.height, order.width, C)
        x = self.rolled(x, 1, -order.shift_y)
        x = self.rolled(x, 2, -order.shift_x)
        return self.reshaped(x, -1, order.pixels, C) if self.flat else x

    def rolled(self, x: str, axis: int, shift: int) -> str:
        """The image whose index i of the axis is i + shift of x."""
        if not shift:
            return x
        if self.gathers:
            size = (self.order.height, self.order.width)[axis - 1]
            indices = self.net.const((np.arange(size) + shift) % size, np.int64)
            return self.net.node("Gather", x, indices, axis=axis)
        ends = (shift, 2**63 - 1), (0, shift)
        parts = [
            self.net.node("Slice", x, *(self.net.const([n], np.int64) for n in (*pair, axis)))
            for pair in ends
        ]
        return self.net.node("Concat", *parts, axis=axis)

    def attended(self, x: str) -> str:
        """[batch x windows, positions, H x D]."""
        if self.packed:
            packed = self.reshaped(self.projected(x, 3 * H * D), 0, 0, 3, H, D)
            packed = self.net.node("Transpose", packed, perm=[2, 0, 3, 1, 4])
            q, k, v = (
                self.net.node("Gather", packed, self.net.const(i, np.int64), axis=0)
                for i in range(3)
            )
        else:
            q, k, v = (
                self.net.node(
                    "Transpose",
                    self.reshaped(self.projected(x, H * D), 0, 0, H, D),
                    perm=[0, 2, 1, 3],
                )
                for _ in range(3)
            )
        k = self.net.node("Transpose", k, perm=[0, 1, 3, 2])
        scores = self.net.node("Mul", self.net.node("MatMul", q, k), self.net.const(D**-0.5))
        bias = self.net.normal(1, H, self.order.positions, self.order.positions)
        scores = self.net.node("Add", scores, bias)
        y = self.net.node("MatMul", self.net.node("Softmax", scores, axis=-1), v)
        y = self.net.node("Transpose", y, perm=[0, 2, 1, 3])
        return self.reshaped(y, 0, 0, H * D)

    def reshaped(self, x: str, *size: int) -> str:
        return self.net.node("Reshape", x, self.net.const(size, np.int64))


def read(model: onnx.ModelProto) -> list[Windows | None]:
    """The windows that each attention reads in place."""
    graph = prepare(model)
    projections.merge(graph)
    windows.move(graph)
    anchors = [candidate.anchor for candidate in match(graph).candidates]
    return [each.attention.windows for each in anchors if isinstance(each, AttentionAnchor)]


def optimized(model: onnx.ModelProto, tmp_path: Path) -> onnx.ModelProto:
    """The model after a verified optimization."""
    path = tmp_path / "out.onnx"
    report = onnxbolt.optimize(
        model, path, archs="sm_90a", library=False, fuse="all", precision="keep"
    )
    assert report.passed
    return onnx.load(path)


def operators(model: onnx.ModelProto) -> set[str]:
    return {node.op_type for node in model.graph.node}


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: "x".join(map(str, order.numbers)))
def test_rows_are_fitted(order: Windows) -> None:
    rows = order.rows()
    assert np.array_equal(np.sort(rows, axis=None), np.arange(order.pixels))
    assert fitted(rows, order.width) == order
    found = fitted(rows)
    assert found is not None
    assert np.array_equal(found.rows(), rows)


def test_rows_of_no_windows_are_not() -> None:
    rows = SHIFTED.rows()
    for other in (rows[[1, 0, 2, 3]], rows[:, ::-1], rows[:2], np.zeros_like(rows), rows[:0]):
        assert fitted(other) is None


def test_image_is_the_inverse_of_rows() -> None:
    image = np.arange(B * SHIFTED.pixels * C).reshape(B, SHIFTED.pixels, C)
    divided = image[:, SHIFTED.rows()].reshape(B * SHIFTED.count, SHIFTED.positions, C)
    assert np.array_equal(SHIFTED.image(divided, 1), image)
    assert SHIFTED.image(divided, 2).shape == (B, 4, 6, C)
    with pytest.raises(ValueError, match="does not fit"):
        SHIFTED.image(divided[:3], 1)


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: "x".join(map(str, order.numbers)))
@pytest.mark.parametrize("batch", [1, B, "N"])
def test_windows_are_read_in_place(order: Windows, batch: int | str) -> None:
    assert read(Block(order, batch).model()) == [order]


@pytest.mark.parametrize(
    "form",
    [{"gathers": True}, {"flat": True}, {"packed": False}, {"flat": True, "packed": False}],
    ids=str,
)
@pytest.mark.parametrize("batch", [B, "N"])
def test_no_node_moves_rows(form: dict[str, bool], batch: int | str, tmp_path: Path) -> None:
    """In any form of the rolls, of the image and of the projections."""
    model = Block(SHIFTED, batch, **form).model()
    result = optimized(model, tmp_path)
    assert not operators(result) & MOVING
    feeds = feeds_of(model)
    (y,), (expected,) = run(result, feeds), run(model, feeds)
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("batch", [B, "N"])
def test_images_may_have_one_axis_for_pixels_alone(batch: int | str, tmp_path: Path) -> None:
    model = Block(PLAIN, batch, flat=True, direct=True).model()
    (found,) = read(model)
    assert found is not None
    assert np.array_equal(found.rows(), PLAIN.rows())
    assert not operators(optimized(model, tmp_path)) & MOVING


def test_the_residual_is_added_by_the_projection(tmp_path: Path) -> None:
    for flat in (False, True):
        result = optimized(Block(flat=flat).model(), tmp_path)
        assert sorted(node.op_type for node in result.graph.node) == [
            "FusedAttention_qkv_packed_added_f32_windows_f32",
            "FusedGemm_Bias_Add_f32",
            "FusedGemm_Bias_f32",
            "Relu",
        ]


def test_nodes_name_the_tensors_that_they_hold_in_another_order(tmp_path: Path) -> None:
    """Verification by segments compares them."""
    optimized(Block(packed=False).model(), tmp_path)
    model = onnx.load(tmp_path / "out.onnx")
    found = {
        node.op_type.split("_")[0]: list(attribute.ints)
        for node in model.graph.node
        for attribute in node.attribute
        if attribute.name == "tensor_windows"
    }
    numbers = [*SHIFTED.numbers, 2]
    assert found == {"FusedGemm": numbers, "FusedAttention": numbers}
    report = inspect_model(model)
    assert all(node.tensor for node in report.nodes)


def test_windows_that_others_read_stay(tmp_path: Path) -> None:
    """The nodes that divide the image stay for their reader, and attention reads the image."""
    block = Block()
    x = block.net.node("Relu", "x")
    divided = block.divided(x)
    y = block.united(block.projected(block.attended(divided), C), block.order)
    model = block.net.model(block.net.node("Add", x, y), block.net.node("Neg", divided))
    assert read(model) == [SHIFTED]
    assert "Transpose" in operators(optimized(model, tmp_path))


@pytest.mark.parametrize("back", [PLAIN, Windows(4, 6, 2, 3, 1, 1), Windows(4, 6, 4, 3, 1, 2)])
def test_windows_that_are_united_otherwise_stay(back: Windows, tmp_path: Path) -> None:
    model = Block().model(back)
    assert read(model) == [None]
    assert operators(optimized(model, tmp_path)) & MOVING


def between(block: Block, what: Sequence[str]) -> onnx.ModelProto:
    """The block with further nodes: on the windows, or on what the projections make of them."""
    x = block.net.node("Relu", "x")
    divided = block.divided(x)
    if "pinned projection" in what:
        y = block.attended(divided)
        pinned = next(node for node in block.net.nodes if node.op_type == "Add").output[0]
        y = block.united(block.projected(y, C), block.order)
        return block.net.model(block.net.node("Add", x, y), pinned)
    y = block.attended(divided)
    pinned = y
    y = block.united(block.projected(y, C), block.order)
    return block.net.model(block.net.node("Add", x, y), pinned)


@pytest.mark.parametrize("what", ["pinned projection", "pinned result"])
def test_outputs_of_the_model_keep_their_order(what: str, tmp_path: Path) -> None:
    model = between(Block(), [what])
    assert read(model) == [None]
    result, feeds = optimized(model, tmp_path), feeds_of(model)
    for y, expected in zip(run(result, feeds), run(model, feeds), strict=True):
        np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4)
