"""The nodes of a model before and after, as a report draws them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_graphsurgeon as gs

from onnxbolt.graph.order import in_order
from onnxbolt.graph.shapes import Shape

ShapeOf = Callable[[gs.Tensor], Sequence[int | str | None]]


@dataclass(frozen=True)
class Block:
    """One node. Constants, and nodes that read only constants, are no blocks."""

    name: str  # or, without one, that of its first output
    op: str
    domain: str
    inputs: tuple[int, ...]  # the blocks that it reads, by their places among all blocks
    shape: Shape  # the first output's; a str is a symbolic dimension
    element: str  # the element type of its first output, such as "float16"
    # microseconds in ONNX Runtime, predicted, for each architecture; empty for a fused node, whose
    # times are with it, and for nodes of the original
    us: tuple[float, ...] = ()
    # nodes of the original that it is or that it comes from; empty for fused nodes, whose source
    # nodes are with them, and for nodes of the original
    sources: tuple[str, ...] = ()
    body: str = ""  # the body of control flow that it is in; empty for the main graph


@dataclass(frozen=True)
class Drawing:
    """The blocks of a model, each behind those that it reads, those of bodies behind the main
    graph; and the bytes of its files, 0 for a model in memory."""

    blocks: tuple[Block, ...]
    bytes: int = 0


def drawing(parts: Sequence[Sequence[Block]]) -> Drawing:
    """The blocks of all graphs of a model as one list."""
    blocks: list[Block] = []
    for part in parts:
        first = len(blocks)
        blocks += (
            Block(**{**vars(block), "inputs": tuple(first + place for place in block.inputs)})
            for block in part
        )
    return Drawing(tuple(blocks))


def blocks_of(
    graph: gs.Graph,
    shape_of: ShapeOf,
    us: Callable[[gs.Node], tuple[float, ...]] = lambda node: (),
    sources: Callable[[gs.Node], tuple[str, ...]] = lambda node: (),
    body: str = "",
) -> list[Block]:
    """The nodes of one graph in topological order; `us` gives the times of a node, and `sources`
    its source nodes."""
    return list(_blocks(graph, shape_of, us, sources, body))


def _blocks(
    graph: gs.Graph,
    shape_of: ShapeOf,
    us: Callable[[gs.Node], tuple[float, ...]],
    sources: Callable[[gs.Node], tuple[str, ...]],
    body: str,
) -> Iterator[Block]:
    makers: dict[str, int] = {}
    constant: set[str] = set()
    place = 0
    for node in in_order(graph):
        reads = [tensor for tensor in node.inputs if tensor.name]
        if reads and all(isinstance(t, gs.Constant) or t.name in constant for t in reads):
            constant.update(tensor.name for tensor in node.outputs)
            continue
        output = node.outputs[0] if node.outputs else None
        yield Block(
            node.name or (output.name if output is not None else ""),
            node.op,
            node.domain or "",
            tuple(dict.fromkeys(makers[t.name] for t in reads if t.name in makers)),
            [] if output is None else list(shape_of(output)),
            _element(output),
            us(node),
            sources(node),
            body,
        )
        makers.update((tensor.name, place) for tensor in node.outputs if tensor.name)
        place += 1


def _element(tensor: gs.Tensor | None) -> str:
    """The name of a tensor's element type; empty where it is not known."""
    if tensor is None or tensor.dtype is None:
        return ""
    if isinstance(tensor.dtype, int):  # a type that numpy lacks
        return str(onnx.TensorProto.DataType.Name(tensor.dtype)).lower()
    return str(np.dtype(tensor.dtype).name)
