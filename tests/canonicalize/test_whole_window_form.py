"""Convolutions whose window is the whole image."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onnxbolt
from onnxbolt.canonicalize.whole_window_form import run
from tests.canonicalize.compare import applied, model, operators, random, unchanged
from tests.support import Net, ops

IMAGE = (3, 4, 5)


def _source(
    image: tuple[int, ...] = IMAGE,
    window: tuple[int, ...] = IMAGE[1:],
    images: int | str = "n",
    group: int = 1,
    **attributes: Any,
) -> onnx.ModelProto:
    constants = {"w": random(6, image[0] // group, *window), "b": random(6, seed=1)}
    node = ("Conv", "x w b", "y", attributes | {"group": group})
    return model([node], {"x": (images, *image)}, {"y": ("n", 6, *[""] * len(window))}, constants)


@pytest.mark.parametrize("images", ["n", 2])
@pytest.mark.parametrize("image", [IMAGE, (3, 2, 4, 5), (3, 4)])
def test_it_is_a_product(image: tuple[int, ...], images: int | str) -> None:
    graph = applied(_source(image, image[1:], images, strides=list(image[1:])), run, 1)
    assert operators(graph) == ["Reshape", "MatMul", "Add", "Reshape"]


@pytest.mark.parametrize(
    "source",
    [
        _source(window=(3, 5)),
        _source(pads=[1, 1, 1, 1]),
        _source(group=3),
        _source((3, 1, 1), (1, 1)),
        _source((3, 4, "w"), (4, 5)),  # type: ignore[arg-type]
    ],
    ids=["a smaller window", "pads", "groups", "one pixel", "open sizes"],
)
def test_near_misses_stay(source: onnx.ModelProto) -> None:
    unchanged(source, run)


def test_an_image_that_a_convolution_computes_stays() -> None:
    nodes = [("Conv", "x v", "t"), ("Conv", "t w", "y")]
    constants = {"v": random(4, *IMAGE[:1], 1, 1), "w": random(6, 4, *IMAGE[1:])}
    unchanged(model(nodes, {"x": ("n", *IMAGE)}, {"y": ("n", 6, 1, 1)}, constants), run)


def test_patches_that_are_images_of_their_own_are_fused(tmp_path: Path) -> None:
    """Qwen2-VL's embedding."""
    net = Net({"x": (8, 3 * 2 * 4 * 4)})
    shape, flat = (net.const(sizes, np.int64) for sizes in ((-1, 3, 2, 4, 4), (-1, 16)))
    weight = net.normal(16, 3, 2, 4, 4, scale=0.1)
    image = net.node("Reshape", "x", shape)
    y = net.node("Reshape", net.node("Conv", image, weight, strides=[2, 4, 4]), flat)
    out = tmp_path / "out.onnx"
    report = onnxbolt.optimize(
        net.model(y), out, archs="sm_90a", precision="fp16", fuse="all", library=False
    )
    assert report.passed
    assert [node.op.partition("_")[0] for node in report.fused] == ["FusedGemm"]
    assert "Conv" not in ops(onnx.load(out))
