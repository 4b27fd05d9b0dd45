"""Source nodes that stay: no fused node replaces them, and they read and write tensors as ONNX has
them.

`graph.skipped` has their names as `provenance` holds them. Canonicalization and precision change
these nodes as any others.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import onnx_graphsurgeon as gs

SKIPPED = "it stays, as --skip-node, --skip-rule or --only-rule asks"


def nodes_by_name(graph: gs.Graph) -> dict[str, str]:
    """The names by which the nodes of an imported graph can be asked for, their own and those of
    the tensors that they compute, each with the node's name as `provenance` holds it."""
    made = {
        tensor.name: node.provenance[0]
        for node in graph.nodes
        for tensor in node.outputs
        if tensor.name
    }
    return made | {node.provenance[0]: node.provenance[0] for node in graph.nodes}


def skip(graph: gs.Graph, known: Mapping[str, str], names: Collection[str]) -> None:
    """Let those nodes of the graph stay that `names` ask for; `known` are those of
    `nodes_by_name`."""
    graph.skipped = frozenset(known[name] for name in names if name in known)


def is_skipped(graph: gs.Graph, *nodes: gs.Node) -> bool:
    """True if one of the nodes comes from a source node that stays."""
    return any(not graph.skipped.isdisjoint(node.provenance) for node in nodes)
