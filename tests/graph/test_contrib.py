"""Types and shapes behind ONNX Runtime's own operators, against what ONNX Runtime itself gives
where it has them on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx
import pytest

from onnxbolt.graph.contrib import DOMAIN
from onnxbolt.graph.importer import import_model
from onnxbolt.graph.shapes import infer
from tests.support import Net, feeds_of, run

X: dict[str, Sequence[int | str]] = {"x": ("N", 4, 8)}


def attention(net: Net) -> str:
    return net.node("Attention", "x", net.normal(8, 24), net.normal(24), domain=DOMAIN, num_heads=2)


def narrow_attention(net: Net) -> str:
    return net.node(
        "Attention",
        "x",
        net.normal(8, 20),
        net.normal(20),
        domain=DOMAIN,
        num_heads=2,
        qkv_hidden_sizes=[8, 8, 4],
    )


def multi_head(net: Net) -> str:
    return net.node("MultiHeadAttention", "x", "x", "x", domain=DOMAIN, num_heads=2)


def embedding(net: Net) -> str:
    ids = net.node(
        "Cast",
        net.node(
            "ReduceMax", net.node("Clip", "x", net.const(0), net.const(1)), axes=[2], keepdims=0
        ),
        to=6,
    )
    return net.node(
        "EmbedLayerNormalization",
        ids,
        "",
        net.normal(2, 6),
        net.normal(4, 6),
        "",
        net.normal(6),
        net.normal(6),
        outputs=2,
        domain=DOMAIN,
    )


def skip(net: Net) -> str:
    return net.node("SkipLayerNormalization", "x", "x", net.normal(8), net.normal(8), domain=DOMAIN)


def grouped_query(net: Net, packed: bool = False) -> str:
    """Two heads of queries, and one of keys and values."""
    widths = (32,) if packed else (16, 8, 8)
    parts = [net.node("MatMul", "x", net.normal(8, width)) for width in widths]
    lengths = [net.const([3] * 3, np.int32), net.const(4, np.int32)]
    inputs = [*parts, *[""] * (5 - len(parts)), *lengths]
    attributes = {"num_heads": 2, "kv_num_heads": 1, "domain": DOMAIN}
    return net.several("GroupQueryAttention", *inputs, outputs=3, **attributes)[0]


def matmul(net: Net, **attributes: int) -> str:
    return net.node("FusedMatMul", "x", "x", domain=DOMAIN, **attributes)


CASES = {
    "Attention": attention,
    "Attention of another width": narrow_attention,
    "MultiHeadAttention": multi_head,
    "EmbedLayerNormalization": embedding,
    "GroupQueryAttention": grouped_query,
    "SimplifiedLayerNormalization": lambda net: net.node(
        "SimplifiedLayerNormalization", "x", net.normal(8)
    ),
    "SkipLayerNormalization": skip,
    "FusedMatMul A^T": lambda net: matmul(net, transA=1),
    "FusedMatMul B^T": lambda net: matmul(net, transB=1),
    "BiasGelu": lambda net: net.node("BiasGelu", "x", net.normal(8), domain=DOMAIN),
    "FastGelu": lambda net: net.node("FastGelu", "x", domain=DOMAIN),
    "QuickGelu": lambda net: net.node("QuickGelu", "x", domain=DOMAIN),
    "FusedConv": lambda net: net.node(
        "FusedConv",
        "x",
        net.normal(6, 4, 3),
        domain=DOMAIN,
        activation="Relu",
        pads=[1, 0],
        strides=[2],
    ),
    "FusedGemm": lambda net: net.node(
        "FusedGemm",
        net.node("Flatten", "x"),
        net.normal(5, 32),
        domain=DOMAIN,
        activation="Relu",
        transB=1,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_shapes_are_those_that_onnx_runtime_gives(name: str) -> None:
    net = Net(X)
    case: Callable[[Net], str] = CASES[name]
    y = case(net)
    model = net.model()
    model.graph.output.append(onnx.ValueInfoProto(name=y))
    graph = import_model(model)
    infer(graph)
    (found,) = [tensor for node in graph.nodes for tensor in node.outputs if tensor.name == y]
    assert found.dtype == np.float32
    (answer,) = run(model, feeds_of(model, 3))
    assert len(found.shape) == answer.ndim
    assert all(
        size == actual
        for size, actual in zip(found.shape, answer.shape, strict=True)
        if isinstance(size, int)
    )
    assert isinstance(found.shape[-1], int)


def test_queries_packed_with_keys_and_values_are_part_of_the_width() -> None:
    """The width of the packed input is known behind a first inference."""
    net = Net(X)
    y = grouped_query(net, packed=True)
    graph = import_model(net.model(y))
    infer(graph)
    infer(graph)
    assert graph.outputs[0].shape == ["N", 4, 16]
    (answer,) = run(net.model(y), feeds_of(net.model(y), 3))
    assert answer.shape == (3, 4, 16)


def test_the_mask_of_an_embedding_has_a_number_for_each_sequence() -> None:
    net = Net(X)
    mask = f"{embedding(net)}_1"
    graph = import_model(net.model(mask))
    infer(graph)
    assert (graph.outputs[0].dtype, graph.outputs[0].shape) == (np.int32, ["N"])
    (answer,) = run(net.model(mask), feeds_of(net.model(mask), 3))
    assert (answer.dtype, *answer.shape) == (np.dtype(np.int32), 3)


def test_bias_split_gelu_halves_the_last_axis() -> None:
    """BiasSplitGelu has no CPU kernel."""
    net = Net(X)
    y = net.node("BiasSplitGelu", "x", net.normal(8), domain=DOMAIN)
    graph = import_model(net.model(y))
    infer(graph)
    assert graph.outputs[0].shape == ["N", 4, 4]


@pytest.mark.parametrize(("op", "inputs"), [("MultiHeadAttention", 1), ("NobodyKnows", 1)])
def test_unknown_operators_and_forms_end_inference_without_an_error(op: str, inputs: int) -> None:
    net = Net(X)
    y = net.node("Relu", net.node(op, *["x"] * inputs, domain=DOMAIN))
    graph = import_model(net.model(y))
    infer(graph)
    assert graph.outputs[0].shape is None


def test_a_domain_that_nobody_imports_is_no_error() -> None:
    net = Net(X)
    model = net.model(net.node("FastGelu", "x", domain=DOMAIN))
    del model.opset_import[1:]
    graph = import_model(model)
    infer(graph)
    assert graph.outputs[0].shape == ["N", 4, 8]
