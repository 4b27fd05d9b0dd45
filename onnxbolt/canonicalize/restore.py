"""Writes recognized activations and normalizations that no kernel took as the operators they
were."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import onnx_graphsurgeon as gs

from onnxbolt.canonicalize import (
    attention_form,
    group_norm_form,
    norm_form,
    rotary_form,
    snake_form,
)
from onnxbolt.canonicalize.recognition import Recognition
from onnxbolt.epilogues import EPILOGUES
from onnxbolt.graph import promises
from onnxbolt.graph.edit import Node, add_constant, add_variable, remove
from onnxbolt.graph.element_types import onnx_dtype
from onnxbolt.graph.exporter import INTERNAL_DOMAIN
from onnxbolt.graph.importer import attributes_of
from onnxbolt.graph.names import fresh
from onnxbolt.graph.promises import stage

# how nodes are written that never were nodes of the source, or not as they are
_WRITTEN = {attention_form.OP: attention_form.restored, rotary_form.OP: rotary_form.restored}


@stage(requires=promises.SOUND, ensures=promises.KEPT)
def restore(graph: gs.Graph) -> int:
    """Replace the recognized nodes that are left by ONNX operators; returns how many.

    They become the very nodes they were. Where precision changed the tensors' type since, an
    activation becomes the ONNX form of the epilogue table in that type, and a normalization of rows
    what norm_form.py writes. Single standard operators, and normalizations of groups, stay
    themselves as long as ONNX defines them for the type; groups are else computed in the type
    before.
    """
    internal = [node for node in graph.nodes if node.domain == INTERNAL_DOMAIN]
    for node in internal:
        at = next(i for i, other in enumerate(graph.nodes) if other is node)
        if node.op in _WRITTEN:
            made = _WRITTEN[node.op](graph, node)
            remove(graph, [node])
            graph.nodes[at:at] = made
            continue
        (x, *factors), y = node.inputs, node.outputs[0]
        remove(graph, [node])
        if not node.expansion:  # a stage made it of another one
            graph.nodes[at:at] = norm_form.written(graph, node, [x, *factors], y)
            continue
        first, *more = node.expansion
        standard = not more and not first.domain and _defined(first.op_type, graph.opset, x)
        if node.op == snake_form.OP and _is_moved(node, x):
            made = snake_form.written(graph, node, [x, *factors], y)
        elif x.dtype == node.recognition.dtype:
            made = _originals(graph, node, x, y)
        elif node.op == group_norm_form.OP:
            made = _in_type(graph, node, x, y)
        elif standard:
            made = _originals(graph, node, x, y)
        elif node.op in EPILOGUES:
            made = _WrittenOut(graph, node, x).nodes_for(y)
        else:
            made = norm_form.written(graph, node, [x, *factors], y)
        graph.nodes[at:at] = made
    return len(internal)


def _is_moved(node: gs.Node, x: gs.Tensor) -> bool:
    """True if x has another type or layout than at recognition."""
    return bool(x.dtype != node.recognition.dtype or x.name != node.recognition.x)


def _defined(op: str, opset: int, x: gs.Tensor) -> bool:
    """True if ONNX defines `op` for x's type at this opset."""
    if not onnx.defs.has(op, opset, ""):  # one of ONNX Runtime's own
        return False
    schema = onnx.defs.get_schema(op, opset, "")
    name = (
        onnx.helper.tensor_dtype_to_string(onnx_dtype(x.dtype)).removeprefix("TensorProto.").lower()
    )
    allowed = {
        constraint.type_param_str: constraint.allowed_type_strs
        for constraint in schema.type_constraints
    }
    return f"tensor({name})" in allowed[schema.inputs[0].type_str]


