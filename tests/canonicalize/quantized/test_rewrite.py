"""All passes together, on random graphs of pairs, of operators that move values and of some that
compute."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxbolt.canonicalize.quantized import constants, merges, rewrite
from onnxbolt.canonicalize.quantized.merges import run as merge
from onnxbolt.canonicalize.quantized.scaling import is_dequantize, is_quantize, scaling_of
from onnxbolt.graph.edit import remove
from onnxbolt.graph.importer import import_model
from tests.canonicalize.quantized.compare import CODES, graph_of, model, same_bits, values
from tests.support import Net

_SHAPE = (2, 4, 6, 6)
_NUMBERS = {
    "s0": np.float32(0.1),
    "s1": np.float32(0.037),
    "s2": np.float32(0.1),  # the same number as s0
    "i0": np.int8(0),
    "i1": np.int8(-7),
    "u0": np.uint8(0),
    "u1": np.uint8(131),
    "low": np.int8(-100),
    "high": np.int8(90),
    "shape": np.array(_SHAPE, np.int64),
    "flat": np.array([2, 4, 36], np.int64),
    "pads": np.array([0, 0, 1, 1, 0, 0, -1, -1], np.int64),
    "parts": np.array([2, 2], np.int64),
    "constant": values(3, 0.1, *_SHAPE),
}
# each step adds nodes to some tensors of one shape, and makes one more
_STEPS = ("pair", "clip", "turn", "reshape", "pool", "pad", "concat", "split", "relu", "add")


@st.composite
def graphs(draw: st.DrawFn) -> onnx.ModelProto:
    nodes: list[tuple[Any, ...]] = []
    tensors = ["x", "constant"]

    def add(op: str, *read: str, outputs: int = 1, **attributes: Any) -> list[str]:
        made = [f"t{len(nodes)}{'ab'[i] if outputs > 1 else ''}" for i in range(outputs)]
        nodes.append((op, " ".join(read), " ".join(made), attributes))
        return made

    def pair(x: str, clipped: bool) -> str:
        zero = draw(st.sampled_from(["i0", "i1"] if clipped else ["i0", "i1", "u0", "u1"]))
        numbers = (draw(st.sampled_from(["s0", "s1", "s2"])), zero)
        (codes,) = add("QuantizeLinear", x, *numbers)
        if clipped:
            (codes,) = add("Clip", codes, "low", "high")
        return add("DequantizeLinear", codes, *numbers)[0]

    def step(kind: str, x: str, other: str) -> str:
        if kind in ("pair", "clip"):
            return pair(x, kind == "clip")
        if kind == "turn":
            return add("Transpose", x, perm=[0, 1, 3, 2])[0]
        if kind == "reshape":
            return add("Reshape", add("Reshape", x, "flat")[0], "shape")[0]
        if kind == "pool":
            window: dict[str, Any] = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
            return add("MaxPool", x, **window)[0]
        if kind == "pad":
            return add("Pad", x, "pads")[0]
        if kind == "concat":
            (both,) = add("Concat", x, other, axis=1)
            return add("Split", both, outputs=2, axis=1, num_outputs=2)[0]
        if kind == "split":
            return add("Concat", *add("Split", x, "parts", outputs=2, axis=1)[::-1], axis=1)[0]
        return add("Relu", x)[0] if kind == "relu" else add("Add", x, other)[0]

    for kind in draw(st.lists(st.sampled_from(_STEPS), min_size=3, max_size=12)):
        x, other = (draw(st.sampled_from(tensors[-3:])) for _ in range(2))
        tensors.append(step(kind, x, other))
    nodes.append(("Relu", tensors[-1], "y", {}))
    return model(nodes, {"x": np.zeros(_SHAPE, np.float32)}, ["y"], _NUMBERS)


@settings(max_examples=60, deadline=None)
@given(graphs(), st.integers(0, 2**16))
def test_random_graphs_keep_their_bits(source: onnx.ModelProto, seed: int) -> None:
    graph = graph_of(source)
    rewrite(graph)
    same_bits(source, graph, {"x": values(seed, 0.1, *_SHAPE)})
    assert not rewrite(graph)  # nothing is left to do
    assert merge(graph) == 0
    for node in graph.nodes:
        if is_quantize(node) and is_dequantize(before := (node.inputs[0].inputs or [None])[0]):
            down, up = scaling_of(before), scaling_of(node)
            assert down is not None
            assert up is not None
            assert up.code in CODES
            assert not down.same(up)  # a change of scales


@pytest.mark.parametrize("layers", [2, 9])
def test_the_list_of_nodes_is_made_anew_once_a_pass(
    layers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not for each node: 11,000 nodes would be 11,000 lists of as many."""
    removed = list[int]()

    def noted(graph: gs.Graph, nodes: list[gs.Node]) -> None:
        removed.append(len(nodes))
        remove(graph, nodes)

    for module in (constants, merges):
        monkeypatch.setattr(module, "remove", noted)
    net = Net({"x": (8, 16)}, opset=13)
    scale, zero = net.const(0.5), net.const(0, np.int8)
    x = net.node("QuantizeLinear", "x", scale, zero)
    for _ in range(layers):
        left, right = (net.node("DequantizeLinear", x, scale, zero) for _ in range(2))
        bias = net.node("DequantizeLinear", net.const(np.ones(16), np.int8), scale, zero)
        y = net.node("Add", net.node("Mul", left, right), bias)
        x = net.node("QuantizeLinear", y, scale, zero)
    rewrite(import_model(net.model(net.node("DequantizeLinear", x, scale, zero))))
    assert len(removed) <= 12
    assert sum(removed) == 2 * layers
