"""BERT-base and BERT-large (Devlin et al. 2019) and ViT-B/16 (Dosovitskiy et al. 2021), in the node
forms of PyTorch's exporters."""

from __future__ import annotations

import math

import numpy as np

from models.builder import Builder

_LAYERS, _WIDTH, _HEADS, _INNER = 12, 768, 12, 3072
_HEAD = _WIDTH // _HEADS  # BERT-large's, too
# gain of a residual branch's last layer: the sum over all branches keeps its variance
_BRANCH = 1 / math.sqrt(2 * _LAYERS)


def bert(
    g: Builder,
    sequence: int = 40,
    vocabulary: int = 30522,
    layers: int = _LAYERS,
    width: int = _WIDTH,
) -> None:
    """input_ids, attention_mask [N, S] int64 -> last_hidden_state [N, S, width], pooler_output [N,
    width]."""
    ids, mask = (
        g.input("input_ids", sequence, integer=True),
        g.input("attention_mask", sequence, integer=True),
    )
    bias = _mask_bias(g, mask)
    x = _bert_embeddings(g, ids, sequence, vocabulary, width)
    for layer in range(layers):
        scope = f"encoder.layer.{layer}"
        attended = _bert_attention(g, x, f"{scope}.attention", sequence, bias, width)
        x = g.layer_norm(
            g.node("Add", [attended, x], f"{scope}.attention"),
            f"{scope}.attention.LayerNorm",
            width,
            1e-12,
        )
        inner = g.gelu(
            g.linear(x, f"{scope}.intermediate.dense", width, 4 * width), f"{scope}.intermediate"
        )
        inner = g.linear(inner, f"{scope}.output.dense", 4 * width, width)
        x = g.layer_norm(
            g.node("Add", [inner, x], f"{scope}.output"), f"{scope}.output.LayerNorm", width, 1e-12
        )
    first = g.node("Gather", [x, g.index(0)], "pooler", axis=1)
    pooled = g.node("Tanh", [g.gemm(first, "pooler.dense", width, width)], "pooler")
    g.output("last_hidden_state", x, sequence, width)
    g.output("pooler_output", pooled, width)


def vit_b16(g: Builder) -> None:
    """x[N, 3, 224, 224] -> logits[N, 1000]; pre-norm, class token, fused query-key-value
    projection (timm's form)."""
    patches = 14 * 14
    x = g.conv(g.input("x", 3, 224, 224), "patch_embed.proj", 3, _WIDTH, 16, 16, pad=0)
    x = g.node(
        "Transpose",
        [g.reshape(x, [0, _WIDTH, patches], "patch_embed")],
        "patch_embed",
        perm=[0, 2, 1],
    )
    x = g.node("Concat", [_class_tokens(g, x), x], axis=1)
    x = g.node("Add", [x, g.weight("pos_embed", g.normal((1, patches + 1, _WIDTH), 0.2))])
    for layer in range(_LAYERS):
        scope = f"blocks.{layer}"
        attended = _vit_attention(
            g, g.layer_norm(x, f"{scope}.norm1", _WIDTH, 1e-6), f"{scope}.attn", patches + 1
        )
        x = g.node("Add", [x, attended], scope)
        inner = g.gelu(
            g.linear(
                g.layer_norm(x, f"{scope}.norm2", _WIDTH, 1e-6), f"{scope}.mlp.fc1", _WIDTH, _INNER
            ),
            f"{scope}.mlp",
        )
        x = g.node("Add", [x, g.linear(inner, f"{scope}.mlp.fc2", _INNER, _WIDTH, _BRANCH)], scope)
    x = g.node("Gather", [g.layer_norm(x, "norm", _WIDTH, 1e-6), g.index(0)], "head", axis=1)
    g.output("logits", g.gemm(x, "head", _WIDTH, 1000), 1000)


