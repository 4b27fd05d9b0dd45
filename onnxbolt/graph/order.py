"""The order in which nodes are written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias, TypeVar

import onnx
import onnx_graphsurgeon as gs
from onnx import NodeProto

from onnxbolt.graph.scopes import outer_reads, subgraphs

# a Constant among them is written as a Constant node again
Item: TypeAlias = "gs.Node | gs.Constant"
Thing = TypeVar("Thing")


def in_order(graph: gs.Graph, constant_nodes: Sequence[gs.Constant] = ()) -> list[Item]:
    """The graph's nodes in their own order, except that each comes after the nodes it reads from;
    with the Constant nodes of the source.

    Raises ValueError where there is no such order.
    """
    return _ordered(_in_place(graph.nodes, constant_nodes), _writes, _reads)


def protos_in_order(nodes: Sequence[NodeProto]) -> list[NodeProto]:
    """The same for nodes of a file. ONNX Runtime accepts them in any order, onnx's inference does
    not.

    Raises ValueError where there is no such order.
    """
    return _ordered(
        list(nodes), lambda node: [name for name in node.output if name], _reads_of_proto
    )


def _ordered(
    items: Sequence[Thing],
    writes: Callable[[Thing], Iterable[str]],
    reads: Callable[[Thing], Iterator[str]],
) -> list[Thing]:
    producers = {name: place for place, item in enumerate(items) for name in writes(item)}
    ordered: list[Thing] = []
    placed: dict[int, bool] = {}  # by position; False while what the item reads is being placed
    for root in range(len(items)):
        stack = [] if root in placed else [(root, reads(items[root]))]
        while stack:
            place, names = stack[-1]
            placed.setdefault(place, False)
            feeders = (producers[name] for name in names if name in producers)
            feeder = next((feeder for feeder in feeders if not placed.get(feeder)), None)
            if feeder is None:
                placed[place] = True
                ordered.append(items[place])
                stack.pop()
            elif feeder in placed:
                name = next(iter(writes(items[feeder])), "")
                raise ValueError(
                    f"the node that computes {name!r} reads its own output through other nodes:"
                    " there is a cycle"
                )
            else:
                stack.append((feeder, reads(items[feeder])))
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
    return (
        (item.name,)
        if isinstance(item, gs.Constant)
        else (tensor.name for tensor in item.outputs if tensor.name)
    )


def _reads(item: Item) -> Iterator[str]:
    if isinstance(item, gs.Constant):
        return
    yield from (tensor.name for tensor in item.inputs)
    for value in item.attrs.values():
        if isinstance(value, onnx.AttributeProto):
            yield from _captured(value)


def _reads_of_proto(node: NodeProto) -> Iterator[str]:
    yield from node.input
    for attribute in node.attribute:
        yield from _captured(attribute)


def _captured(attribute: onnx.AttributeProto) -> Iterator[str]:
    for inner in subgraphs(attribute):
        yield from sorted(outer_reads(inner))
