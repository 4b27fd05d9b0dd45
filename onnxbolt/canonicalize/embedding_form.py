"""Compute the constant parts of a sum of embeddings when the model is built.

    E[v .. v] = row v of E,   (x + c) + d = x + (c + d),   E[i] + r = (E + r)[i]

for a constant table E and indices i, v the number that all indices are, and r a row that is added
everywhere. Texts of one segment have such indices of token types: exporters gather them from a
buffer of zeros at run time, and then the segment's row from its table (Devlin et al. 2019). One
term for each embedding that depends on the input is left, and one of constants, if those are no
single row.
"""

from __future__ import annotations

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
    """Simplify all sums of embeddings; returns how many became shorter."""
    sums = [_sum(graph, node) for node in graph.nodes if _is_sum(node)]
    return sum(_shortened(graph, found) for found in sums if found is not None)


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
    gather = _taking(graph, variables, total) if _is_row(total) else None
    if len(summands) == 1 and all(row is None for row in rows) and gather is None:
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
