"""Gated linear units (Dauphin et al. 2017) of one product, written as two:

    g, u = split(x W + b),  act(g) * u   =   g = x G + c,  u = x U + d,  act(g) * u

with W = [G U] and b = [c d]; act is an activation, or nothing. Behind two products the activation
and the gate are steps of one product's epilogue, which reads the other one's result; behind a Split
each would be a kernel of its own. That is the form of SwiGLU and GeGLU in ModernBERT, in timm's
packed layers and in Phi-3. The halves may also be two Slices, in either order.
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
    pinned,
    remove,
    sole_use,
)


@dataclass(frozen=True, eq=False)
class _Half:
    """Columns of a product as a tensor of their own."""

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
    """Divide the product of each such unit; returns how many."""
    count = 0
    for node in list(graph.nodes):
        product = _product(graph, node) if node.op == "MatMul" and not node.domain else None
        if product is None or pinned(graph, product.result):
            continue
        readers = list(dict.fromkeys(product.result.outputs))
        halves = _halves(readers, product.result)
        if len(halves) == 2 and _gates(graph, *halves):
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


def _halves(readers: Sequence[gs.Node], whole: gs.Tensor) -> list[_Half]:
    """The tensors that `readers` make of the columns of `whole`, if these are two halves."""
    if whole.shape is None or not isinstance(whole.shape[-1], int):
        return []
    last, width = len(whole.shape) - 1, whole.shape[-1]
    found: list[_Half] = []
    for node in readers:
        if node.op == "Split" and not node.domain and node.attrs.get("axis", 0) in (-1, last):
            found += _split(node)
        elif node.op == "Slice" and not node.domain:
            found += _slice(node, last, width)
        else:
            return []
    ordered = sorted(found, key=lambda half: half.begin)
    places = [(half.begin, half.end) for half in ordered]
    return found if places == [(0, width // 2), (width // 2, width)] else []


def _split(node: gs.Node) -> list[_Half]:
    widths = [tensor.shape[-1] if tensor.shape else None for tensor in node.outputs]
    if len(widths) != 2 or not isinstance(widths[0], int) or widths[0] != widths[1]:
        return []
    first, second = node.outputs
    return [_Half(first, 0, widths[0]), _Half(second, widths[0], 2 * widths[0])]


def _slice(node: gs.Node, last: int, width: int) -> list[_Half]:
    starts, ends, axes = (constant_integers(node, index) for index in (1, 2, 3))
    steps = constant_integers(node, 4) if len(node.inputs) > 4 and node.inputs[4].name else [1]
    if steps != [1] or starts is None or ends is None or axes not in ([-1], [last]):
        return []
    begin, end, _ = slice(starts[0], ends[0]).indices(width)
    return [_Half(node.outputs[0], begin, end)]


def _gates(graph: gs.Graph, first: _Half, second: _Half) -> bool:
    """True if one half, or its activation, is multiplied by the other."""
    ends = [_behind_activation(graph, half.tensor) for half in (first, second)]
    product = sole_use(graph, ends[0])
    if product is None or product.op != "Mul" or product.domain:
        return False
    if sole_use(graph, ends[1]) is not product:
        return False
    return ends[0] is first.tensor or ends[1] is second.tensor


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
