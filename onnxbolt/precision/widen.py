"""Puts nodes that are left in bf16 after rewriting, and for which ONNX Runtime has no bf16 kernel,
back to fp32 between Casts.

The precision stage converts nodes for which only our own kernels support bf16, before it is known
which of them are worth fusing.
"""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.dtypes import DType
from onnxbolt.graph import promises
from onnxbolt.graph.edit import Node
from onnxbolt.graph.names import fresh
from onnxbolt.graph.promises import stage
from onnxbolt.precision.decide import Kept, domain_of, may_be_low
from onnxbolt.precision.kernel_table import Kernels, kernels_of

REASON = "has no bfloat16 kernel in ONNX Runtime, and fusing it is not faster"


@stage(requires=promises.SOUND, ensures=promises.KEPT)
def widen(graph: gs.Graph, kernels: Kernels | None = None) -> list[Kept]:
    """Put such nodes back to fp32 and return them with the reason. `kernels` are as for
    `precision.convert`."""
    kernels = kernels or kernels_of()
    stranded = [node for node in graph.nodes if _stranded(node, graph.opset, kernels)]
    for node in stranded:
        _wrap(graph, node)
    return [Kept(node.name, node.op, REASON) for node in stranded]


def _is_narrow(tensor: gs.Tensor) -> bool:
    return bool(tensor.name) and DType.of(tensor.dtype) is DType.BF16


def _stranded(node: gs.Node, opset: int, kernels: Kernels) -> bool:
    if domain_of(node) or node.op == "Cast":
        return False
    reads = [i for i, t in enumerate(node.inputs) if _is_narrow(t)]
    writes = [i for i, t in enumerate(node.outputs) if _is_narrow(t)]
    if not reads and not writes:
        return False
    declared = all(_declared(node, i, opset, True) for i in reads) and all(
        _declared(node, i, opset, False) for i in writes
    )
    return not kernels.has(node.op, opset, DType.BF16) or not declared


def _declared(node: gs.Node, index: int, opset: int, inputs: bool) -> bool:
    return may_be_low(node, index, DType.BF16, opset, inputs)


def _wrap(graph: gs.Graph, node: gs.Node) -> None:
    for i, tensor in enumerate(list(node.inputs)):
        if not _is_narrow(tensor):
            continue
        if isinstance(tensor, gs.Constant):
            node.inputs[i] = gs.Constant(
                fresh(graph, f"{tensor.name}_fp32"), tensor.values.astype(np.float32)
            )
        else:
            wide = gs.Variable(
                fresh(graph, f"{tensor.name}_fp32"), np.dtype(np.float32), tensor.shape
            )
            graph.nodes.append(
                Node(
                    "Cast",
                    fresh(graph, f"{wide.name}/Cast"),
                    {"to": DType.F32.onnx},
                    [tensor],
                    [wide],
                )
            )
            node.inputs[i] = wide
    for i, tensor in enumerate(list(node.outputs)):
        if _is_narrow(tensor):
            wide = gs.Variable(
                fresh(graph, f"{tensor.name}_fp32"), np.dtype(np.float32), tensor.shape
            )
            node.outputs[i] = wide
            graph.nodes.append(
                Node(
                    "Cast",
                    fresh(graph, f"{tensor.name}/Cast"),
                    {"to": DType.BF16.onnx},
                    [wide],
                    [tensor],
                )
            )
