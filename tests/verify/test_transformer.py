"""A vision transformer of twelve blocks that ONNX Runtime has converted to fp16: its roundings
add up, which is no fault of ours."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import ModelProto
from onnxruntime.transformers.float16 import convert_float_to_float16

from onnxbolt.graph.importer import load_model
from onnxbolt.pipeline import optimize
from onnxbolt.verify import verify
from onnxbolt.verify.session import CPU
from tests.support import Net

WIDTH, TOKENS, HEADS = 32, 9, 4


def normalized(net: Net, x: str) -> str:
    return net.node("LayerNormalization", x, net.const(np.ones(WIDTH)), net.const(np.zeros(WIDTH)))


def block(net: Net, x: str) -> str:
    n, depth = normalized(net, x), WIDTH // HEADS
    heads = [
        net.node(
            "Reshape", net.linear(n, WIDTH, WIDTH), net.const([1, TOKENS, HEADS, depth], np.int64)
        )
        for _ in range(3)
    ]
    q, k, v = (
        net.node("Transpose", x, perm=perm)
        for x, perm in zip(heads, ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]), strict=True)
    )
    weights = net.node("Softmax", net.node("Mul", net.node("MatMul", q, k), net.const(depth**-0.5)))
    mixed = net.node("Transpose", net.node("MatMul", weights, v), perm=[0, 2, 1, 3])
    x = net.node(
        "Add",
        x,
        net.linear(
            net.node("Reshape", mixed, net.const([1, TOKENS, WIDTH], np.int64)), WIDTH, WIDTH
        ),
    )
    h = net.linear(normalized(net, x), WIDTH, 4 * WIDTH)
    gate = net.node("Add", net.node("Erf", net.node("Div", h, net.const(np.sqrt(2)))), net.const(1))
    return net.node(
        "Add",
        x,
        net.linear(net.node("Mul", net.node("Mul", h, gate), net.const(0.5)), 4 * WIDTH, WIDTH),
    )


def converted() -> ModelProto:
    net = Net({"x": (1, TOKENS, WIDTH)})
    x = "x"
    for _ in range(12):
        x = block(net, x)
    model: ModelProto = convert_float_to_float16(net.model(x))
    return model


def test_a_transformer_in_fp16_does_not_fail(tmp_path: Path) -> None:
    source, out = converted(), f"{tmp_path}/out.onnx"
    optimize(source, out, precision="fp16", fuse="all", library=False, verify=False)
    result = verify(source, load_model(out), providers=[CPU])
    assert result.passed, result.text()
    assert len(result.at("node")) >= 60
    assert len(result.at("segment")) > len(result.at("node"))
