"""Compute the constant parts of a sum of embeddings when the model is built.

    E[v .. v] = row v of E,   (x + c) + d = x + (c + d),   E[i] + r = (E + r)[i],   f E[i] = (fE)[i]

for a constant table E and indices i, v the number that all indices are, r a row that is added
everywhere, and a number f. Texts of one segment have such indices of token types: exporters gather
them from a buffer of zeros at run time, and then the segment's row from its table (Devlin et al.
2019). One term for each embedding that depends on the input is left, and one of constants, if those
are no single row. It has one element for an axis along which it is the same: exporters write
positions for each sequence of a given batch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.graph.edit import (
    SELECTING,
    add_constant,
    add_variable,
    constant_values,
    derived,
    insert,
    is_float,
    producer,
    remove,
    scalar,
    sole_use,
)
from onnxbolt.graph.embeddings import gather_of

# operators whose result has no other values than their first input, at any places
_SELECTING = SELECTING | {"Gather", "GatherElements"}


@dataclass(frozen=True, eq=False)
class _Sum:
    """Adds, the last one first, and what they add up."""

    adds: tuple[gs.Node, ...]
    terms: tuple[gs.Tensor, ...]

    @property
    def result(self) -> gs.Variable:
        return self.adds[0].outputs[0]


def run(graph: gs.Graph) -> int:
    """Scale tables, and simplify all sums of embeddings; returns how many changed."""
    count = _scale_tables(graph)
    sums = [_sum(graph, node) for node in graph.nodes if _is_sum(node)]
    return count + sum(_shortened(graph, found) for found in sums if found is not None)


# --- scaled tables --------------------------------------------------------------------------------


def _scale_tables(graph: gs.Graph) -> int:
    """Multiply tables by the number that all embeddings from them are multiplied by (Gemma, M2M);
    returns how many."""
    gathers = defaultdict[str, list[gs.Node]](list)
    for node in graph.nodes:
        found = gather_of(node.outputs[0]) if node.op == "Gather" and node.outputs else None
        if found is not None:
            gathers[found.inputs[0].name].append(found)
    return sum(_scale_table(graph, nodes) for nodes in gathers.values())


def _scale_table(graph: gs.Graph, gathers: Sequence[gs.Node]) -> bool:
    table = gathers[0].inputs[0]
    readers = [sole_use(graph, gather.outputs[0]) for gather in gathers]
    products = [node for node in readers if node is not None]
    factor, *others = (_factor(node) for node in products) if products else [None]
    alone = len(table.outputs) == len(gathers) == len(products)
    if factor is None or any(other != factor for other in others) or not alone:
        return False
    if not is_float(table):
        return False

    def scaled(values: np.ndarray) -> np.ndarray:
        return (values.astype(np.float64) * factor).astype(table.dtype)

    name = f"{table.name}_scaled"
    moved = add_constant(graph, name, derived(table, scaled, table.dtype, table.shape))
    for gather, product in zip(gathers, products, strict=True):
        y, ids = product.outputs[0], gather.inputs[1]
        product.outputs.clear()
        insert(graph, "Gather", [moved, ids], [y], [gather, product], {"axis": 0}, at=product)
        remove(graph, [gather, product])
    return True


def _factor(node: gs.Node) -> float | None:
    """The number by which a node multiplies a tensor of as many axes as its result."""
    if node.op != "Mul" or node.domain:
        return None
    numbers = [tensor for tensor in node.inputs if scalar(tensor) is not None]
    others = [tensor for tensor in node.inputs if scalar(tensor) is None]
    alone = len(numbers) == len(others) == 1
    fits = alone and len(numbers[0].shape) <= len(others[0].shape or ())
    return scalar(numbers[0]) if fits else None


# --- recognition ----------------------------------------------------------------------------------


def _sum(graph: gs.Graph, root: gs.Node) -> _Sum | None:
    """The sum that ends with `root`, if an embedding is among its terms; None for a part of a
    larger sum."""
    reader = sole_use(graph, root.outputs[0])
    if reader is not None and _is_sum(reader):
        return None
    adds, terms, pending = [root], list[gs.Tensor](), list(root.inputs)
    while pending:
        term = pending.pop(0)
        node = producer(term)
        if node is not None and _is_sum(node) and sole_use(graph, term) is not None:
            adds.append(node)
            pending = [*node.inputs, *pending]
        else:
            terms.append(term)
    found = any(_table(term) is not None for term in terms)
    return _Sum(tuple(adds), tuple(terms)) if found and is_float(root.outputs[0]) else None


def _is_sum(node: gs.Node) -> bool:
    return node.op == "Add" and not node.domain


def _table(term: gs.Tensor) -> gs.Constant | None:
    """The constant [V, C] of whose rows the term consists; None for a term that is no embedding."""
    gather = gather_of(term)
    return None if gather is None else gather.inputs[0]


def _only_index(ids: gs.Tensor) -> int | None:
    """The number that all elements of an index are, whatever the model's inputs; None if they are
    not known to be the same."""
    while (node := producer(ids)) is not None:
        if node.op not in _SELECTING or node.domain:
            return None
        ids = node.inputs[0]
    values = constant_values(ids)
    if values is None or not values.size or values.dtype.kind != "i":
        return None
    first = int(values.reshape(-1)[0])
    return first if bool((values == first).all()) else None


# --- rewriting ------------------------------------------------------------------------------------


def _shortened(graph: gs.Graph, found: _Sum) -> bool:
    """Rewrite a sum in place; False if it is as short as it can be."""
    rows = [_row(term, found) for term in found.terms]
    constants = [
        constant_values(term) if row is None else row
        for term, row in zip(found.terms, rows, strict=True)
    ]
    variables = [t for t, values in zip(found.terms, constants, strict=True) if values is None]
    summands = [values for values in constants if values is not None]
    if not summands or not variables or (total := _total(summands)) is None:
        return False
    shape = list(found.result.shape or ())
    if any(list(term.shape or ()) == shape for term in variables):
        total = _narrowed(total)
    gather = _taking(graph, variables, total) if _is_row(total) else None
    narrower = any(total.size < values.size for values in summands)
    alone = len(summands) == 1 and all(row is None for row in rows)
    if alone and gather is None and not narrower:
        return False
    if gather is not None:
        index = next(i for i, term in enumerate(variables) if term is gather.outputs[0])
        variables[index] = _with_row(graph, gather, total)
    else:
        name = f"{found.result.name}_constants"
        variables.append(add_constant(graph, name, total.astype(found.result.dtype)))
    _add_up(graph, found, variables)
    return True


def _row(term: gs.Tensor, found: _Sum) -> np.ndarray | None:
    """The row of an embedding that is the same everywhere, if terms that stay give the sum its
    shape."""
    table, index, shape = _table(term), _constant_index(term), found.result.shape
    if table is None or index is None or not is_float(table):
        return None
    others = [t for t in found.terms if _constant_index(t) is None]
    others = [t for t in others if not isinstance(t, gs.Constant)]
    kept = shape and None not in shape and any(list(t.shape or ()) == list(shape) for t in others)
    if not kept or not -table.shape[0] <= index < table.shape[0]:
        return None
    row: np.ndarray = table.values[index]
    return row


def _constant_index(term: gs.Tensor) -> int | None:
    """The only index of an embedding; None for other terms."""
    node = producer(term)
    return None if node is None or _table(term) is None else _only_index(node.inputs[1])


def _total(summands: Sequence[np.ndarray]) -> np.ndarray | None:
    """Their sum in fp64; None if it is larger than each of them."""
    try:
        shape = np.broadcast_shapes(*(values.shape for values in summands))
    except ValueError:
        return None
    size = max(values.size for values in summands)
    if int(np.prod(shape)) > size:
        return None
    return np.asarray(sum(values.astype(np.float64) for values in summands))


def _narrowed(values: np.ndarray) -> np.ndarray:
    """The values with one element for each axis, but the last one, along which they are equal."""
    for axis in range(values.ndim - 1):
        first = values.take([0], axis)
        values = first if bool((values == first).all()) else values
    return values


def _is_row(values: np.ndarray) -> bool:
    return values.ndim > 0 and values.size == values.shape[-1]


def _taking(graph: gs.Graph, terms: Sequence[gs.Tensor], row: np.ndarray) -> gs.Node | None:
    """The Gather from the smallest table that a row may be added to: nobody else reads it, it keeps
    its width, and its result has as many axes as the row."""
    gathers = [
        node
        for term in terms
        if (table := _table(term)) is not None
        and (node := producer(term)) is not None
        and len(table.outputs) == 1
        and sole_use(graph, term) is not None
        and is_float(table)
        and row.size in (1, table.shape[1])
        and len(term.shape or ()) >= row.ndim
    ]
    return min(gathers, key=lambda node: node.inputs[0].shape[0], default=None)


def _with_row(graph: gs.Graph, gather: gs.Node, row: np.ndarray) -> gs.Variable:
    """The result of a Gather from its table plus a row."""
    (table, ids), y, row = gather.inputs, gather.outputs[0], row.reshape(-1)

    def added(values: np.ndarray) -> np.ndarray:
        return (values.astype(np.float64) + row).astype(table.dtype)

    moved = add_constant(
        graph, f"{table.name}_sum", derived(table, added, table.dtype, table.shape)
    )
    result = add_variable(graph, f"{y.name}_sum", y)
    insert(graph, "Gather", [moved, ids], [result], [gather], {"axis": 0}, at=gather)
    remove(graph, [gather])
    return result


def _add_up(graph: gs.Graph, found: _Sum, terms: Sequence[gs.Tensor]) -> None:
    """New Adds of `terms`, of which the last has the sum's result."""
    root, result = found.adds[0], found.result
    root.outputs.clear()
    total, last = terms[0], len(terms) - 1
    for index, term in enumerate(terms[1:], 1):  # a term may occur twice
        y = result if index == last else add_variable(graph, f"{result.name}_part", result)
        insert(graph, "Add", [total, term], [y], found.adds, at=root)
        total = y
    if len(terms) == 1:
        insert(graph, "Identity", [total], [result], found.adds, at=root)
    remove(graph, found.adds)
