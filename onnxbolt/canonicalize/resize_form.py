"""Gives a Resize whose sizes are computed from the image's own shape constant scales instead, and
one of the last axes sizes or scales of all axes.

Resize(x [N, C, H, W], sizes = [N, C, P, Q])  =  Resize(x, scales = [1, 1, P / H, Q / W]):  ONNX
Runtime divides the sizes in fp32 to get the scales (ONNX, Resize). H, W, P and Q must be known; N
need not be, which is why exporters compute the sizes at run time. The nodes that computed them are
then no longer needed. A Resize whose scale would be rounded to another size stays as it is.

    Resize(x, sizes = s, axes = [2, 3])   =  Resize(x, sizes = Concat(Shape(x)[:2], s))
    Resize(x, scales = s, axes = [2, 3])  =  Resize(x, scales = [1, 1, *s])
"""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.graph.edit import add_constant, constant_values, insert, optional, producer
from onnxbolt.graph.names import fresh

_MOST_STEPS = 8  # between an image and the sizes that begin with its own


def run(graph: gs.Graph) -> int:
    """Complete those of some axes, and replace computed sizes by constant scales; returns how many
    nodes changed."""
    nodes = [node for node in graph.nodes if node.op == "Resize" and not node.domain]
    return sum(_to_all_axes(graph, node) or _to_scales(graph, node) for node in nodes)


def _to_all_axes(graph: gs.Graph, node: gs.Node) -> bool:
    """Complete the sizes or scales of a Resize of the last axes."""
    x, axes = node.inputs[0], node.attrs.get("axes")
    if axes is None or x.shape is None or not _is_plain(node, axes):
        return False
    rank, count = len(x.shape), len(x.shape) - len(axes)
    if [axis % rank for axis in axes] != list(range(count, rank)):
        return False
    index = 3 if optional(node.inputs, 3) is not None else 2
    given = node.inputs[index]
    values, first = constant_values(given), list(x.shape[:count])
    if index == 2 and values is None:
        return False
    if index == 2:
        ones = np.ones(count, np.float32)
        whole: gs.Tensor = add_constant(graph, given.name, np.concatenate([ones, values]))
    elif values is not None and all(isinstance(size, int) for size in first):
        whole = add_constant(graph, given.name, np.concatenate([first, values]).astype(np.int64))
    else:
        sizes = gs.Variable(fresh(graph, f"{x.name}_sizes"), np.dtype(np.int64), [count])
        whole = gs.Variable(fresh(graph, f"{given.name}_all"), np.dtype(np.int64), [rank])
        insert(graph, "Shape", [x], [sizes], [node], {"end": count}, at=node)
        insert(graph, "Concat", [sizes, given], [whole], [node], {"axis": 0}, at=node)
    node.inputs[index] = whole
    node.attrs = {name: value for name, value in node.attrs.items() if name != "axes"}
    node.origin = None
    return True


def _to_scales(graph: gs.Graph, node: gs.Node) -> bool:
    x, y = node.inputs[0], node.outputs[0]
    if (
        len(node.inputs) < 4
        or constant_values(node.inputs[3]) is not None
        or not _is_plain(node)
        or x.shape is None
        or y.shape is None
    ):
        return False
    if (
        len(x.shape) != 4
        or len(y.shape) != 4
        or not all(isinstance(size, int) and size > 0 for size in (*x.shape[1:], *y.shape[1:]))
    ):
        return False
    if x.shape[1] != y.shape[1] or not _begins_with_batch_of(x, node.inputs[3]):
        return False
    scales = np.array(
        [1, 1, *(out / size for size, out in zip(x.shape[2:], y.shape[2:], strict=True))],
        np.float32,
    )
    # ONNX Runtime's kernels multiply in fp32, ONNX's shape inference in fp64
    for of in (np.float32, np.float64):
        sizes = [int(of(s) * of(size)) for s, size in zip(scales[2:], x.shape[2:], strict=True)]
        if sizes != list(y.shape[2:]):
            return False
    nothing = gs.Variable.empty()
    node.inputs = [x, nothing, add_constant(graph, f"{y.name}_scales", scales)]
    node.origin = None
    return True


def _is_plain(node: gs.Node, axes: list[int] | None = None) -> bool:
    """True if the sizes are those of `axes`, or of all axes, and of the whole image."""
    return (
        node.attrs.get("axes") == axes
        and node.attrs.get("keep_aspect_ratio_policy", "stretch") == "stretch"
        and node.attrs.get("coordinate_transformation_mode") != "tf_crop_and_resize"
    )


def _begins_with_batch_of(x: gs.Tensor, sizes: gs.Tensor) -> bool:
    """True if the first of `sizes` is read from the shape of x, or from that of a tensor with as
    many images."""
    for _ in range(_MOST_STEPS):
        node = producer(sizes)
        if node is None or node.domain:
            return False
        if node.op == "Shape":
            shape = node.inputs[0].shape
            return (
                not node.attrs.get("start", 0)
                and bool(shape)
                and x.shape[0] is not None
                and shape[0] == x.shape[0]
            )
        if not _keeps_first(node):
            return False
        sizes = node.inputs[0]
    return False


def _keeps_first(node: gs.Node) -> bool:
    """True if the node's first output element is its first input element."""
    if node.op in ("Cast", "Concat", "Unsqueeze", "Squeeze"):
        return True
    first = constant_values(node.inputs[1]) if node.op in ("Slice", "Gather") else None
    return first is not None and first.reshape(-1)[:1].tolist() == [0]
