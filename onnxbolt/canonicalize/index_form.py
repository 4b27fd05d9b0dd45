"""Write a GatherND of neighbouring entries of the first axis as a Slice:

    GatherND(x, [[i], [i + 1], .. [j]])  =  Slice(x, i, j + 1, axis 0)

Exporters write x[:, :, [-2]] with Transposes around such a node: the keys and values of Falcon
(Almazrouei et al. 2023), which lie behind the queries of one product. Attention reads slices by
strides.
"""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.graph.edit import add_constant, constant_values, insert, remove


def run(graph: gs.Graph) -> int:
    """Rewrite all such nodes; returns how many."""
    found = [(node, bounds) for node in graph.nodes if (bounds := _bounds(node)) is not None]
    for node, (begin, end) in found:
        x, y = node.inputs[0], node.outputs[0]
        numbers = {"start": begin, "end": end, "axis": 0}
        at = [
            add_constant(graph, f"{y.name}_{name}", np.array([number], np.int64))
            for name, number in numbers.items()
        ]
        node.outputs.clear()
        insert(graph, "Slice", [x, *at], [y], [node], at=node)
        remove(graph, [node])
    return len(found)


def _bounds(node: gs.Node) -> tuple[int, int] | None:
    """The first entry and the one behind the last, if a node gathers neighbouring entries of a
    known axis."""
    if node.op != "GatherND" or node.domain or node.attrs.get("batch_dims", 0):
        return None
    x, indices = node.inputs[0], constant_values(node.inputs[1])
    if indices is None or indices.ndim != 2 or indices.shape[1] != 1 or not indices.size:
        return None
    size = x.shape[0] if x.shape else None
    if not isinstance(size, int):
        return None
    entries = np.where(indices < 0, indices + size, indices).reshape(-1)
    first = int(entries[0])
    whole = bool((entries == np.arange(first, first + len(entries))).all())
    return (first, first + len(entries)) if whole else None
