"""Normalizations of each pixel's channels, written as normalizations of rows between Transposes:

    norm(x, axis=1)  =  T'(norm(T(x), axis=-1)),   T to NHWC and T' back

The models SAM, ConvNeXt and NAFNet have such a LayerNorm2d: d = x - mean(x, 1), y = d /
sqrt(mean(d * d, 1) + epsilon) * gamma + beta, with gamma and beta [C, 1, 1]. The Transposes vanish
where images are stored as NHWC. norm_form.py recognizes the ways to write a normalization.
"""

from __future__ import annotations

import onnx_graphsurgeon as gs

from onnxbolt.canonicalize import norm_form
from onnxbolt.forms import FIRST_TO_LAST, LAST_TO_FIRST
from onnxbolt.graph.edit import Node, insert, remove, stand_in
from onnxbolt.graph.names import fresh

_CHANNELS = 1  # the axis


def run(graph: gs.Graph) -> int:
    """Rewrite all; returns how many."""
    count = 0
    for node in list(graph.nodes):
        region = None
        if node.op in ("Div", "Mul") and node.outputs:
            region = norm_form.recognized(graph, node, _CHANNELS)
        if region is not None and len(region.x.shape) in FIRST_TO_LAST:
            _rewrite(graph, region)
            count += 1
    return count


def _rewrite(graph: gs.Graph, region: norm_form.Region) -> None:
    """Put a normalization of rows between two Transposes in the place of the region."""
    x, y, root = region.x, region.result, region.result.inputs[0]
    rank = len(x.shape)
    shape = [x.shape[axis] for axis in FIRST_TO_LAST[rank]]
    rows, normalized = (
        gs.Variable(fresh(graph, f"{y.name}_{word}"), x.dtype, shape) for word in ("rows", "norm")
    )
    stand_in(normalized, y, channels_last=True)
    provenance = tuple(name for node in region.nodes for name in node.provenance)
    name, attrs = fresh(graph, f"{root.name or y.name}/norm"), {"epsilon": region.epsilon}
    norm = Node(region.op, name, attrs, [], [], "", provenance)
    factors = [norm_form.vector(graph, factor) for factor in region.factors]
    insert(graph, "Transpose", [x], [rows], [root], {"perm": list(FIRST_TO_LAST[rank])}, at=root)
    at = next(i for i, node in enumerate(graph.nodes) if node is root)
    graph.nodes[at:at] = norm_form.written(graph, norm, [rows, *factors], normalized)
    perm = {"perm": list(LAST_TO_FIRST[rank])}
    back = insert(graph, "Transpose", [normalized], [], [root], perm, at=root)
    remove(graph, region.nodes)
    back.outputs = [y]
