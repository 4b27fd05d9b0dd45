"""Attention over the pixels of images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxbolt
from onnxbolt import Report
from tests.support import Net, assert_same, matched, ops, run

SIDE, HEADS, KEYS, VALUES = 4, 2, 8, 16  # pixels of a side, heads, sizes of keys and of values
WIDTH = HEADS * VALUES


class Block:
    """The attention of YOLOv10: queries, keys and values are parts of one convolution's channels,
    and a convolution of the values is added to the result."""

    turned = True  # values multiplied by transposed probabilities
    apart = False  # a convolution each

    def __init__(self, height: int | str = SIDE) -> None:
        self.net = Net({"x": ("batch", WIDTH, height, SIDE)})

    def ints(self, *values: int) -> str:
        return self.net.const(values, np.int64)

    def transposed(self, x: str) -> str:
        return self.net.node("Transpose", x, perm=[0, 1, 3, 2])

    def divided(self, x: str, size: int) -> str:
        return self.net.node("Reshape", x, self.ints(-1, HEADS, size, SIDE * SIDE))

    def image(self, x: str) -> str:
        return self.net.node("Reshape", x, self.ints(-1, WIDTH, SIDE, SIDE))

    def operands(self) -> list[str]:
        x, sizes = self.net.conv("x", WIDTH, WIDTH, 1), (KEYS, KEYS, VALUES)
        if self.apart:
            made = [self.net.conv(x, WIDTH, HEADS * size, 1) for size in sizes]
            return [self.divided(y, size) for y, size in zip(made, sizes, strict=True)]
        y = self.divided(self.net.conv(x, WIDTH, HEADS * sum(sizes), 1), sum(sizes))
        return self.net.several("Split", y, self.ints(*sizes), outputs=3, axis=2)

    def attended(self) -> str:
        q, k, v = self.operands()
        scores = self.net.node("MatMul", self.transposed(q), k)
        scores = self.net.node("Mul", scores, self.net.const(KEYS**-0.5))
        p = self.net.node("Softmax", scores, axis=-1)
        if self.turned:
            y = self.net.node("MatMul", v, self.transposed(p))
        else:
            y = self.transposed(self.net.node("MatMul", p, self.transposed(v)))
        places = self.net.conv(self.image(v), WIDTH, WIDTH, 3, pads=[1] * 4)
        return self.net.node("Add", self.image(y), places)

    def model(self) -> onnx.ModelProto:
        return self.net.model(self.net.conv(self.attended(), WIDTH, WIDTH, 1))


class Apart(Block):
    apart = True


class ValuesFirst(Block):
    turned = False


class OneHead(Block):
    """SHViT's: the image is divided into queries, keys and values; there is no axis for heads."""

    def divided(self, x: str, size: int) -> str:
        return self.net.node("Reshape", x, self.ints(-1, size, SIDE * SIDE))

    def transposed(self, x: str) -> str:
        return self.net.node("Transpose", x, perm=[0, 2, 1])

    def operands(self) -> list[str]:
        sizes = KEYS, KEYS, WIDTH
        y = self.net.conv(self.net.conv("x", WIDTH, WIDTH, 1), WIDTH, sum(sizes), 1)
        parts = self.net.several("Split", y, self.ints(*sizes), outputs=3, axis=1)
        return [self.divided(part, size) for part, size in zip(parts, sizes, strict=True)]


class OneHeadApart(OneHead):
    def operands(self) -> list[str]:
        x, sizes = self.net.conv("x", WIDTH, WIDTH, 1), (KEYS, KEYS, WIDTH)
        return [self.divided(self.net.conv(x, WIDTH, size, 1), size) for size in sizes]


class OfOneImage(OneHead):
    """Queries, keys and values are the same pixels; keys are divided in front of queries."""

    def operands(self) -> list[str]:
        x = self.net.conv("x", WIDTH, WIDTH, 1)
        k, q, v = (self.divided(x, WIDTH) for _ in range(3))
        return [q, k, v]


BLOCKS = (Block, Apart, ValuesFirst, OneHead, OneHeadApart, OfOneImage)


def _optimized(block: Block, out: Path, precision: str) -> Report:
    return onnxbolt.optimize(
        block.model(), out, archs="sm_90a", precision=precision, fuse="all", library=False
    )


@pytest.mark.parametrize("block", BLOCKS)
def test_it_reads_images_in_nhwc(block: type[Block], tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    report = _optimized(block(), out, "fp16")
    assert report.passed
    assert len([node for node in report.fused if "Attention" in node.op]) == 1
    assert "Transpose" not in ops(onnx.load(out))


@pytest.mark.parametrize("block", BLOCKS)
def test_answers_stay(block: type[Block]) -> None:
    assert "Attention" in "".join(ops(assert_same(block().model())))


class OpenSizes(Block):
    """The image's height is open."""

    def __init__(self) -> None:
        super().__init__("height")

    def divided(self, x: str, size: int) -> str:
        return self.net.node("Reshape", x, self.ints(0, HEADS, size, -1))

    def image(self, x: str) -> str:
        shape = self.net.node("Shape", "x")
        return self.net.node("Reshape", x, shape)


def test_images_of_open_sizes(tmp_path: Path) -> None:
    source, out = OpenSizes().model(), tmp_path / "out.onnx"
    report = onnxbolt.optimize(
        source, out, archs="sm_90a", precision="keep", fuse="all", library=False
    )
    assert report.passed
    assert len([node for node in report.fused if "Attention" in node.op]) == 1
    assert "Transpose" not in ops(onnx.load(out))
    for side in (3, 8):
        x = np.random.default_rng(0).standard_normal((2, WIDTH, side, SIDE)).astype(np.float32)
        (expected,), (answer,) = run(source, {"x": x}), run(out, {"x": x})
        np.testing.assert_allclose(answer, expected, atol=1e-4)


class OtherHeads(Block):
    """The result's channels are not the heads' elements."""

    def image(self, x: str) -> str:
        y = self.net.node("Reshape", x, self.ints(-1, WIDTH * SIDE, SIDE, 1))
        return self.net.node("Reshape", y, self.ints(-1, WIDTH, SIDE, SIDE))


def test_an_attention_that_no_kernel_reads_stays_as_it_was() -> None:
    candidates, refusals = matched(OtherHeads().model())
    assert not [each for each in candidates if each.anchor.op.name == "attention"]
    reasons = [refusal.reason for refusal in refusals if refusal.op == "Softmax"]
    assert reasons == ["its probabilities are read by Transpose"]
