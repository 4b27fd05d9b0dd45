"""Small networks with the graph shapes of published models of text, sound, and tables."""

from __future__ import annotations

import numpy as np
from onnx import ModelProto, TensorProto, helper

from tests.support import Net


def _sizes(net: Net, *values: int) -> str:
    return net.const(values, np.int64)


def _norm(net: Net, x: str, width: int) -> str:
    return net.node("LayerNormalization", x, net.normal(width), net.normal(width), axis=-1)


def _gelu(net: Net, x: str) -> str:
    """The tanh form, as PyTorch writes it."""
    cubed = net.node("Mul", net.node("Pow", x, net.const(3.0)), net.const(0.044715))
    inner = net.node("Tanh", net.node("Mul", net.node("Add", x, cubed), net.const(0.7978845608)))
    return net.node(
        "Mul", net.node("Mul", x, net.const(0.5)), net.node("Add", inner, net.const(1.0))
    )


def _heads(net: Net, x: str, heads: int, depth: int) -> str:
    return net.node(
        "Transpose", net.node("Reshape", x, _sizes(net, 0, -1, heads, depth)), perm=[0, 2, 1, 3]
    )


def _attend(net: Net, q: str, k: str, v: str, mask: str, width: int) -> str:
    """softmax(q k^T / 2 + mask) v of [B, H, S, 4], heads joined; a boolean mask selects."""
    scores = net.node(
        "Div", net.node("MatMul", q, net.node("Transpose", k, perm=[0, 1, 3, 2])), net.const(2.0)
    )
    if mask:
        scores = net.node("Where", mask, scores, net.const(np.finfo(np.float32).min))
    mixed = net.node("MatMul", net.node("Softmax", scores, axis=-1), v)
    return net.node(
        "Reshape", net.node("Transpose", mixed, perm=[0, 2, 1, 3]), _sizes(net, 0, -1, width)
    )


def _causal(net: Net, length: int) -> str:
    return net.const(np.tri(length, dtype=bool)[None, None], bool)


def vit() -> ModelProto:
    """Patches, a class token that Expand and Concat put before them, position embeddings."""
    net = Net({"x": ("N", 3, 16, 16)})
    patches = net.node("Reshape", net.conv("x", 3, 12, 4, strides=[4, 4]), _sizes(net, 0, 12, -1))
    batch = net.node("Gather", net.node("Shape", "x"), _sizes(net, 0), axis=0)
    token = net.node(
        "Expand", net.normal(1, 1, 12), net.node("Concat", batch, _sizes(net, 1, 12), axis=0)
    )
    y = net.node(
        "Add",
        net.node("Concat", token, net.node("Transpose", patches, perm=[0, 2, 1]), axis=1),
        net.normal(1, 17, 12),
    )
    for _ in range(2):
        inner = net.linear(_norm(net, y, 12), 12, 36)
        q, k, v = (
            _heads(net, part, 3, 4)
            for part in net.several("Split", inner, _sizes(net, 12, 12, 12), outputs=3, axis=2)
        )
        y = net.node("Add", y, net.linear(_attend(net, q, k, v, "", 12), 12, 12))
        y = net.node(
            "Add", net.linear(_gelu(net, net.linear(_norm(net, y, 12), 12, 30)), 30, 12), y
        )
    return net.model(
        net.linear(net.node("Gather", _norm(net, y, 12), net.const(0, np.int64), axis=1), 12, 10)
    )


def gpt() -> ModelProto:
    """Embeddings, a causal mask by Where, the output layer shares the embedding's weight."""
    net = Net({"ids": ("B", 9)}, types={"ids": TensorProto.INT64})
    table = net.normal(30, 8)
    y = net.node("Add", net.node("Gather", table, "ids"), net.normal(1, 9, 8))
    for _ in range(2):
        inner = net.node(
            "Gemm",
            net.node("Reshape", _norm(net, y, 8), _sizes(net, -1, 8)),
            net.normal(8, 24),
            net.normal(24),
        )
        inner = net.node("Reshape", inner, _sizes(net, -1, 9, 24))
        q, k, v = (
            _heads(net, part, 2, 4)
            for part in net.several("Split", inner, _sizes(net, 8, 8, 8), outputs=3, axis=-1)
        )
        y = net.node("Add", y, net.linear(_attend(net, q, k, v, _causal(net, 9), 8), 8, 8))
        y = net.node("Add", y, net.linear(_gelu(net, net.linear(_norm(net, y, 8), 8, 32)), 32, 8))
    return net.model(
        net.node("MatMul", _norm(net, y, 8), net.node("Transpose", table, perm=[1, 0]))
    )


