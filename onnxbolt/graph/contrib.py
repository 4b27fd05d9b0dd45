"""Stand-ins for ONNX Runtime's own operators (domain com.microsoft) in shape inference, which does
not know that domain.

Each operator is replaced by nodes of standard operators whose outputs have the same types and
shapes. Signatures: ONNX Runtime, docs/ContribOperators.md. An operator or a form of it that is not
listed here ends inference, as any unknown operator does.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_graphsurgeon as gs
from onnx import NodeProto, TensorProto, helper, numpy_helper

from onnxbolt import domains

DOMAIN = domains.CONTRIB


def stand_ins(node: gs.Node) -> list[NodeProto]:
    """Standard nodes with the types and shapes of `node`'s outputs; none if its operator is not
    known."""
    rules = _RULES if node.domain == DOMAIN else {} if node.domain else _IN_ONNX
    rule = rules.get(node.op)
    return rule(node) if rule else []


def _like(index: int, *outputs: int) -> Callable[[gs.Node], list[NodeProto]]:
    """A rule for operators whose outputs (those at positions `outputs`) have the type and shape of
    input `index`."""

    def rule(node: gs.Node) -> list[NodeProto]:
        x = node.inputs[index].name
        return [
            helper.make_node("Identity", [x], [node.outputs[i].name])
            for i in outputs
            if _has(node.outputs, i)
        ]

    return rule


def attention(node: gs.Node) -> list[NodeProto]:
    """Nodes for attention as canonicalization writes it, of q [B, S, Q], k and v in rows [B, T, V]
    or by heads; none for another recognized node. Values by heads, or of fewer heads, are as wide
    as queries."""
    if node.op != "Attention":
        return []
    heads, key_heads = (node.attrs[name] for name in ("q_num_heads", "kv_num_heads"))
    if heads == key_heads and len(node.inputs[2].shape or (0, 0, 0)) == 3:
        return _multi_head(node)
    return _like(0, 0)(node)


def _attention(node: gs.Node) -> list[NodeProto]:
    """x [B, S, C], weights [C, Q + K + V] -> [B, S, V]."""
    columns = node.inputs[1].shape[1] if isinstance(node.inputs[1], gs.Constant) else None
    sizes = node.attrs.get("qkv_hidden_sizes")
    width = int(sizes[2]) if sizes else None if columns is None else int(columns) // 3
    if width is None:
        return []
    part = f"{node.outputs[0].name}/value"
    return [
        *_first(node.inputs[1].name, width, 1, part),
        helper.make_node("MatMul", [node.inputs[0].name, part], [node.outputs[0].name]),
    ]


def _multi_head(node: gs.Node) -> list[NodeProto]:
    """query [B, S, Q], key, value [B, L, V] -> [B, S, V]; keys and values by heads, or packed
    into the query, are not known."""
    if not _has(node.inputs, 2):
        return []
    return [
        helper.make_node(
            "Einsum",
            [node.inputs[0].name, node.inputs[2].name],
            [node.outputs[0].name],
            equation="bsq,blv->bsv",
        )
    ]


def _grouped_query(node: gs.Node) -> list[NodeProto]:
    """query [B, S, Q] -> [B, S, Q], or of queries, keys and values packed; the lengths of present
    keys and values are not known."""
    if _has(node.inputs, 1):
        return _like(0, 0)(node)
    width = (node.inputs[0].shape or [None])[-1]
    heads, key_heads = (int(node.attrs.get(name, 0)) for name in ("num_heads", "kv_num_heads"))
    if not isinstance(width, int) or heads <= 0 or key_heads <= 0:
        return []
    own = width // (heads + 2 * key_heads) * heads
    return _first(node.inputs[0].name, own, -1, node.outputs[0].name)


def _embedding(node: gs.Node) -> list[NodeProto]:
    """ids [B, S], table [V, H] -> [B, S, H]; output 1, the mask's index, has one integer of the
    ids' type per sequence."""
    ids, table = node.inputs[0].name, node.inputs[2].name
    made = [
        helper.make_node("Gather", [table, ids], [node.outputs[i].name], axis=0)
        for i in (0, 2)
        if _has(node.outputs, i)
    ]
    if _has(node.outputs, 1):
        index, first = node.outputs[1].name, f"{node.outputs[1].name}/first"
        zero = numpy_helper.from_array(np.array(0, np.int64))
        made.append(helper.make_node("Constant", [], [first], value=zero))
        made.append(helper.make_node("Gather", [ids, first], [index], axis=1))
    return made


def _fused_matmul(node: gs.Node) -> list[NodeProto]:
    a, b = (
        ("ji" if node.attrs.get("transA") else "ij"),
        ("kj" if node.attrs.get("transB") else "jk"),
    )
    if node.attrs.get("transBatchA") or node.attrs.get("transBatchB"):
        return []
    names, y = [node.inputs[0].name, node.inputs[1].name], [node.outputs[0].name]
    if (a, b) == ("ij", "jk"):
        return [helper.make_node("MatMul", names, y)]
    return [helper.make_node("Einsum", names, y, equation=f"...{a},...{b}->...ik")]


def _half(node: gs.Node) -> list[NodeProto]:
    """x [.., 2 D], bias [2 D] -> [.., D]."""
    bias = node.inputs[1]
    return (
        _first(node.inputs[0].name, int(bias.shape[0]) // 2, -1, node.outputs[0].name)
        if isinstance(bias, gs.Constant)
        else []
    )


def _standard(op: str, *attributes: str) -> Callable[[gs.Node], list[NodeProto]]:
    """The ONNX operator that the node's operator extends, with the attributes that shapes depend
    on."""

    def rule(node: gs.Node) -> list[NodeProto]:
        kept = {name: node.attrs[name] for name in attributes if name in node.attrs}
        return [
            helper.make_node(op, [t.name for t in node.inputs[:3]], [node.outputs[0].name], **kept)
        ]

    return rule


def _first(name: str, count: int, axis: int, into: str) -> list[NodeProto]:
    """The first `count` entries of an axis."""
    bounds = {f"{into}/start": 0, f"{into}/end": count, f"{into}/axis": axis}
    constants = [
        helper.make_node("Constant", [], [bound], value=_int(value))
        for bound, value in bounds.items()
    ]
    return [*constants, helper.make_node("Slice", [name, *bounds], [into])]


def _int(value: int) -> TensorProto:
    return numpy_helper.from_array(np.array([value], np.int64))


def _has(tensors: list[gs.Tensor], index: int) -> bool:
    return index < len(tensors) and bool(tensors[index].name)


# ONNX Runtime has this operator in ONNX's domain
_IN_ONNX = {"SimplifiedLayerNormalization": _like(0, 0)}

_RULES: dict[str, Callable[[gs.Node], list[NodeProto]]] = {
    **dict.fromkeys(
        ("BiasAdd", "BiasGelu", "FastGelu", "Gelu", "GroupNorm", "QuickGelu", "RotaryEmbedding"),
        _like(0, 0),
    ),
    "GroupQueryAttention": _grouped_query,
    **dict.fromkeys(("SkipLayerNormalization", "SkipSimplifiedLayerNormalization"), _like(0, 0, 3)),
    "Attention": _attention,
    "BiasSplitGelu": _half,
    "EmbedLayerNormalization": _embedding,
    "FusedConv": _standard(
        "Conv", "auto_pad", "dilations", "group", "kernel_shape", "pads", "strides"
    ),
    "FusedGemm": _standard("Gemm", "transA", "transB"),
    "FusedMatMul": _fused_matmul,
    "MultiHeadAttention": _multi_head,
    "SkipGroupNorm": _like(0, 0, 1),
}
