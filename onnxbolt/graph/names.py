"""New tensor and node names in a graph."""

from __future__ import annotations

import onnx_graphsurgeon as gs


def fresh(graph: gs.Graph, base: str) -> str:
    """`base`, or `base__2`, `base__3`, .. if that is taken; the graph remembers the names it has
    given out."""
    taken: set[str] | None = getattr(graph, "taken_names", None)
    if taken is None:
        taken = (
            set(graph.tensors(check_duplicates=False))
            | {node.name for node in graph.nodes}
            | set(getattr(graph, "captured", ()))
        )
        graph.taken_names = taken
    name, count = base, 1
    while name in taken:
        count += 1
        name = f"{base}__{count}"
    taken.add(name)
    return name
