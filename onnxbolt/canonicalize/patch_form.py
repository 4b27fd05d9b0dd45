"""Write a patch embedding as a matrix product of patches.

    T(Conv(x, W) + b)  =  P(x) W' + b,   strides of W = its size, no pads

with T from [N, K, Y, X] to [N, Y, X, K] or to tokens [N, Y X, K], P(x) the patches of x as rows of
C R S values, and W' = W as [C R S, K] (Dosovitskiy et al. 2021). Every pixel is in one patch, so
that P(x) is as large as x, and the product is an ordinary one of long rows; as a convolution of
three channels it would read mostly padding. P is Reshape, Transpose, Reshape.

Patches of fewer than 8 pixels in a row (Swin, ConvNeXt) stay convolutions: kernels for a model's
first convolution read their pixels as they lie. So do convolutions of what a layer of the model has
computed, since that is stored with its channels last.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.forms import FIRST_TO_LAST
from onnxbolt.graph.edit import (
    add_constant,
    auto_pad,
    conv_attributes,
    derived,
    insert,
    is_float,
    producer,
    remove,
    sole_use,
)
from onnxbolt.graph.names import fresh

_LEAST = 8  # pixels in a row of a patch: 16 bytes of a 16-bit type
# operators through which an image reaches its patches: conversion and normalization of pixels
_PIXELWISE = ("Cast", "Add", "Sub", "Mul", "Div")


@dataclass(frozen=True, eq=False)
class _Embedding:
    """A convolution of patches and the nodes behind it, up to the one with the channels last."""

    conv: gs.Node
    behind: tuple[gs.Node, ...]

    @property
    def result(self) -> gs.Variable:
        return self.behind[-1].outputs[0]


def run(graph: gs.Graph) -> int:
    """Rewrite all patch embeddings; returns how many."""
    embeddings = [found for node in graph.nodes if (found := _embedding(graph, node)) is not None]
    for embedding in embeddings:
        _rewrite(graph, embedding)
    return len(embeddings)


# --- recognition ----------------------------------------------------------------------------------


def _embedding(graph: gs.Graph, node: gs.Node) -> _Embedding | None:
    if node.op != "Conv" or node.domain or not _is_of_patches(node):
        return None
    behind = _channels_to_last(graph, node)
    return _Embedding(node, behind) if behind else None


def _is_of_patches(conv: gs.Node) -> bool:
    """True if each pixel of an image that the model is given is in one patch."""
    x, weight, *bias = conv.inputs
    if not isinstance(weight, gs.Constant) or not is_float(weight) or len(weight.shape) != 4:
        return False
    if any(tensor.name and not isinstance(tensor, gs.Constant) for tensor in bias):
        return False
    if auto_pad(conv) not in ("NOTSET", "VALID") or not _is_given(x):
        return False
    *_, rows, columns = weight.shape
    attributes = conv_attributes(conv) | ({"pads": []} if auto_pad(conv) == "VALID" else {})
    dense = attributes["group"] == 1 and attributes["dilations"] == [1, 1]
    padded = attributes["pads"] not in ([], [0] * 4)
    apart = attributes["strides"] == [rows, columns] and not padded
    if not dense or not apart or columns < _LEAST or len(x.shape or ()) != 4:
        return False
    sizes = x.shape[1:]
    known = all(isinstance(size, int) and size > 0 for size in sizes)
    return known and sizes[1] % rows == 0 and sizes[2] % columns == 0


def _is_given(x: gs.Tensor) -> bool:
    """True for a graph input, and for one whose pixels are converted or normalized."""
    while (node := producer(x)) is not None:
        variables = [tensor for tensor in node.inputs if not isinstance(tensor, gs.Constant)]
        if node.op not in _PIXELWISE or node.domain or len(variables) != 1:
            return False
        (x,) = variables
    return not isinstance(x, gs.Constant)


def _channels_to_last(graph: gs.Graph, conv: gs.Node) -> tuple[gs.Node, ...]:
    """The nodes behind a convolution that write its result with the channels last; none if they
    are others."""
    node, rank, nodes = sole_use(graph, conv.outputs[0]), 4, list[gs.Node]()
    if node is not None and node.op == "Reshape" and not node.domain and _is_flat(conv, node):
        nodes.append(node)
        node, rank = sole_use(graph, node.outputs[0]), 3
    if node is None or node.op != "Transpose" or node.domain:
        return ()
    turned = list(node.attrs.get("perm", ())) == list(FIRST_TO_LAST[rank])
    return (*nodes, node) if turned else ()


def _is_flat(conv: gs.Node, reshape: gs.Node) -> bool:
    """True for a Reshape of the result from [N, K, Y, X] to [N, K, Y X]."""
    image, flat = conv.outputs[0].shape, reshape.outputs[0].shape
    if image is None or flat is None or len(image) != 4 or len(flat) != 3:
        return False
    known = all(isinstance(size, int) for size in (*image[1:], *flat[1:]))
    return known and list(flat[1:]) == [image[1], image[2] * image[3]]


# --- rewriting ------------------------------------------------------------------------------------


def _rewrite(graph: gs.Graph, embedding: _Embedding) -> None:
    conv, result = embedding.conv, embedding.result
    (x, weight, *bias), (n, c, h, w) = conv.inputs, conv.inputs[0].shape
    k, _, r, s = weight.shape
    sources, base = [conv, *embedding.behind], conv.outputs[0].name
    grid = [h // r, w // s] if len(embedding.behind) == 1 else [h // r * (w // s)]

    def add(op: str, inputs: list[gs.Tensor], shape: list[int | str], **attrs: object) -> gs.Tensor:
        y = gs.Variable(fresh(graph, f"{base}_{op.lower()}"), x.dtype, shape)
        insert(graph, op, inputs, [y], sources, attrs, at=conv)
        return y

    def reshaped(tensor: gs.Tensor, sizes: list[int]) -> gs.Tensor:
        target = add_constant(graph, f"{base}_sizes", np.array([0, *sizes], np.int64))
        return add("Reshape", [tensor, target], [n, *sizes])

    pixels = reshaped(x, [c, h // r, r, w // s, s])
    rows = add("Transpose", [pixels], [n, h // r, w // s, c, r, s], perm=[0, 2, 4, 1, 3, 5])
    patches = reshaped(rows, [*grid, c * r * s])
    matrix = derived(weight, lambda values: values.reshape(k, -1).T, weight.dtype, (c * r * s, k))
    product = [patches, add_constant(graph, f"{weight.name}_KN", matrix)]
    given = [tensor for tensor in bias if tensor.name]
    if given:
        product = [add("MatMul", product, [n, *grid, k]), *given]
    embedding.behind[-1].outputs.clear()
    insert(graph, "Add" if given else "MatMul", product, [result], sources, at=conv)
    remove(graph, sources)
