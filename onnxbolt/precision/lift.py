"""Moves Casts behind views in front of them, where the node that computes the values may write the
other type itself, but for those in front of QuantizeLinear that a kernel of codes takes."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from onnxbolt import families
from onnxbolt.dtypes import DType
from onnxbolt.graph.edit import producer, sole_use, stand_in
from onnxbolt.graph.names import fresh

VIEWS = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")


def lift_casts(graph: gs.Graph) -> int:
    """Swap each Cast to fp32 with the view before it, if the Cast is the view's only reader, until
    no such Cast is left; returns the number of swaps."""
    count = 0
    for cast in [node for node in graph.nodes if _widens(node) and not _of_codes(graph, node)]:
        while (view := _view_before(graph, cast)) is not None:
            _swap(graph, view, cast)
            count += 1
    return count


def _widens(node: gs.Node) -> bool:
    if node.op != "Cast" or node.domain:
        return False
    return (
        DType.of(node.outputs[0].dtype) is DType.F32 and DType.of(node.inputs[0].dtype) is not None
    )


def _of_codes(graph: gs.Graph, cast: gs.Node) -> bool:
    reader = sole_use(graph, cast.outputs[0])
    return families.makes_codes() and reader is not None and reader.op == "QuantizeLinear"


def _view_before(graph: gs.Graph, cast: gs.Node) -> gs.Node | None:
    view = producer(cast.inputs[0])
    if (
        view is None
        or view.domain
        or view.op not in VIEWS
        or sole_use(graph, cast.inputs[0]) is not cast
    ):
        return None
    return None if producer(view.inputs[0]) is None else view


def _swap(graph: gs.Graph, view: gs.Node, cast: gs.Node) -> None:
    """x -> view -> cast becomes x -> cast -> view; the cast stands where the view stood."""
    x, result = view.inputs[0], cast.outputs[0]
    wide = gs.Variable(fresh(graph, f"{x.name}_{DType.F32.value}"), DType.F32.numpy, x.shape)
    stand_in(wide, x)
    cast.inputs, cast.outputs = [x], [wide]
    view.inputs[0], view.outputs = wide, [result]
    at, behind = (
        next(i for i, node in enumerate(graph.nodes) if node is wanted) for wanted in (view, cast)
    )
    graph.nodes[at], graph.nodes[behind] = cast, view
