"""Transpose axes as they were before a Reshape divided them, where their parts stay together:

    Reshape(Transpose(Reshape(x)))  =  Reshape(Transpose(x))

SAM's attention (Kirillov et al. 2023) divides the queries of [batch, heads, queries, size] into
rows and columns of the image before it brings them in front of the heads. On fewer axes that is the
transposition with which other exports end an attention.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.graph.edit import add_constant, insert, producer, remove, sole_use, stand_alone
from onnxbolt.graph.names import fresh

Shape = Sequence[int | str | None]


def run(graph: gs.Graph) -> int:
    """Rewrite all such Transposes; returns how many."""
    return sum(
        _rewrite(graph, node)
        for node in list(graph.nodes)
        if node.op == "Transpose" and not node.domain and node.outputs
    )


def _rewrite(graph: gs.Graph, transpose: gs.Node) -> bool:
    before, after = _reshapes(graph, transpose)
    if before is None or after is None:
        return False
    x, y = before.inputs[0], after.outputs[0]
    groups = _groups(x.shape or (), transpose.inputs[0].shape or ())
    order = transpose.attrs.get("perm")
    target = _target(y.shape)
    if groups is None or order is None or target is None:
        return False
    merged = _merged(groups, list(order))
    if merged is None:
        return False
    shape = [x.shape[axis] for axis in merged]
    turned = gs.Variable(fresh(graph, f"{x.name}_transposed"), x.dtype, shape)
    stand_alone(turned)
    insert(graph, "Transpose", [x], [turned], [before, transpose], {"perm": merged}, at=transpose)
    after.inputs = [turned, add_constant(graph, f"{y.name}_shape", np.array(target, np.int64))]
    remove(graph, [before, transpose])
    return True


def _reshapes(graph: gs.Graph, transpose: gs.Node) -> tuple[gs.Node | None, gs.Node | None]:
    """The Reshapes before and behind a Transpose, if nothing else reads what lies between."""
    before, after = producer(transpose.inputs[0]), sole_use(graph, transpose.outputs[0])
    if sole_use(graph, transpose.inputs[0]) is None:
        return None, None
    found = [
        node if node is not None and node.op == "Reshape" and not node.domain else None
        for node in (before, after)
    ]
    return found[0], found[1]


def _groups(whole: Shape, parts: Shape) -> list[list[int]] | None:
    """For each axis of `whole` the consecutive axes of `parts` into which a Reshape divided it;
    None if it did anything else, or nothing."""
    groups, rest = list[list[int]](), list(range(len(parts)))
    for size in whole:
        group = [rest.pop(0)] if rest else []
        while rest and group and _product(parts, group) != size:
            group.append(rest.pop(0))
        if not group or size is None or _product(parts, group) != size:
            return None
        groups.append(group)
    return groups if not rest and len(whole) < len(parts) else None


def _product(shape: Shape, axes: list[int]) -> int | str | None:
    """The size of some axes together; None if it is not known."""
    sizes = [shape[axis] for axis in axes]
    if len(sizes) == 1:
        return sizes[0]
    numbers = [size for size in sizes if isinstance(size, int)]
    return math.prod(numbers) if len(numbers) == len(sizes) else None


def _merged(groups: list[list[int]], order: list[int]) -> list[int] | None:
    """The order of the undivided axes; None if the parts of one do not stay side by side."""
    group_of = {axis: i for i, group in enumerate(groups) for axis in group}
    merged = [i for i, _ in itertools.groupby(group_of[axis] for axis in order)]
    kept = [axis for i in merged for axis in groups[i]]
    return merged if len(merged) == len(groups) and kept == order else None


def _target(shape: Shape | None) -> list[int] | None:
    """The Reshape's shape with -1 for one unknown size; None if there are more."""
    if shape is None or sum(not isinstance(size, int) for size in shape) > 1 or 0 in shape:
        return None
    return [size if isinstance(size, int) else -1 for size in shape]
