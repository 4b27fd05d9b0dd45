"""Compute the products of constant rows when the model is built.

    (x + P) W = x W + P W,   (x + P) W + b = x W + (P W + b)

for a constant P with a row for each row of x, where other nodes read x as well. DETR adds positions
in front of the projections of queries and keys, not of values (Carion et al. 2020): all three
become products of x, which can be merged, and the positions become an epilogue's residual. Where
nothing else reads x, the kernel that computes it adds P.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.graph.edit import (
    Derived,
    add_constant,
    add_variable,
    constant_values,
    derived,
    insert,
    is_float,
    pinned,
    remove,
    sole_use,
)

# The sum reads and writes x's columns and reads P's; the products read as many rows of P W as they
# have columns. One launch is saved besides.
_MOST_WIDTHS = 4
MOST_BYTES = 1 << 22  # one constant P W has at the most


@dataclass(frozen=True, eq=False)
class _Sum:
    """x + P, and the products with constants that alone read it."""

    node: gs.Node
    x: gs.Variable
    rows: gs.Constant
    products: tuple[gs.Node, ...]


def run(graph: gs.Graph) -> int:
    """Rewrite all such sums; returns how many."""
    sums = [found for node in graph.nodes if (found := _sum(graph, node)) is not None]
    for found in sums:
        _rewrite(graph, found)
    return len(sums)


def _sum(graph: gs.Graph, node: gs.Node) -> _Sum | None:
    if node.op != "Add" or node.domain:
        return None
    y = node.outputs[0]
    x, rows = sorted(node.inputs, key=lambda tensor: isinstance(tensor, gs.Constant))
    products = tuple(dict.fromkeys(y.outputs))
    if (
        isinstance(x, gs.Constant)
        or not isinstance(rows, gs.Constant)
        or not is_float(rows)
        or pinned(graph, y)
        or not products
        or len(dict.fromkeys(x.outputs)) < 2
        or not _has_all_rows(rows, x.shape)
        or not all(_is_product(product, y) for product in products)
    ):
        return None
    widths = [int(product.inputs[1].shape[1]) for product in products]
    count, depth = math.prod(rows.shape[:-1]), rows.shape[-1]
    if sum(widths) > _MOST_WIDTHS * depth or any(
        count * width * rows.dtype.itemsize > MOST_BYTES for width in widths
    ):
        return None
    return _Sum(node, x, rows, products)


def _has_all_rows(rows: gs.Constant, shape: Sequence[int | str | None] | None) -> bool:
    """True if each element of a tensor of this shape, which has several rows, has one of its
    own."""
    sizes = [size for size in shape or () if isinstance(size, int)]
    return (
        shape is not None
        and len(sizes) == len(shape) > 1
        and len(rows.shape) > 1
        and math.prod(rows.shape) == math.prod(sizes) > sizes[-1]
        and rows.shape[-1] == sizes[-1]
        and list(rows.shape) == sizes[len(sizes) - len(rows.shape) :]
    )


def _is_product(node: gs.Node, x: gs.Tensor) -> bool:
    return (
        node.op == "MatMul"
        and not node.domain
        and node.inputs[0] is x
        and isinstance(node.inputs[1], gs.Constant)
        and len(node.inputs[1].shape) == 2
    )


def _rewrite(graph: gs.Graph, found: _Sum) -> None:
    for product in found.products:
        weight, y = product.inputs[1], product.outputs[0]
        replaced, bias = [product], None
        reader = sole_use(graph, y)
        if reader is not None and (bias := _bias(reader, y)) is not None:
            replaced.append(reader)
        result = replaced[-1].outputs[0]
        summand = add_constant(graph, f"{result.name}_rows", _summand(found, weight, bias))
        plain = add_variable(graph, f"{y.name}_without_rows", y)
        insert(graph, "MatMul", [found.x, weight], [plain], [product, found.node], at=product)
        insert(graph, "Add", [plain, summand], [result], [*replaced, found.node], at=product)
        remove(graph, replaced)
    remove(graph, [found.node])


def _bias(reader: gs.Node, y: gs.Tensor) -> np.ndarray | None:
    """The vector [N] that `reader` adds to a product [.., N]; None for other nodes."""
    if reader.op != "Add" or reader.domain:
        return None
    other = reader.inputs[1 if reader.inputs[0] is y else 0]
    values = constant_values(other)
    if values is None or not 0 < values.ndim <= len(y.shape):
        return None
    return values.reshape(-1) if values.size == y.shape[-1] == values.shape[-1] else None


def _summand(found: _Sum, weight: gs.Constant, bias: np.ndarray | None) -> np.ndarray | Derived:
    """P W + b in the type of W, of the product's shape."""
    positions = found.rows.values.astype(np.float64).reshape(found.x.shape)

    def product(values: np.ndarray) -> np.ndarray:
        result = positions @ values.astype(np.float64)
        return (result if bias is None else result + bias).astype(weight.dtype)

    return derived(weight, product, weight.dtype, (*found.x.shape[:-1], weight.shape[1]))
