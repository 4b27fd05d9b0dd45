"""How much of a model's work fused nodes do."""
from __future__ import annotations

import math
from collections.abc import Iterable

import onnx_graphsurgeon as gs
from onnx import ModelProto

from onnxbolt.graph.importer import import_model
from onnxbolt.graph.order import in_order
from onnxbolt.graph.shapes import infer


def coverage(original: ModelProto, fused_sources: Iterable[str]) -> float:
    """The share of the FLOPs of Conv, Gemm and constant-weight MatMul that fused nodes took over.

    `fused_sources` are names of source nodes, as in the attribute `source_nodes`. Symbolic dimensions count as 1. A model without
    such nodes is covered: 1.
    """
    graph = import_model(original)
    infer(graph)
    sources, constant = set(fused_sources), _constant_names(graph)
    work = [(_flops(node), sources.issuperset(node.provenance)) for node in graph.nodes if _counts(node, constant)]
    total = sum(flops for flops, _ in work)
    return sum(flops for flops, fused in work if fused) / total if total else 1.0


def _constant_names(graph: gs.Graph) -> set[str]:
    """Initializers, and what is computed from them alone, which canonicalization folds."""
    names = set(graph.constants)
    for node in in_order(graph):
        inputs = [tensor.name for tensor in node.inputs if tensor.name]
        if inputs and names.issuperset(inputs):
            names.update(tensor.name for tensor in node.outputs)
    return names


def _counts(node: gs.Node, constant: set[str]) -> bool:
    if node.domain or node.op not in ("Conv", "Gemm", "MatMul") or node.inputs[0].name in constant:
        return False
    if node.op in ("Conv", "Gemm"):
        return True
    leading = (node.inputs[1].shape or ())[:-2]  # a stack of matrices is no weight
    return node.inputs[1].name in constant and all(dim == 1 for dim in leading)


def _flops(node: gs.Node) -> int:
    """Two per multiply-add: each element of the output takes one row of the weight."""
    output, weight = node.outputs[0].shape, node.inputs[1].shape
    if output is None or weight is None:
        return 0
    depth = weight[1:] if node.op == "Conv" else [weight[-1 if node.attrs.get("transB") else -2 if len(weight) > 1 else -1]]
    return 2 * math.prod(dim for dim in (*output, *depth) if isinstance(dim, int))
