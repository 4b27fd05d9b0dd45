"""The rotation of pairs of neighbouring columns by a table [.., W], which repeats along the rows
and columns of x [.., N] (ops/rotary/). match/rotations.py makes nodes of it, of the domain
`onnxbolt.internal`, and `restored` makes ONNX operators of those that no kernel takes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.epilogues import EPILOGUES, ROTATE
from onnxbolt.epilogues.step import Emit
from onnxbolt.graph.edit import Node, add_constant
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
