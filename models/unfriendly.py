"""Models that are unfriendly to GPUs on purpose, each in one way that `onnxbolt explain` names.

They are no models of anyone: small stacks of the layers in question, as PyTorch's exporters write
them, with seeded weights in fp16.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import onnx

from models.builder import Builder

_CLASSES = 16


def unfriendly(name: str, batch: int) -> onnx.ModelProto:
    """One of UNFRIENDLY. Raises ValueError for another name."""
    if name not in UNFRIENDLY:
        raise ValueError(f"model {name!r}: choose one of {', '.join(UNFRIENDLY)}")
    g = Builder("batch" if name == "opset_11_reshapes" else batch, "fp16", 0, 13, "fp16")
    UNFRIENDLY[name](g)
    return g.model(name)


def _three_channel_stem(g: Builder, length: int = 4096, width: int = 128) -> None:
    """x[N, 3, 4096], the three axes of an accelerometer: 1-D convolutions."""
    x, c = g.input("x", 3, length), 3
    for layer, (k, stride) in enumerate(((width, 1), (width, 2), (width, 2))):
        weight = g.weight(f"layers.{layer}.weight", g.normal((k, c, 5), math.sqrt(2 / (5 * c))))
        bias = g.weight(f"layers.{layer}.bias", g.normal((k,), 0.1))
        x = g.node("Conv", [x, weight, bias], f"layers.{layer}", pads=[2, 2], strides=[stride])
        x, c = g.relu(x, f"layers.{layer}"), k
    _classified(g, x, c)


def _channels_46(g: Builder, layers: int = 8, width: int = 46, size: int = 56) -> None:
    """x[N, 3, 56, 56]: residual convolutions of two groups of 23 channels."""
    x = g.relu(g.conv(g.input("x", 3, size, size), "stem", 3, width, 3), "stem")
    for layer in range(layers):
        scope = f"layers.{layer}"
        y = g.relu(g.conv(x, scope, width, width, 3, groups=2), scope)
        x = g.node("Add", [x, y], scope) if layer % 2 else y
    _classified(g, x, width)


def _softplus_everywhere(g: Builder, size: int = 224) -> None:
    """x[N, 3, 224, 224]: depthwise and 1x1 convolutions, each with Softplus."""
    c = 32
    x = g.softplus(g.conv(g.input("x", 3, size, size), "stem", 3, c, 3, 2), "stem")
    for layer, k in enumerate((64, 32, 64, 32)):
        for scope, r, n, groups in ((f"{layer}.depth", 3, c, c), (f"{layer}.point", 1, k, 1)):
            x = g.softplus(g.conv(x, scope, c, n, r, groups=groups, gain=1.04), scope)
        c = k
    _classified(g, x, c)


def _heads_of_72(g: Builder, layers: int = 4, tokens: int = 1024, heads: int = 8) -> None:
    """x[N, 1024, 576]: pre-norm transformer layers with heads of 72 elements (a width of 576, as
    some vision models have)."""
    size, width = 72, 72 * heads
    x = g.input("x", tokens, width)
    for layer in range(layers):
        scope = f"blocks.{layer}"
        normal = g.layer_norm(x, f"{scope}.norm1", width, 1e-6)
        x = g.node("Add", [x, _attention(g, normal, scope, tokens, heads, size)], scope)
        normal = g.layer_norm(x, f"{scope}.norm2", width, 1e-6)
        inner = g.relu(g.linear(normal, f"{scope}.fc1", width, 2 * width), scope)
        x = g.node("Add", [x, g.linear(inner, f"{scope}.fc2", 2 * width, width, 0.5)], scope)
    g.output("y", x, tokens, width)


def _attention(g: Builder, x: str, scope: str, tokens: int, heads: int, size: int) -> str:
    width = heads * size
    split = []
    for name, perm in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
        y = g.reshape(g.linear(x, f"{scope}.{name}", width, width), [0, tokens, heads, size], scope)
        split.append(g.node("Transpose", [y], scope, perm=perm))
    scores = g.node("MatMul", split[:2], scope)
    scores = g.node("Mul", [scores, g.scalar(1 / math.sqrt(size))], scope)
    weights = g.node("Softmax", [scores], scope, axis=-1)
    y = g.node("MatMul", [weights, split[2]], scope)
    y = g.node("Transpose", [y], scope, perm=[0, 2, 1, 3])
    return g.linear(g.reshape(y, [0, tokens, width], scope), f"{scope}.proj", width, width, 0.5)


def _opset_11_reshapes(
    g: Builder, layers: int = 2, tokens: int = 256, heads: int = 8, size: int = 64
) -> None:
    """x[N, 256, 512], N symbolic, at opset 11: attention between Reshapes whose targets are read
    from Shape nodes wherever a list of sizes has -1 (PyTorch's form of expand)."""
    g.opset = 11  # before the builder's range; the operators here have the same form in it
    width = heads * size
    x = g.input("x", tokens, width)
    for layer in range(layers):
        scope = f"blocks.{layer}"
        split = []
        for name, perm in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
            y = g.linear(x, f"{scope}.{name}", width, width)
            target = _filled(g, y, [-1, -1, heads, size], scope)
            y = g.node("Reshape", [y, target], scope)
            split.append(g.node("Transpose", [y], scope, perm=perm))
        scores = g.node("Mul", [g.node("MatMul", split[:2], scope), g.scalar(0.125)], scope)
        y = g.node("MatMul", [g.node("Softmax", [scores], scope, axis=3), split[2]], scope)
        y = g.node("Transpose", [y], scope, perm=[0, 2, 1, 3])
        y = g.node("Reshape", [y, _filled(g, x, [-1, -1, width], scope)], scope)
        x = g.node("Add", [x, g.linear(y, f"{scope}.proj", width, width, 0.5)], scope)
    g.output("y", x, tokens, width)


def _filled(g: Builder, x: str, sizes: list[int], scope: str) -> str:
    """`sizes` with those of x in place of -1."""
    shape = g.node("Shape", [x], scope)
    parts = []
    for axis in range(len(sizes)):
        part = g.node("Gather", [shape, g.index(axis)], scope) if axis < 2 else g.index(1)
        parts.append(g.node("Unsqueeze", [part], scope, axes=[0]))
    written = g.integers("sizes", sizes)
    open_ones = g.node("Equal", [written, g.integers("minus_one", [-1])], scope)
    return g.node("Where", [open_ones, g.node("Concat", parts, scope, axis=0), written], scope)


def _classified(g: Builder, x: str, c: int) -> None:
    x = g.node("Flatten", [g.node("GlobalAveragePool", [x], "gap")], axis=1)
    g.output("logits", g.gemm(x, "fc", c, _CLASSES), _CLASSES)


UNFRIENDLY: dict[str, Callable[[Builder], None]] = {
    "three_channel_stem": _three_channel_stem,
    "channels_46": _channels_46,
    "softplus_everywhere": _softplus_everywhere,
    "heads_of_72": _heads_of_72,
    "opset_11_reshapes": _opset_11_reshapes,
}
