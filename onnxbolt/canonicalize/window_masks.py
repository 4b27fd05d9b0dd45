"""Adds the mask of windows of images to attention's scores as they are (Swin, eager):

    Reshape(Reshape(s + bias) + mask)  =  s + (bias + Reshape(Expand(mask)))

The inner Reshape splits images x windows, the first axis of s [images x windows, heads, S, T], and
the outer one joins it. The mask is a constant [1, windows, 1 or heads, S, T]. Scores then have one
mask, which nodes make of constants alone (ops/attention/periodic.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.graph.edit import add_constant, add_variable, insert, producer, remove, sole_use
from onnxbolt.graph.names import fresh


def run(graph: gs.Graph) -> int:
    """Apply the rule; returns how often."""
    return sum(_applied(graph, node) for node in list(graph.nodes))


def _applied(graph: gs.Graph, joining: gs.Node) -> bool:
    """True if the rule applied to the Reshape that joins images and windows."""
    added = _before(graph, joining, "Reshape")
    if added is None or added.op != "Add" or added.domain:
        return False
    masks = [t for t in added.inputs if isinstance(t, gs.Constant)]
    others = [t for t in added.inputs if not isinstance(t, gs.Constant)]
    splitting = producer(others[0]) if len(masks) == len(others) == 1 else None
    if splitting is None or splitting.op != "Reshape" or splitting.domain:
        return False
    scores, y = splitting.inputs[0], joining.outputs[0]
    if sole_use(graph, others[0]) is not added or not _fits(masks[0], others[0], scores, y):
        return False
    images = _images(graph, others[0].shape[0], joining)
    if images is None:
        return False
    mask = _expanded(graph, masks[0], images, others[0], y, joining)
    sources, bias = [splitting, added, joining], _bias(graph, scores)
    if bias is not None:
        both = add_variable(graph, f"{y.name}_mask", y)
        insert(graph, "Add", [bias.values, mask], [both], [bias.node], at=joining)
        sources, scores, mask = [bias.node, *sources], bias.scores, both
    joining.outputs.clear()
    insert(graph, "Add", [scores, mask], [y], sources, at=joining)
    remove(graph, sources)
    return True


def _before(graph: gs.Graph, node: gs.Node, op: str) -> gs.Node | None:
    """The node that computes the first input of `node`, an `op`, for it alone."""
    if node.op != op or node.domain or not node.inputs:
        return None
    x: gs.Tensor = node.inputs[0]
    return producer(x) if sole_use(graph, x) is not None else None


def _fits(mask: gs.Constant, split: gs.Tensor, scores: gs.Tensor, y: gs.Tensor) -> bool:
    """True if the Reshapes only split and join the first axis, and the mask has a value for each of
    its windows."""
    shapes = [tensor.shape for tensor in (mask, split, scores, y)]
    if any(shape is None for shape in shapes) or [len(each) for each in shapes] != [5, 5, 4, 4]:
        return False
    rest = list(split.shape[2:])
    same = list(scores.shape[1:]) == list(y.shape[1:]) == rest
    fits = all(size in (1, whole) for size, whole in zip(mask.shape[2:], rest, strict=True))
    return same and fits and list(mask.shape[:2]) == [1, split.shape[1]]


def _images(graph: gs.Graph, count: int | str | None, at: gs.Node) -> gs.Tensor | None:
    """The number of images as a vector; None if no input of the graph has it as its batch."""
    if isinstance(count, int):
        return add_constant(graph, "images", np.array([count]))
    x = next((t for t in graph.inputs if count and t.shape and t.shape[0] == count), None)
    if x is None or graph.opset < _SHAPE_OF_PARTS:
        return None
    images = gs.Variable(fresh(graph, f"{x.name}_images"), np.dtype(np.int64), [1])
    insert(graph, "Shape", [x], [images], (), {"start": 0, "end": 1}, at=at)
    return images


_SHAPE_OF_PARTS = 15  # the opset since which Shape has start and end


def _expanded(
    graph: gs.Graph,
    mask: gs.Constant,
    images: gs.Tensor,
    split: gs.Tensor,
    y: gs.Tensor,
    at: gs.Node,
) -> gs.Variable:
    """The mask for each of images x windows."""
    name, sizes = f"{y.name}_windows", [int(size) for size in mask.shape[1:]]
    shape = gs.Variable(fresh(graph, f"{name}_shape"), np.dtype(np.int64), [5])
    rest = add_constant(graph, f"{name}_sizes", np.array(sizes))
    insert(graph, "Concat", [images, rest], [shape], (), {"axis": 0}, at=at)
    expanded = gs.Variable(fresh(graph, name), mask.dtype, [split.shape[0], *sizes])
    insert(graph, "Expand", [mask, shape], [expanded], (), at=at)
    joined = gs.Variable(fresh(graph, name), mask.dtype, [y.shape[0], *sizes[1:]])
    target = add_constant(graph, f"{name}_joined", np.array([-1, *sizes[1:]]))
    insert(graph, "Reshape", [expanded, target], [joined], (), at=at)
    return joined


@dataclass(frozen=True, eq=False)
class _Bias:
    """A node that adds a constant to scores."""

    node: gs.Node
    scores: gs.Tensor
    values: gs.Constant


def _bias(graph: gs.Graph, biased: gs.Tensor) -> _Bias | None:
    """The node that computes biased scores for one reader."""
    node = producer(biased)
    if node is None or node.op != "Add" or node.domain or sole_use(graph, biased) is None:
        return None
    constants = [t for t in node.inputs if isinstance(t, gs.Constant)]
    others = [t for t in node.inputs if not isinstance(t, gs.Constant)]
    if len(constants) != 1 or len(others) != 1 or others[0].shape != biased.shape:
        return None
    return _Bias(node, others[0], constants[0])
