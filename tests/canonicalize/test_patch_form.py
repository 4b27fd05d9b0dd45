"""Convolutions of patches that become matrix products."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from onnxbolt.canonicalize.patch_form import run
from tests.canonicalize.compare import applied, model, operators, random, unchanged
from tests.support import Net, fused, ops
from tests.support import run as answers

N, C, H, W, K = 2, 3, 32, 48, 24
CONSTANTS = {
    "w": random(K, C, 16, 8, seed=1),
    "b": random(K, seed=2),
    "flat": np.array([0, K, -1]),
    "grid": np.array([0, K, 2, 6]),
}
CONV = ("Conv", "x w b", "y", {"strides": [16, 8]})
TOKENS = [("Reshape", "y flat", "f"), ("Transpose", "f", "t", {"perm": [0, 2, 1]})]
IMAGE = ("Transpose", "y", "t", {"perm": [0, 2, 3, 1]})
PATCHES = ["Reshape", "Transpose", "Reshape", "MatMul", "Add"]


def _source(
    nodes: list[tuple[Any, ...]],
    shape: tuple[int | str, ...] = (N, C, H, W),
    dtype: int = TensorProto.FLOAT,
    **constants: Any,
) -> onnx.ModelProto:
    used = {name for node in nodes for name in node[1].split()}
    known = {name: value for name, value in (CONSTANTS | constants).items() if name in used}
    outputs = {"t": (shape[0], 12, K) if nodes[-1] == TOKENS[-1] else (shape[0], 2, 6, K)}
    return model(nodes, {"x": shape}, outputs, known, dtype=dtype)


@pytest.mark.parametrize("dtype", [TensorProto.FLOAT, TensorProto.FLOAT16])
@pytest.mark.parametrize("batch", [1, N, "batch"])
@pytest.mark.parametrize("behind", [TOKENS, [IMAGE]], ids=["tokens", "image"])
def test_patches_are_rows_of_a_product(behind: list[Any], batch: int | str, dtype: int) -> None:
    graph = applied(_source([CONV, *behind], (batch, C, H, W), dtype), run, 1)
    assert operators(graph) == PATCHES
    assert graph.nodes[-1].outputs[0].name == "t"
    assert graph.nodes[-1].provenance == ("node_y", *(f"node_{each[2]}" for each in behind))
    assert graph.nodes[-2].inputs[1].shape == (C * 16 * 8, K)


def test_a_convolution_without_bias_is_a_product_alone() -> None:
    graph = applied(_source([("Conv", "x w", *CONV[2:]), *TOKENS], dtype=TensorProto.FLOAT), run, 1)
    assert operators(graph) == PATCHES[:-1]


def test_pixels_may_be_normalized_before() -> None:
    nodes = [("Sub", "x mean", "z"), ("Conv", "z w b", *CONV[2:]), *TOKENS]
    graph = applied(_source(nodes, mean=random(C, 1, 1)), run, 1)
    assert operators(graph) == ["Sub", *PATCHES]


@pytest.mark.parametrize("mode", ["VALID", "NOTSET"])
def test_padding_may_be_given_in_words(mode: str) -> None:
    conv = ("Conv", "x w b", "y", {"strides": [16, 8], "auto_pad": mode})
    assert operators(applied(_source([conv, *TOKENS]), run, 1)) == PATCHES


def test_a_reshape_that_is_not_to_tokens_stays() -> None:
    turned = ("Transpose", "f", "t", {"perm": [0, 2, 3, 1]})
    unchanged(_source([CONV, ("Reshape", "y grid", "f"), turned]), run)


def _net(build: Any, shape: tuple[int | str, ...] = (N, C, 32, 32)) -> onnx.ModelProto:
    net = Net({"x": shape})
    return net.model(build(net))


def _behind_a_pool(net: Net) -> str:
    x = net.node("MaxPool", "x", kernel_shape=[2, 2], strides=[2, 2])
    return net.node("Transpose", net.conv(x, C, K, 8, strides=[8, 8]), perm=[0, 2, 3, 1])


def _padded(net: Net) -> str:
    y = net.conv("x", C, K, 8, strides=[8, 8], pads=[4, 4, 4, 4])
    return net.node("Transpose", y, perm=[0, 2, 3, 1])


def _overlapping(net: Net) -> str:
    return net.node("Transpose", net.conv("x", C, K, 8, strides=[4, 4]), perm=[0, 2, 3, 1])


def _small(net: Net) -> str:
    return net.node("Transpose", net.conv("x", C, K, 4, strides=[4, 4]), perm=[0, 2, 3, 1])


def _with_rest(net: Net) -> str:
    return net.node("Transpose", net.conv("x", C, K, 12, strides=[12, 12]), perm=[0, 2, 3, 1])


def _channels_first(net: Net) -> str:
    return net.node("Relu", net.conv("x", C, K, 8, strides=[8, 8]))


def _two_readers(net: Net) -> str:
    y = net.conv("x", C, K, 8, strides=[8, 8])
    turned = net.node("Transpose", y, perm=[0, 2, 3, 1])
    return net.node("Add", turned, net.node("ReduceMax", y))


def _groups(net: Net) -> str:
    y = net.conv("x", C, K, 8, strides=[8, 8], group=3)
    return net.node("Transpose", y, perm=[0, 2, 3, 1])


@pytest.mark.parametrize(
    "build",
    [
        _behind_a_pool,
        _padded,
        _overlapping,
        _small,
        _with_rest,
        _channels_first,
        _two_readers,
        _groups,
    ],
)
def test_other_convolutions_stay(build: Any) -> None:
    unchanged(_net(build), run)


def test_images_of_unknown_size_stay() -> None:
    source = _net(_small, (N, C, "height", "width"))
    source.graph.initializer[0].CopyFrom(
        onnx.numpy_helper.from_array(random(K, C, 8, 8).astype(np.float32), "c0")
    )
    source.graph.node[0].attribute[0].ints[:] = [8, 8]
    unchanged(source, run)


@pytest.mark.parametrize(("precision", "limit"), [("keep", 1e-5), ("fp16", 3e-3)])
def test_the_product_is_fused(precision: str, limit: float) -> None:
    """The whole middle of the pipeline: one product on rows of patches."""
    net = Net({"x": ("batch", C, 32, 32)})
    flat = net.node(
        "Reshape", net.conv("x", C, K, 16, strides=[16, 16]), net.const([0, K, -1], np.int64)
    )
    source = net.model(net.node("Transpose", flat, perm=[0, 2, 1]))
    optimized = fused(source, precision)
    assert [op for op in ops(optimized) if op.startswith("Fused")] == [
        f"FusedGemm_Bias{'_CastF32_f16' if precision == 'fp16' else '_f32'}"
    ]
    feeds = {"x": random(3, C, 32, 32).astype(np.float32)}
    (expected,), (got,) = answers(source, feeds), answers(optimized, feeds)
    assert got.shape == expected.shape
    assert np.linalg.norm(got - expected) <= limit * np.linalg.norm(expected)
