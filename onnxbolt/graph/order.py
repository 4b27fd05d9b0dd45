"""The order in which nodes are written."""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

import onnx
import onnx_graphsurgeon as gs

from onnxbolt.graph.scopes import outer_reads, subgraphs

Item: TypeAlias = "gs.Node | gs.Constant"  # a Constant here is written as the Constant node that it was


def in_order(graph: gs.Graph, constant_nodes: Sequence[gs.Constant] = ()) -> list[Item]:
    """The graph's nodes in their own order, save that each comes after what it reads; Constant nodes where the source had them.

    Raises ValueError where there is no such order.
    """
    items = _in_place(graph.nodes, constant_nodes)
    producers = {name: item for item in items for name in _writes(item)}
    ordered: list[Item] = []
    placed: dict[int, bool] = {}  # False while what the item reads is being placed
    for root in items:
        stack = [] if id(root) in placed else [(root, iter(_reads(root)))]
        while stack:
            item, reads = stack[-1]
            placed.setdefault(id(item), False)
            feeder = next((p for name in reads if (p := producers.get(name)) is not None and not placed.get(id(p))), None)
            if feeder is None:
                placed[id(item)] = True
                ordered.append(item)
                stack.pop()
            elif id(feeder) in placed:
                raise ValueError(f"node {feeder.name!r} reads its own output through other nodes: a pass made a cycle")
            else:
                stack.append((feeder, iter(_reads(feeder))))
    return ordered


def _in_place(nodes: Sequence[gs.Node], constants: Sequence[gs.Constant]) -> list[Item]:
    waiting = sorted(constants, key=lambda constant: constant.position, reverse=True)
    items: list[Item] = []
    for node in nodes:
        position = getattr(node, "position", None)
        while position is not None and waiting and waiting[-1].position < position:
            items.append(waiting.pop())
        items.append(node)
    return items + waiting[::-1]


def _writes(item: Item) -> Iterable[str]:
    return (item.name,) if isinstance(item, gs.Constant) else (tensor.name for tensor in item.outputs if tensor.name)


def _reads(item: Item) -> Iterator[str]:
    if isinstance(item, gs.Constant):
        return
    yield from (tensor.name for tensor in item.inputs)
    for value in item.attrs.values():
        if isinstance(value, onnx.AttributeProto):
            for inner in subgraphs(value):
                yield from sorted(outer_reads(inner))
