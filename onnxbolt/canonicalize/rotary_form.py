"""The rotation of pairs of neighbouring columns by a table [.., W], which repeats along the rows
and columns of x [.., N] (ops/rotary/). match/rotations.py makes nodes of it, of the domain
`onnxbolt.internal`, and `restored` makes ONNX operators of those that no kernel takes. `run`
recognizes these operators, which the tuner has in the small models that it measures.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.domains import INTERNAL
from onnxbolt.epilogues import EPILOGUES, ROTATE
from onnxbolt.epilogues.step import Emit
from onnxbolt.graph.edit import Node, add_constant, constant_values, insert, producer, remove
from onnxbolt.graph.names import fresh

OP = ROTATE  # its domain is onnxbolt.internal; attribute rotated_columns
_END = 2**63 - 1


def rotated(emit: Emit, opset: int, x: str, table: str, columns: str) -> str:
    """Append the rotation of the first columns of x; the name of the result. `columns` names their
    number, a vector of one element."""
    last, one, two = (emit("Const", (number,)) for number in (-1, 1, 2))
    first = emit("Slice", [x, emit("Const", (0,)), columns, last])
    others = emit("Slice", [x, columns, emit("Const", (_END,)), last])
    width = emit("Slice", [emit("Shape", [table]), last, emit("Const", (_END,))])
    period = emit("Div", [emit("Reshape", [emit("Size", [table]), one]), width])
    times, pairs = emit("Div", [columns, width]), emit("Div", [width, two])
    # [rows / P, P, columns / W, W / 2, 2] by [P, 1, W / 2, 2]
    grid = emit("Concat", [last, period, times, pairs, two], axis=0)
    repeated = emit("Concat", [period, one, pairs, two], axis=0)
    pairs_of_x, pairs_of_table = (
        emit("Reshape", [tensor, shape]) for tensor, shape in ((first, grid), (table, repeated))
    )
    turned = EPILOGUES[ROTATE].body(emit, opset, pairs_of_x, pairs_of_table, ())
    turned = emit("Reshape", [turned, emit("Shape", [first])])
    return emit("Concat", [turned, others], axis=-1)


def run(graph: gs.Graph) -> int:
    """Replace what `restored` writes, exactly as it writes it; returns how many."""
    count = 0
    for node in [node for node in graph.nodes if node.op == "Concat"]:
        found = dict[str, gs.Tensor]()
        if node.outputs and _is_written(_WRITTEN.result, node.outputs[0], found):
            attributes = {"rotated_columns": int(found["columns"].values.item())}
            y = node.outputs[0]
            node.outputs.clear()
            given = [found["x"], found["table"]]
            insert(graph, OP, given, [y], [node], attributes, INTERNAL, at=node)
            remove(graph, [node])
            count += 1
    return count


@dataclass(frozen=True)
class _Expression:
    """An operator of values by their names, or a constant."""

    op: str
    inputs: tuple[str, ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)
    value: tuple[int, ...] = ()


class _Written:
    """The expressions that `rotated` appends to the values "x", "table" and "columns"."""

    def __init__(self) -> None:
        self.expressions: dict[str, _Expression] = {}
        self.result = rotated(self._emit, 0, "x", "table", "columns")

    def _emit(self, op: str, inputs: Any, **attributes: Any) -> str:
        name = f"t{len(self.expressions)}"
        constant = op == "Const"
        made = _Expression(op, value=inputs) if constant else _Expression(op, inputs, attributes)
        self.expressions[name] = made
        return name


_WRITTEN = _Written()


def _is_written(name: str, tensor: gs.Tensor, found: dict[str, gs.Tensor]) -> bool:
    """True if a tensor is the value `name` of `_WRITTEN`; `found` has the tensors by their names,
    so that a value is always the same tensor."""
    if name in found:
        return found[name] is tensor or _WRITTEN.expressions.get(name, _NONE).op == "Const"
    found[name] = tensor
    expression = _WRITTEN.expressions.get(name)
    if expression is None:
        return name != "columns" or (isinstance(tensor, gs.Constant) and tensor.shape == (1,))
    if expression.op == "Const":
        values = constant_values(tensor)
        return values is not None and tuple(values.reshape(-1).tolist()) == expression.value
    node = producer(tensor)
    return (
        node is not None
        and (node.op, node.domain or "") == (expression.op, "")
        and dict(node.attrs) == expression.attributes
        and len(node.inputs) == len(expression.inputs)
        and all(
            _is_written(given, each, found)
            for given, each in zip(expression.inputs, node.inputs, strict=True)
        )
    )


_NONE = _Expression("")


def restored(graph: gs.Graph, node: gs.Node) -> list[Node]:
    """The ONNX operators for a rotation that no kernel takes."""
    (x, table), y = node.inputs, node.outputs[0]
    tensors = {tensor.name: tensor for tensor in (x, table)}
    nodes = list[Node]()

    def emit(op: str, inputs: Any, **attributes: Any) -> str:
        if op == "Const":
            made = add_constant(graph, f"{y.name}/constant", np.array(inputs, np.int64))
        else:
            made = gs.Variable(fresh(graph, f"{y.name}/{op}"))
            name = fresh(graph, f"{node.name}/{op}")
            given = [tensors[each] for each in inputs]
            nodes.append(Node(op, name, attributes, given, [made], "", node.provenance))
        tensors[made.name] = made
        return str(made.name)

    columns = emit("Const", (int(node.attrs["rotated_columns"]),))
    rotated(emit, graph.opset, x.name, table.name, columns)
    nodes[-1].outputs = [y]
    return nodes
