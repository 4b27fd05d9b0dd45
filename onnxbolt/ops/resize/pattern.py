"""Which Resizes of ONNX a kernel computes, and what they say of height and width."""

from __future__ import annotations

from collections.abc import Callable

import onnx_graphsurgeon as gs

from onnxbolt.graph.edit import constant_integers, optional, producer
from onnxbolt.sampling import Sampling, resampled


def sampling_of(node: gs.Node) -> Sampling | None:
    """How a kernel resizes as the node does, None where it does not."""
    found = resampled(node.attrs)
    by = (
        "scales"
        if scales_of(node)
        else "sizes"
        if sizes_of(node)
        else "given"
        if given_sizes(node) is not None
        else None
    )
    return Sampling(*found, by) if found and by else None


def given_sizes(node: gs.Node) -> gs.Tensor | None:
    """The input that has the sizes at run time, if channels are known to stay. The library checks
    that images stay, too."""
    x, y, sizes = node.inputs[0].shape, node.outputs[0].shape, optional(node.inputs, 3)
    if sizes is None or isinstance(sizes, gs.Constant) or y is None or len(y) != 4:
        return None
    return sizes if isinstance(x[1], int) and x[1] == y[1] else None


def like(node: gs.Node, written: Callable[[gs.Tensor], gs.Tensor | None]) -> gs.Tensor | None:
    """The stored image (`written` of a tensor) that has height and width of the node's result: one
    that is read by those who read the result, or by the nodes that compute such a one."""
    x, y = node.inputs[0], node.outputs[0]
    beside = [t for reader in y.outputs for t in reader.inputs if t is not y]
    producers = filter(None, map(producer, beside))
    before = [tensor for node in producers for tensor in node.inputs]
    able = (t for t in (*beside, *before) if _has_sizes(t, y) and t.dtype == x.dtype)
    return next((image for t in able if (image := written(t)) is not None), None)


def _has_sizes(tensor: gs.Tensor, y: gs.Tensor) -> bool:
    """True if a tensor is known to have height and width of `y` whatever the model's inputs are."""
    shape, wanted = tensor.shape, y.shape[2:]
    known = isinstance(tensor, gs.Variable) and shape is not None and len(shape) == 4
    return known and None not in wanted and list(shape[2:]) == list(wanted)


def scales_of(node: gs.Node) -> list[float] | None:
    """The factors of height and width, if images and channels stay."""
    scales = constant_integers(node, 2) or []
    return (
        [float(scale) for scale in scales[2:]]
        if len(scales) == 4 and scales[:2] == [1, 1]
        else None
    )


def sizes_of(node: gs.Node) -> list[int] | None:
    """As inference has found them, from constants or not, where images and channels are known to
    stay."""
    x, y = node.inputs[0].shape, node.outputs[0].shape
    if len(node.inputs) < 4 or y is None or None in y[:2] or list(y[:2]) != list(x[:2]):
        return None
    return list(y[2:]) if all(isinstance(size, int) for size in y[2:]) else None
