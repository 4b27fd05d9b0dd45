"""Gated linear units (Dauphin et al. 2017) of one product, written as two:

    g, u = split(x W + b),  act(g) * u   =   g = x G + c,  u = x U + d,  act(g) * u

with W = [G U] and b = [c d]; act is an activation, or nothing. Behind two products the activation
and the gate are steps of one product's epilogue, which reads the other one's result; behind a Split
each would be a kernel of its own. That is the form of SwiGLU and GeGLU in ModernBERT, in timm's
packed layers and in Phi-3. The halves may also be two Slices, in either order. A convolution is
divided alike, along its channels: those of WaveNet, whose both halves have an activation, and of
Conformer are such.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.domains import INTERNAL
from onnxbolt.epilogues import steps_of
from onnxbolt.graph import weights
from onnxbolt.graph.edit import (
    add_constant,
    add_variable,
    constant_integers,
    constant_values,
    derived,
    insert,
    optional,
    pinned,
    producer,
    remove,
    sole_use,
    stand_alone,
)


@dataclass(frozen=True, eq=False)
class _Half:
    """Columns of a product, or channels of a convolution, as a tensor of their own."""

    tensor: gs.Tensor
    begin: int
    end: int


@dataclass(frozen=True, eq=False)
class _Product:
    """x W, with or without a bias behind it."""

    matmul: gs.Node
    add: gs.Node | None
    bias: np.ndarray | None

    @property
    def nodes(self) -> tuple[gs.Node, ...]:
        return (self.matmul,) if self.add is None else (self.matmul, self.add)

    @property
    def result(self) -> gs.Tensor:
        return self.nodes[-1].outputs[0]


def run(graph: gs.Graph) -> int:
    """Divide the product or convolution of each such unit; returns how many."""
    count = 0
    for node in list(graph.nodes):
        if node.op in ("Add", "Conv") and not node.domain:
            # a bias is gone with its product
            count += bool(node.outputs) and _divided(graph, node)
            continue
        product = _product(graph, node) if node.op == "MatMul" and not node.domain else None
        if product is None or pinned(graph, product.result):
            continue
        readers = list(dict.fromkeys(product.result.outputs))
        halves = _halves(readers, product.result, -1)
        if len(halves) == 2 and _gates(graph, halves[0], halves[1]):
            _divide(graph, product, halves, readers)
            count += 1
    return count


def _product(graph: gs.Graph, matmul: gs.Node) -> _Product | None:
    """The product of a matrix that nobody else reads, unless it is small, and its bias."""
    weight, y = matmul.inputs[1], matmul.outputs[0]
    if not isinstance(weight, gs.Constant) or len(weight.shape) != 2 or y.shape is None:
        return None
    large = int(np.prod(weight.shape)) * np.dtype(weight.dtype).itemsize >= weights.LARGE
    if large and len(weight.outputs) > 1:
        return None
    add = sole_use(graph, y)
    if add is None or add.op != "Add" or add.domain:
        return _Product(matmul, None, None)
    vectors = [constant_values(t) for t in add.inputs if t is not y]
    bias, columns = vectors[0] if len(vectors) == 1 else None, weight.shape[1]
    if bias is None or bias.ndim > len(y.shape):
        return _Product(matmul, None, None)
    if (bias.size, bias.shape[-1:]) != (columns, (columns,)):
        return _Product(matmul, None, None)
    return _Product(matmul, add, bias.reshape(-1))


def _divided(graph: gs.Graph, node: gs.Node) -> bool:
    """Write each half of a convolution, or of the sum of two, as one of its own."""
    whole, convs = node.outputs[0], _convolutions(graph, node)
    readers = list(dict.fromkeys(whole.outputs))
    halves = _halves(readers, whole, 1) if convs and not pinned(graph, whole) else []
    if len(halves) != 2 or not _gates(graph, halves[0], halves[1], both=True):
        return False
    for half in halves:
        parts = [add_variable(graph, f"{half.tensor.name}_part", half.tensor) for _ in convs]
        if len(convs) == 1:
            parts = [half.tensor]
        for conv, part in zip(convs, parts, strict=True):
            if part is not half.tensor:
                stand_alone(part)
            _part(graph, conv, half, part, node)
        if len(convs) > 1:
            insert(graph, "Add", parts, [half.tensor], [node], at=node)
    for reader in readers:
        reader.outputs.clear()
    remove(graph, [*dict.fromkeys((*convs, node)), *readers])
    return True


def _convolutions(graph: gs.Graph, node: gs.Node) -> list[gs.Node]:
    """The convolutions that compute a node's result: it is one itself, or adds those of two."""
    if node.op == "Conv":
        return [node] if _is_divisible(node) else []
    made = [producer(tensor) for tensor in node.inputs]
    convs = [
        conv
        for tensor, conv in zip(node.inputs, made, strict=True)
        if conv is not None and sole_use(graph, tensor) is node and _is_divisible(conv)
    ]
    width = (node.outputs[0].shape or [])[1:2]
    same = all(conv.outputs[0].shape and conv.outputs[0].shape[1:2] == width for conv in convs)
    return convs if len(convs) == len(made) and same else []