def llama() -> ModelProto:
    """RMSNorm written out, rotary embeddings, grouped keys, SwiGLU; no bias anywhere; batch and
    sequence symbolic."""
    net = Net(
        {"ids": ("B", "S"), "cos": ("B", 1, "S", 4), "sin": ("B", 1, "S", 4)},
        types={"ids": TensorProto.INT64},
    )

    def norm(x: str) -> str:
        mean = net.node("ReduceMean", net.node("Pow", x, net.const(2.0)), axes=[-1])
        root = net.node("Sqrt", net.node("Add", mean, net.const(1e-6)))
        return net.node("Mul", net.normal(8), net.node("Mul", x, net.node("Reciprocal", root)))

    def rotated(x: str) -> str:
        end = _sizes(net, np.iinfo(np.int64).max)
        low, high = (
            net.node("Slice", x, _sizes(net, a), b, _sizes(net, 3))
            for a, b in ((0, _sizes(net, 2)), (2, end))
        )
        turned = net.node("Concat", net.node("Neg", high), low, axis=-1)
        return net.node("Add", net.node("Mul", x, "cos"), net.node("Mul", turned, "sin"))

    def product(x: str, k: int, n: int) -> str:
        return net.node("MatMul", x, net.normal(k, n, scale=k**-0.5))

    y = net.node("Gather", net.normal(20, 8), "ids")
    for _ in range(2):
        inner = norm(y)
        q, k, v = (_heads(net, product(inner, 8, width), width // 4, 4) for width in (8, 4, 4))
        k, v = rotated(k), v
        y = net.node("Add", y, product(_attend(net, rotated(q), k, v, "", 8), 8, 8))
        inner = norm(y)
        gate = product(inner, 8, 20)
        y = net.node(
            "Add",
            y,
            product(
                net.node(
                    "Mul", net.node("Mul", gate, net.node("Sigmoid", gate)), product(inner, 8, 20)
                ),
                20,
                8,
            ),
        )
    return net.model(product(norm(y), 8, 20), y)


def bert_embedding() -> ModelProto:
    """Masks from integers, an additive mask of -10000, segments and positions, a pooler with
    Tanh."""
    net = Net(
        {"ids": ("B", 7), "mask": ("B", 7)},
        types={"ids": TensorProto.INT64, "mask": TensorProto.INT64},
    )
    open_, shut = (
        net.node("Unsqueeze", net.node("Cast", "mask", to=TensorProto.FLOAT), _sizes(net, 1, 2)),
        net.const(-10000.0),
    )
    mask = net.node("Mul", net.node("Sub", net.const(1.0), open_), shut)
    positions = net.node("Gather", net.normal(16, 12), _sizes(net, *range(7)))
    y = _norm(net, net.node("Add", net.node("Gather", net.normal(40, 12), "ids"), positions), 12)
    q, k, v = (_heads(net, net.linear(y, 12, 12), 3, 4) for _ in range(3))
    scores = net.node(
        "Add", net.node("MatMul", q, net.node("Transpose", k, perm=[0, 1, 3, 2])), mask
    )
    mixed = net.node(
        "Transpose", net.node("MatMul", net.node("Softmax", scores, axis=-1), v), perm=[0, 2, 1, 3]
    )
    y = _norm(
        net,
        net.node("Add", net.linear(net.node("Reshape", mixed, _sizes(net, 0, 0, 12)), 12, 12), y),
        12,
    )
    first = net.node("Gather", y, net.const(0, np.int64), axis=1)
    return net.model(
        y, net.node("Tanh", net.node("Gemm", first, net.normal(12, 12), net.normal(12), transB=1))
    )


def wavenet() -> ModelProto:
    """Causal convolutions by padding on one side, growing dilation, tanh times sigmoid, skip
    connections."""
    net = Net({"x": ("N", 1, 48)})
    y, skips = net.node("Conv", "x", net.normal(10, 1, 1)), []
    for d in (1, 2, 4, 8):
        both = [
            net.node(
                op,
                net.node(
                    "Conv",
                    y,
                    net.normal(10, 10, 2, scale=0.2),
                    net.normal(10),
                    dilations=[d],
                    pads=[d, 0],
                ),
            )
            for op in ("Tanh", "Sigmoid")
        ]
        gated = net.node("Mul", *both)
        skips.append(net.node("Conv", gated, net.normal(6, 10, 1), net.normal(6)))
        y = net.node(
            "Add", net.node("Conv", gated, net.normal(10, 10, 1, scale=0.3), net.normal(10)), y
        )
    total = net.node("Relu", net.node("Sum", *skips))
    return net.model(
        net.node(
            "Conv",
            net.node("Relu", net.node("Conv", total, net.normal(5, 6, 1))),
            net.normal(3, 5, 1),
        ),
        y,
    )


def recurrent() -> ModelProto:
    """Convolutions over sound, a GRU and an LSTM, a dense head for each step."""
    net = Net({"x": (2, 6, 20)})
    y = net.node(
        "Relu", net.node("Conv", "x", net.normal(9, 6, 5), net.normal(9), strides=[2], pads=[2, 2])
    )
    y = net.node("Transpose", y, perm=[2, 0, 1])
    states = net.several(
        "GRU",
        y,
        net.normal(1, 12, 9, scale=0.3),
        net.normal(1, 12, 4, scale=0.3),
        net.normal(1, 24),
        outputs=2,
        hidden_size=4,
    )
    y = net.node("Squeeze", states[0], _sizes(net, 1))
    states = net.several(
        "LSTM",
        y,
        net.normal(2, 20, 4, scale=0.3),
        net.normal(2, 20, 5, scale=0.3),
        net.normal(2, 40),
        outputs=3,
        hidden_size=5,
        direction="bidirectional",
    )
    joined = net.node(
        "Reshape", net.node("Transpose", states[0], perm=[0, 2, 1, 3]), _sizes(net, 0, 0, -1)
    )
    return net.model(
        net.node(
            "LogSoftmax", net.linear(net.node("Relu", net.linear(joined, 10, 12)), 12, 7), axis=-1
        ),
        states[2],
    )


def recommender() -> ModelProto:
    """Dense features and embedded categories, their pairwise products, and two MLPs of odd
    widths."""
    net = Net({"dense": ("N", 13), "ids": ("N", 3)}, types={"ids": TensorProto.INT64})
    bottom = net.node("Relu", net.linear(net.node("Relu", net.linear("dense", 13, 17)), 17, 6))
    rows = [net.node("Unsqueeze", bottom, _sizes(net, 1))]
    columns = [
        net.node("Slice", "ids", _sizes(net, i), _sizes(net, i + 1), _sizes(net, 1))
        for i in range(3)
    ]
    rows += [net.node("Gather", net.normal(50, 6), column) for column in columns]
    features = net.node("Concat", *rows, axis=1)
    products = net.node(
        "Flatten", net.node("MatMul", features, net.node("Transpose", features, perm=[0, 2, 1]))
    )
    top = net.node(
        "Concat",
        bottom,
        net.node("Gather", products, _sizes(net, 4, 8, 9, 12, 13, 14), axis=1),
        axis=1,
    )
    top = net.node("Relu", net.node("Gemm", top, net.normal(11, 12), net.normal(11), transB=1))
    return net.model(
        net.node("Sigmoid", net.node("Gemm", top, net.normal(1, 11), net.normal(1), transB=1))
    )


def experts() -> ModelProto:
    """One of two experts by If; the branches hold products of their own and read a weight from
    outside."""
    net = Net({"x": (4, 8), "first": ()}, types={"first": TensorProto.BOOL})
    shared = net.normal(8, 8)
    y = net.node("Relu", net.node("MatMul", "x", shared))
    branches = {}
    for name, op in (("then_branch", "Tanh"), ("else_branch", "Sigmoid")):
        nodes = [
            helper.make_node("MatMul", [y, shared], [f"{name}_product"]),
            helper.make_node(op, [f"{name}_product"], [f"{name}_y"]),
        ]
        output = helper.make_tensor_value_info(f"{name}_y", TensorProto.FLOAT, None)
        branches[name] = helper.make_graph(nodes, name, [], [output])
    chosen = net.node("If", "first", **branches)
    return net.model(net.node("Add", net.linear(chosen, 8, 8), y))


def decoder_loop() -> ModelProto:
    """A Loop whose body reads a fused product from outside and carries a state."""
    net = Net({"x": (2, 6)})
    y = net.node("Tanh", net.linear("x", 6, 6))
    values = {
        name: helper.make_tensor_value_info(name, kind, shape)
        for name, kind, shape in (
            ("i", TensorProto.INT64, []),
            ("go", TensorProto.BOOL, []),
            ("still", TensorProto.BOOL, []),
            ("old", TensorProto.FLOAT, [2, 6]),
            ("new", TensorProto.FLOAT, [2, 6]),
            ("seen", TensorProto.FLOAT, [2, 6]),
        )
    }
    nodes = [
        helper.make_node(op, reads, [written])
        for op, reads, written in (
            ("Identity", ["go"], "still"),
            ("Add", ["old", y], "new"),
            ("Relu", ["new"], "seen"),
        )
    ]
    body = helper.make_graph(
        nodes,
        "body",
        [values["i"], values["go"], values["old"]],
        [values["still"], values["new"], values["seen"]],
    )
    last, steps = net.several("Loop", net.const(3, np.int64), "", y, outputs=2, body=body)
    return net.model(net.node("Relu", net.linear(last, 6, 5)), steps)
