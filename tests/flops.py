"""FLOPs of a model's Conv, Gemm and constant-weight MatMul, by node name: what can be fused, for
measuring coverage."""

from __future__ import annotations

import math

import numpy as np
import onnxruntime
from onnx import ModelProto, NodeProto, ValueInfoProto


def fusable_flops(model: ModelProto, feeds: dict[str, np.ndarray]) -> dict[str, int]:
    """Two per multiply-add, of every node that counts; the shapes are those of a run with
    `feeds`."""
    constants = constant_names(model)
    nodes = [node for node in model.graph.node if _counts(node, constants)]
    weights = {t.name: list(t.dims) for t in model.graph.initializer}
    weights |= {
        n.output[0]: list(a.t.dims)
        for n in model.graph.node
        if n.op_type == "Constant"
        for a in n.attribute
        if a.HasField("t")
    }
    outputs = run_outputs(model, [node.output[0] for node in nodes], feeds)
    return {
        node.name: _flops(node, list(y.shape), weights[node.input[1]])
        for node, y in zip(nodes, outputs, strict=True)
    }


def run_outputs(
    model: ModelProto, names: list[str], feeds: dict[str, np.ndarray]
) -> list[np.ndarray]:
    """Values of inner tensors of a model, by ONNX Runtime on the CPU."""
    own = len(model.graph.output)
    model.graph.output.extend(
        ValueInfoProto(name=name)
        for name in names
        if name not in {v.name for v in model.graph.output}
    )
    try:
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), providers=["CPUExecutionProvider"]
        )
    finally:
        del model.graph.output[own:]
    return list(session.run(names, feeds))


def constant_names(model: ModelProto) -> set[str]:
    """Initializers, and whatever is computed from them alone."""
    names = {tensor.name for tensor in model.graph.initializer}
    for node in model.graph.node:  # in topological order
        if all(name in names for name in node.input if name):
            names.update(node.output)
    return names


def _counts(node: NodeProto, constants: set[str]) -> bool:
    if node.op_type == "Conv":
        return True
    return (
        node.op_type in ("Gemm", "MatMul")
        and node.input[1] in constants
        and node.input[0] not in constants
    )


def _flops(node: NodeProto, output: list[int], weight: list[int]) -> int:
    if node.op_type == "Conv":  # [K, C, R, S]
        return 2 * math.prod(output) * math.prod(weight[1:])
    transposed = any(attribute.name == "transB" and attribute.i for attribute in node.attribute)
    return 2 * math.prod(output) * (weight[-1] if transposed else weight[-2])
