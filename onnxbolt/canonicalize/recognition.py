"""Recognized computations: several nodes that are written as one node of the domain
`onnxbolt.internal`, from which `restore` makes them again if no kernel takes them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs

from onnxbolt.domains import INTERNAL
from onnxbolt.graph.edit import Node, remove
from onnxbolt.graph.exporter import node_proto


@dataclass(frozen=True)
class Recognition:
    """The data that `restore` needs besides the replaced nodes: names and types of x and y at
    recognition, the constants that the nodes read, and the tensors between the nodes that differ
    from x in type or shape."""

    x: str
    y: str
    dtype: np.dtype
    constants: dict[str, gs.Constant]
    inner: dict[str, gs.Tensor]


def replace(
    graph: gs.Graph,
    root: gs.Node,
    op: str,
    inputs: Sequence[gs.Tensor],
    nodes: Collection[gs.Node],
    attrs: Mapping[str, Any] | None = None,
) -> None:
    """Put one node `op` of `inputs`, x and constants, in the place of `root` and of the other
    `nodes`, which compute the output of `root` from x."""
    x, y = inputs[0], root.outputs[0]
    covered = set(nodes)
    ordered = [node for node in graph.nodes if node in covered]
    at = next(i for i, node in enumerate(graph.nodes) if node is root)
    expansion: list[onnx.NodeProto] = []
    constants: dict[str, gs.Constant] = {}
    for node in ordered:
        constants.update({t.name: t for t in node.inputs if isinstance(t, gs.Constant)})
        if node.domain == INTERNAL:
            constants.update(node.recognition.constants)
        expansion += node.expansion if node.domain == INTERNAL else [_copy(node)]
    provenance = tuple(name for node in ordered for name in node.provenance)
    made = Node(op, root.name or y.name, attrs, inputs, [], INTERNAL, provenance)
    made.expansion, made.position = tuple(expansion), getattr(root, "position", None)
    inner = {
        t.name: gs.Variable(t.name, t.dtype, t.shape)
        for node in ordered
        for t in node.outputs
        if t is not y and (t.dtype != x.dtype or t.shape != x.shape)
    }
    made.recognition = Recognition(x.name, y.name, x.dtype, constants, inner)
    graph.nodes.insert(at, made)
    remove(graph, ordered)
    made.outputs = [y]


def _copy(node: gs.Node) -> onnx.NodeProto:
    copy = onnx.NodeProto()
    copy.CopyFrom(node_proto(node))
    return copy