def _is_divisible(conv: gs.Node) -> bool:
    """True for a Conv of one group with constants that no other node reads."""
    constants = [tensor for tensor in conv.inputs[1:] if tensor.name]
    alone = all(isinstance(t, gs.Constant) and len(t.outputs) == 1 for t in constants)
    return conv.op == "Conv" and not conv.domain and alone and conv.attrs.get("group", 1) == 1


def _part(graph: gs.Graph, conv: gs.Node, half: _Half, part: gs.Tensor, at: gs.Node) -> None:
    """Add the convolution that computes a half's channels alone."""
    weight, bias = conv.inputs[1], optional(conv.inputs, 2)
    rows, shape = slice(half.begin, half.end), (half.end - half.begin, *weight.shape[1:])
    values = derived(weight, partial(_rows, rows), weight.dtype, shape)
    inputs = [conv.inputs[0], add_constant(graph, f"{weight.name}_half", values)]
    if bias is not None:
        inputs.append(add_constant(graph, f"{bias.name}_half", bias.values[rows]))
    insert(graph, "Conv", inputs, [part], [conv], dict(conv.attrs), at=at)


def _rows(rows: slice, values: np.ndarray) -> np.ndarray:
    return values[rows]


def _halves(readers: Sequence[gs.Node], whole: gs.Tensor, axis: int) -> list[_Half]:
    """The tensors that `readers` make of `whole` along an axis, if these are two halves."""
    if whole.shape is None or not isinstance(whole.shape[axis], int):
        return []
    axes, width = (
        (axis % len(whole.shape), axis % len(whole.shape) - len(whole.shape)),
        whole.shape[axis],
    )
    found: list[_Half] = []
    for node in readers:
        if node.op == "Split" and not node.domain and node.attrs.get("axis", 0) in axes:
            found += _split(node, axis)
        elif node.op == "Slice" and not node.domain:
            found += _slice(node, axes, width)
        else:
            return []
    ordered = sorted(found, key=lambda half: half.begin)
    places = [(half.begin, half.end) for half in ordered]
    return found if places == [(0, width // 2), (width // 2, width)] else []


def _split(node: gs.Node, axis: int) -> list[_Half]:
    widths = [tensor.shape[axis] if tensor.shape else None for tensor in node.outputs]
    if len(widths) != 2 or not isinstance(widths[0], int) or widths[0] != widths[1]:
        return []
    first, second = node.outputs
    return [_Half(first, 0, widths[0]), _Half(second, widths[0], 2 * widths[0])]


def _slice(node: gs.Node, along: Sequence[int], width: int) -> list[_Half]:
    starts, ends, axes = (constant_integers(node, index) for index in (1, 2, 3))
    steps = constant_integers(node, 4) if len(node.inputs) > 4 and node.inputs[4].name else [1]
    if steps != [1] or starts is None or ends is None or axes is None:
        return []
    if len(axes) != 1 or axes[0] not in along:
        return []
    begin, end, _ = slice(starts[0], ends[0]).indices(width)
    return [_Half(node.outputs[0], begin, end)]


def _gates(graph: gs.Graph, first: _Half, second: _Half, both: bool = False) -> bool:
    """True if one half, or its activation, is multiplied by the other one, or, if `both` may have
    one, by its activation."""
    ends = [_behind_activation(graph, half.tensor) for half in (first, second)]
    product = sole_use(graph, ends[0])
    if product is None or product.op != "Mul" or product.domain:
        return False
    if sole_use(graph, ends[1]) is not product:
        return False
    return both or ends[0] is first.tensor or ends[1] is second.tensor


def _behind_activation(graph: gs.Graph, tensor: gs.Tensor) -> gs.Tensor:
    """The result of the activation that alone reads `tensor`; `tensor` itself if there is none."""
    node = sole_use(graph, tensor)
    if node is None or len([t for t in node.inputs if not isinstance(t, gs.Constant)]) != 1:
        return tensor
    steps = steps_of(node.op) if not node.domain else ()
    if node.domain == INTERNAL or any(step.activation for step in steps):
        result: gs.Tensor = node.outputs[0]
        return result
    return tensor


def _divide(
    graph: gs.Graph, product: _Product, halves: Sequence[_Half], readers: Sequence[gs.Node]
) -> None:
    """Write each half as a product of its own."""
    matmul, weight = product.matmul, product.matmul.inputs[1]
    for half in halves:
        columns = slice(half.begin, half.end)
        shape = (weight.shape[0], half.end - half.begin)
        part = derived(weight, partial(_columns, columns), weight.dtype, shape)
        inputs = [matmul.inputs[0], add_constant(graph, f"{weight.name}_half", part)]
        if product.add is None or product.bias is None:
            insert(graph, "MatMul", inputs, [half.tensor], [matmul], at=matmul)
            continue
        result = add_variable(graph, f"{half.tensor.name}_product", half.tensor)
        insert(graph, "MatMul", inputs, [result], [matmul], at=matmul)
        bias = add_constant(graph, f"{weight.name}_half_bias", product.bias[columns])
        insert(graph, "Add", [result, bias], [half.tensor], [product.add], at=matmul)
    remove(graph, [*product.nodes, *readers])


def _columns(columns: slice, values: np.ndarray) -> np.ndarray:
    return values[:, columns]