def _bert_embeddings(g: Builder, ids: str, sequence: int, vocabulary: int, width: int) -> str:
    """Word, position and token-type vectors, normalized; the token type is constantly 0."""
    words = g.node(
        "Gather",
        [g.weight("embeddings.word_embeddings.weight", g.normal((vocabulary, width), 1.0)), ids],
        "embeddings",
    )
    kinds = g.weight("embeddings.token_type_embeddings.weight", g.normal((2, width), 0.3))
    x = g.node("Add", [words, g.node("Gather", [kinds, g.index(0)], "embeddings")], "embeddings")
    positions = g.weight("embeddings.position_embeddings.weight", g.normal((512, width), 0.3))
    rows = g.integers("embeddings.position_ids", list(range(sequence)))
    x = g.node("Add", [x, g.node("Gather", [positions, rows], "embeddings")], "embeddings")
    return g.layer_norm(x, "embeddings.LayerNorm", width, 1e-12)


def _mask_bias(g: Builder, mask: str) -> str:
    """[N, S] of 0 and 1 -> [N, 1, 1, S] of the type's lowest value and 0, added to attention
    scores."""
    # one axis at a time, as mask[:, None, None, :] is exported
    rows = g.node("Unsqueeze", [mask, g.integers("axes", [1])])
    wide = g.cast(g.node("Unsqueeze", [rows, g.integers("axes", [2])]), g.dtype)
    return g.node(
        "Mul", [g.node("Sub", [g.scalar(1.0), wide]), g.scalar(float(np.finfo(g.dtype).min))]
    )


def _bert_attention(g: Builder, x: str, scope: str, sequence: int, bias: str, width: int) -> str:
    """Three projections; keys transposed to [N, heads, head, S]."""
    perms = {"query": [0, 2, 1, 3], "key": [0, 2, 3, 1], "value": [0, 2, 1, 3]}
    split = {
        name: g.node(
            "Transpose",
            [
                g.reshape(
                    g.linear(x, f"{scope}.self.{name}", width, width),
                    [0, sequence, width // _HEAD, _HEAD],
                    scope,
                )
            ],
            scope,
            perm=perm,
        )
        for name, perm in perms.items()
    }
    scores = g.node(
        "Div",
        [g.node("MatMul", [split["query"], split["key"]], scope), g.scalar(math.sqrt(_HEAD))],
        scope,
    )
    weights = g.node("Softmax", [g.node("Add", [scores, bias], scope)], scope, axis=-1)
    return _merge(
        g,
        g.node("MatMul", [weights, split["value"]], scope),
        f"{scope}.output.dense",
        sequence,
        1.0,
        width,
    )


def _vit_attention(g: Builder, x: str, scope: str, sequence: int) -> str:
    """One projection to [3, N, heads, S, head]; queries are scaled before the product."""
    qkv = g.reshape(
        g.linear(x, f"{scope}.qkv", _WIDTH, 3 * _WIDTH), [0, sequence, 3, _HEADS, _HEAD], scope
    )
    qkv = g.node("Transpose", [qkv], scope, perm=[2, 0, 3, 1, 4])
    query, key, value = (g.node("Gather", [qkv, g.index(part)], scope, axis=0) for part in range(3))
    query = g.node("Mul", [query, g.scalar(1 / math.sqrt(_HEAD))], scope)
    scores = g.node("MatMul", [query, g.node("Transpose", [key], scope, perm=[0, 1, 3, 2])], scope)
    context = g.node("MatMul", [g.node("Softmax", [scores], scope, axis=-1), value], scope)
    return _merge(g, context, f"{scope}.proj", sequence, _BRANCH, _WIDTH)


def _merge(g: Builder, context: str, scope: str, sequence: int, gain: float, width: int) -> str:
    """[N, heads, S, head] -> [N, S, width], projected."""
    merged = g.reshape(
        g.node("Transpose", [context], scope, perm=[0, 2, 1, 3]), [0, sequence, width], scope
    )
    return g.linear(merged, scope, width, width, gain)


def _class_tokens(g: Builder, x: str) -> str:
    """The class token for each image of the batch, whose size is read from x at run time."""
    batch = g.node(
        "Slice", [g.node("Shape", [x]), g.integers("starts", [0]), g.integers("ends", [1])]
    )
    shape = g.node("Concat", [batch, g.integers("shape", [1, _WIDTH])], axis=0)
    return g.node("Expand", [g.weight("cls_token", g.normal((1, 1, _WIDTH), 0.2)), shape])
