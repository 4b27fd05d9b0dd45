"""Applies a decision: constants and tensors change type, and Casts are added between types, one per
tensor."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.dtypes import DType
from onnxbolt.graph.bypass import bypass
from onnxbolt.graph.edit import Node, add_constant, stand_in
from onnxbolt.graph.names import fresh
from onnxbolt.graph.order import in_order
from onnxbolt.precision.constants import Constants, rounded
from onnxbolt.precision.decide import Decision, is_float, may_be_low, reads_any


class Conversion:
    """One pass over a graph. A tensor that has a name of the source model keeps its value; a copy
    in another type gets a new name and names the original tensor in `original`."""

    def __init__(self, graph: gs.Graph, decision: Decision, constants: Constants) -> None:
        self.graph, self.decision, self.constants, self.low = (
            graph,
            decision,
            constants,
            decision.low,
        )
        self.fixed: set[str] = {t.name for t in (*graph.inputs, *graph.outputs)} | graph.captured
        self.floats = {
            t.name for node in graph.nodes for t in (*node.inputs, *node.outputs) if is_float(t)
        }
        self.lowered: set[str] = set()  # variables that are 16-bit now
        self.copies: dict[str, gs.Tensor] = {}  # name -> the same value in the other type
        self.keeps_fp32 = self._constants_read_in_fp32()
        self.nodes: list[gs.Node] = []

    def run(self) -> None:
        for node in in_order(self.graph):
            for index, tensor in enumerate(node.inputs):
                if tensor.name in self.floats:
                    self._input(node, index, tensor)
            self.nodes.append(node)
            if node in self.decision.converted:
                self._attributes(node)
                for index, tensor in enumerate(node.outputs):
                    if tensor.name in self.floats and may_be_low(
                        node, index, self.low, self.decision.opset, inputs=False
                    ):
                        self._output(node, index, tensor)
        self.graph.nodes = self.nodes
        _drop_idle_casts(self.graph, self.low)

    def _constants_read_in_fp32(self) -> set[str]:
        return self.fixed | {
            t.name
            for node in self.graph.nodes
            for i, t in enumerate(node.inputs)
            if isinstance(t, gs.Constant) and is_float(t) and not self._wants_low(node, i)
        }

    def _wants_low(self, node: gs.Node, index: int) -> bool:
        return node in self.decision.converted and may_be_low(
            node, index, self.low, self.decision.opset
        )

    def _input(self, node: gs.Node, index: int, tensor: gs.Tensor) -> None:
        wants_low = self._wants_low(node, index)
        if isinstance(tensor, gs.Constant):
            if wants_low:
                self._low_constant(node, index, tensor)
            return
        if not reads_any(node) and wants_low != (tensor.name in self.lowered):
            node.inputs[index] = self._cast_of(tensor, self.low if wants_low else DType.F32)

    def _low_constant(self, node: gs.Node, index: int, constant: gs.Constant) -> None:
        if constant.name not in self.keeps_fp32:
            _lower(constant, constant, self.constants)
            return
        if constant.name not in self.copies:
            copy = add_constant(
                self.graph, f"{constant.name}_{self.low.value}", self.constants.converted(constant)
            )
            self.copies[constant.name] = copy
            _lower(copy, constant, self.constants)
        node.inputs[index] = self.copies[constant.name]

    def _output(self, node: gs.Node, index: int, tensor: gs.Tensor) -> None:
        if tensor.name not in self.fixed:
            tensor.dtype = self.low.numpy
            self.lowered.add(tensor.name)
            return
        inner = self._variable(tensor, self.low)
        node.outputs[index] = inner
        self.copies[tensor.name] = inner
        self._cast(inner, tensor, DType.F32)

    def _cast_of(self, tensor: gs.Variable, to: DType) -> gs.Tensor:
        if tensor.name not in self.copies:
            self.copies[tensor.name] = copy = self._variable(tensor, to)
            self._cast(tensor, copy, to)
        return self.copies[tensor.name]

    def _variable(self, tensor: gs.Tensor, to: DType) -> gs.Variable:
        copy = gs.Variable(fresh(self.graph, f"{tensor.name}_{to.value}"), to.numpy, tensor.shape)
        stand_in(copy, tensor)
        return copy

    def _cast(self, source: gs.Tensor, target: gs.Variable, to: DType) -> None:
        self.nodes.append(
            Node(
                "Cast",
                fresh(self.graph, f"{target.name}_cast"),
                {"to": to.onnx},
                [source],
                [target],
            )
        )

    def _attributes(self, node: gs.Node) -> None:
        """The attributes with element types changed to the 16-bit type."""
        if node.op == "Cast" and node.outputs[0].name in self.floats:
            node.attrs["to"] = self.low.onnx
        elif node.op == "ConstantOfShape" and node.outputs[0].name in self.floats:
            # ONNX: 0.0 where it is absent
            node.attrs["value"] = rounded(
                np.asarray(node.attrs.get("value", np.zeros(1))), self.low
            )
        else:
            return
        node.origin = None


def _lower(target: gs.Constant, constant: gs.Constant, constants: Constants) -> None:
    """Give `target` the 16-bit values of `constant`. It also keeps the values from before, so that
    whatever is computed from them later (the scale of an attention, scale and shift of a
    BatchNormalization, the sum of a class token and its position) is rounded only once."""
    if constant.dtype == np.float32:
        target.unrounded = constant._values
    target.values = constants.converted(constant)


def _drop_idle_casts(graph: gs.Graph, low: DType) -> None:
    """Remove Casts whose two sides now have the same type: mixed-precision models had them between
    16 and 32 bits."""
    for node in list(graph.nodes):
        if node.op == "Cast" and node.inputs[0].dtype == node.outputs[0].dtype == low.numpy:
            bypass(graph, node, node.inputs[0])