def _in_type(graph: gs.Graph, node: gs.Node, x: gs.Tensor, y: gs.Tensor) -> list[Node]:
    """The nodes that it was, in x's type, or between Casts where ONNX does not define them for
    it."""
    if all(_defined(proto.op_type, graph.opset, x) for proto in node.expansion):
        return _originals(graph, node, x, y)
    before = node.recognition.dtype
    wide, result = (add_variable(graph, f"{t.name}/{before.name}", t) for t in (x, y))
    wide.dtype = result.dtype = before
    casts = [
        Node("Cast", fresh(graph, f"{node.name}/Cast"), {"to": onnx_dtype(t.dtype)}, [source], [t])
        for source, t in ((x, wide), (result, y))
    ]
    for cast in casts:
        cast.provenance = node.provenance
    return [casts[0], *_originals(graph, node, wide, result), casts[1]]


def _originals(graph: gs.Graph, node: gs.Node, x: gs.Tensor, y: gs.Tensor) -> list[Node]:
    """The nodes that it was. Where x's type is another than then, so are those of constants and of
    the tensors between that had x's type."""
    recognition: Recognition = node.recognition

    def now(dtype: np.dtype) -> np.dtype:
        return x.dtype if dtype == recognition.dtype else dtype

    constants = {
        name: constant
        if now(constant.dtype) == constant.dtype
        else add_constant(graph, name, constant.values.astype(now(constant.dtype)))
        for name, constant in recognition.constants.items()
    }
    tensors: dict[str, gs.Tensor] = {**constants, recognition.x: x, recognition.y: y}
    # another layout or shape: the inner tensors have other values than those of their names
    moved = x.name != recognition.x
    nodes = []
    for proto in node.expansion:
        for name in (*proto.input, *proto.output):
            if name not in tensors:
                like = recognition.inner.get(name, x)
                name_now = fresh(graph, name) if moved else name
                tensors[name] = gs.Variable(name_now, now(like.dtype), like.shape)
        inputs, outputs = [tensors[n] for n in proto.input], [tensors[n] for n in proto.output]
        made = Node(
            proto.op_type,
            proto.name,
            attributes_of(proto),
            inputs,
            outputs,
            proto.domain,
            (proto.name or proto.output[0],),
        )
        made.origin = proto
        nodes.append(made)
    return nodes


class _WrittenOut:
    """The ONNX form of the epilogue table as nodes of the graph; `__call__` is what
    epilogues/step.py names `Emit`."""

    def __init__(self, graph: gs.Graph, node: gs.Node, x: gs.Tensor) -> None:
        self.graph, self.node, self.x = graph, node, x
        self.tensors = {x.name: x}
        self.nodes: list[Node] = []

    def nodes_for(self, y: gs.Tensor) -> list[Node]:
        """The nodes that compute y."""
        EPILOGUES[self.node.op].body(self, self.graph.opset, self.x.name, "", ())
        self.nodes[-1].outputs = [y]
        return self.nodes

    def __call__(self, op: str, inputs: list[str] | float, **attributes: object) -> str:
        if not isinstance(inputs, list):  # emit("Const", value)
            constant = add_constant(
                self.graph,
                f"{self.node.name}/constant",
                np.array(inputs, np.float64).astype(self.x.dtype),
            )
            self.tensors[constant.name] = constant
            return str(constant.name)
        tensors = [self.tensors[name] for name in inputs]
        if _defined(op, self.graph.opset, self.x):
            return self._add(op, tensors, self.x.dtype, attributes)
        wide = [
            self.tensors[
                self._add("Cast", [t], np.dtype(np.float32), {"to": int(onnx.TensorProto.FLOAT)})
            ]
            for t in tensors
        ]
        result = self.tensors[self._add(op, wide, np.dtype(np.float32), attributes)]
        return self._add("Cast", [result], self.x.dtype, {"to": onnx_dtype(self.x.dtype)})

    def _add(
        self, op: str, inputs: Sequence[gs.Tensor], dtype: np.dtype, attributes: dict[str, object]
    ) -> str:
        result = add_variable(self.graph, f"{self.node.name}/{op}_output", self.x)
        result.dtype = dtype
        self.tensors[result.name] = result
        self.nodes.append(
            Node(
                op,
                fresh(self.graph, f"{self.node.name}/{op}"),
                attributes,
                inputs,
                [result],
                "",
                self.node.provenance,
            )
        )
        return str(result.name)
