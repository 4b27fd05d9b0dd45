"""Simplifies Reshapes around products with constant weights.

1. Reshape(x [.., K] -> [M, K]), MatMul by [K, N], row-wise steps, Reshape([M, N] -> [.., N])  =
   MatMul and the steps on x itself:
   a product over the last axis does not care how the rows are arranged.
2. Reshape(x [B, ..] -> [B, K]) before a MatMul  =  Flatten(x, axis=1): one form, whose batch need
   not be known.
3. Reshape by a computed shape that is known but for one dimension  =  Reshape by a constant with -1
   there; a dimension that is the same symbol as x's in the same place becomes 0. The nodes that
   computed the shape are no longer needed.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.domains import INTERNAL
from onnxbolt.epilogues import EPILOGUES, steps_of
from onnxbolt.graph.edit import add_constant, add_variable, insert, producer, remove, sole_use

Shape = list[int | str | None]


def run(graph: gs.Graph) -> int:
    """Apply the three rules; returns how often."""
    count = 0
    for node in list(graph.nodes):
        if node.op in ("Reshape", "Flatten") and not node.domain and node.outputs:
            count += (
                _around_product(graph, node)
                or _to_flatten(graph, node)
                or _constant_shape(graph, node)
            )
    return count


def _around_product(graph: gs.Graph, first: gs.Node) -> bool:
    x, steps = first.inputs[0], _steps(graph, first)
    if x.shape is None or not steps:
        return False
    last = steps.pop()
    narrow, wide = first.outputs[0].shape, last.outputs[0].shape
    k, n = steps[0].inputs[1].shape
    if (
        narrow is None
        or wide is None
        or len(narrow) != 2
        or x.shape[-1] != k
        or wide[-1] != n
        or not _same_rows(x.shape[:-1], wide[:-1])
    ):
        return False
    # inner tensors change shape, and so their names; the last one's output is what the second
    # Reshape gave
    steps[0].inputs[0] = x
    for step, after in itertools.pairwise(steps):
        old = step.outputs[0]
        new = add_variable(graph, f"{old.name}_rows", old)
        new.shape = wide
        step.outputs = [new]
        after.inputs[next(i for i, tensor in enumerate(after.inputs) if tensor is old)] = new
    y = last.outputs[0]
    remove(graph, [first, last])
    steps[-1].outputs = [y]
    return True


def _steps(graph: gs.Graph, first: gs.Node) -> list[gs.Node]:
    """The MatMul, row-wise nodes and the closing Reshape, each the only reader of the previous one;
    empty if there is no such sequence."""
    steps: list[gs.Node] = []
    tensor = first.outputs[0]
    while (node := sole_use(graph, tensor)) is not None:
        if not steps and not _is_product(node, tensor):
            return []
        steps.append(node)
        if node.op == "Reshape" and not node.domain:
            return steps
        if len(steps) > 1 and not _is_rowwise(node, tensor):
            return []
        tensor = node.outputs[0]
    return []


def _is_product(node: gs.Node, tensor: gs.Tensor) -> bool:
    if node.op != "MatMul" or node.domain or node.inputs[0] is not tensor:
        return False
    weight = node.inputs[1]
    return isinstance(weight, gs.Constant) and len(weight.shape) == 2


def _is_rowwise(node: gs.Node, tensor: gs.Tensor) -> bool:
    """True if the node computes each row by itself, so that the rows' arrangement does not matter.
    A normalization does, but the nodes that it may become again name axes."""
    if node.domain == INTERNAL:
        return node.op in EPILOGUES
    others = [t for t in node.inputs if t is not tensor and t.name]
    return (
        not node.domain
        and bool(steps_of(node.op))
        and all(isinstance(t, gs.Constant) and len(t.shape) <= 1 for t in others)
    )


def _same_rows(old: Shape, new: Shape) -> bool:
    """True if both shapes are arrangements of the same number of rows. All dimensions but one must
    be equal; the last one then follows."""
    if len(old) != len(new) or 0 in old or 0 in new:
        return False
    return sum(not (isinstance(a, int) and a == b) for a, b in zip(old, new, strict=True)) <= 1


def _to_flatten(graph: gs.Graph, node: gs.Node) -> bool:
    x, y = node.inputs[0], node.outputs[0]
    if (
        node.op == "Flatten"
        or x.shape is None
        or y.shape is None
        or len(y.shape) != 2
        or len(x.shape) < 2
    ):
        return False
    rest = x.shape[1:]
    if not all(isinstance(d, int) and d > 0 for d in rest) or y.shape[1] != math.prod(rest):
        return False
    if not any(_is_product(reader, y) for reader in y.outputs):
        return False
    node.outputs.clear()
    insert(graph, "Flatten", [x], [y], [node], {"axis": 1}, at=node)
    remove(graph, [node])
    return True


def _constant_shape(graph: gs.Graph, node: gs.Node) -> bool:
    if node.op != "Reshape" or producer(node.inputs[1]) is None:
        return False
    old, new = node.inputs[0].shape, node.outputs[0].shape
    if new is None or not new:
        return False
    target = [_copied(old, i, d) for i, d in enumerate(new)]
    if any(isinstance(d, int) and d == 0 for d in new) or target.count(-1) > 1:
        return False
    shape = add_constant(graph, f"{node.outputs[0].name}_shape", np.array(target, np.int64))
    y = node.outputs[0]
    node.outputs.clear()
    insert(graph, "Reshape", [node.inputs[0], shape], [y], [node], at=node)
    remove(graph, [node])
    return True


def _copied(old: Shape | None, index: int, dimension: int | str | None) -> int:
    """A known dimension; 0 for the dimension of x in the same place; -1 for one that has to be
    computed."""
    if isinstance(dimension, int):
        return dimension
    same = (
        old is not None and index < len(old) and dimension is not None and old[index] == dimension
    )
    return 0 if same else -1
