"""The model as rules see it, and the node that a rule converts."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, TypeProto, helper, numpy_helper

from onnxbolt.graph.scopes import names
from onnxbolt.graph.skeleton import inferred_types

Size = int | str | None


class Obstacle(Exception):  # noqa: N818  # no error: the model is written as it is then
    """The reason why a node cannot be converted."""


class Scope:
    """The model whose nodes are lifted: its types, its constants and the names in it."""

    def __init__(self, model: ModelProto) -> None:
        self._model = model
        # the source node of each node that a rule adds, by name
        self.stands_for: dict[str, str] = {}
        self.made: set[str] = set()  # names of tensors that rules add
        self.constants = {tensor.name: tensor for tensor in model.graph.initializer}
        if model.ir_version >= 4:  # others may be given at run time
            for value in model.graph.input:
                self.constants.pop(value.name, None)
        for node in model.graph.node:
            self.note(node)

    def note(self, node: NodeProto) -> None:
        """Keep the value of a Constant node."""
        if (
            node.op_type == "Constant"
            and len(node.attribute) == 1
            and node.attribute[0].name == "value"
        ):
            self.constants[node.output[0]] = node.attribute[0].t

    def fresh(self, base: str) -> str:
        """A new name derived from `base` that no tensor or node has."""
        name, count = base, 0
        while name in self._taken:
            name, count = f"{base}_{count}", count + 1
        self._taken.add(name)
        return name

    def dtype(self, name: str) -> np.dtype:
        """The element type of a tensor. Raises Obstacle if inference does not know it."""
        number = self._type(name).elem_type
        if number == TensorProto.UNDEFINED:
            raise Obstacle(f"the type of {name!r} is not known")
        return np.dtype(helper.tensor_dtype_to_np_dtype(number))

    def shape(self, name: str) -> list[int | None]:
        """The sizes of a tensor, None for unknown ones. Raises Obstacle if its rank is unknown."""
        found = self._type(name)
        if not found.HasField("shape"):
            raise Obstacle(f"the rank of {name!r} is not known")
        return [dim.dim_value if dim.HasField("dim_value") else None for dim in found.shape.dim]

    def values(self, name: str) -> np.ndarray | None:
        """The values if `name` is a constant of the main graph, else None."""
        tensor = self.constants.get(name)
        if tensor is None or onnx.external_data_helper.uses_external_data(tensor):
            return None
        return numpy_helper.to_array(tensor)

    def _type(self, name: str) -> TypeProto.Tensor:
        return self._types[name].tensor_type if name in self._types else TypeProto.Tensor()

    @cached_property
    def _types(self) -> dict[str, TypeProto]:
        try:
            return inferred_types(self._model)
        except (onnx.shape_inference.InferenceError, onnx.checker.ValidationError) as error:
            raise Obstacle(
                f"its types cannot be inferred: {' '.join(str(error).split())}"
            ) from error

    @cached_property
    def _taken(self) -> set[str]:
        return set(names(self._model.graph))


class Edit:
    """A copy of a node, to be changed in place, and the nodes that a rule adds around it; all are
    at the opset of the rule."""

    def __init__(self, node: NodeProto, scope: Scope) -> None:
        self.node, self.scope = NodeProto(), scope
        self.node.CopyFrom(node)
        self.before: list[NodeProto] = []
        self.after: list[NodeProto] = []

    @property
    def nodes(self) -> list[NodeProto]:
        """The node as it is now, with the nodes around it."""
        return [*self.before, self.node, *self.after]

    def take(self, name: str, default: Any = None) -> Any:
        """Remove an attribute from the node and return its value."""
        for index, attribute in enumerate(self.node.attribute):
            if attribute.name == name:
                value = helper.get_attribute_value(attribute)
                del self.node.attribute[index]
                return value.decode() if isinstance(value, bytes) else value
        return default

    def set(self, **attributes: object) -> None:
        """Add attributes that the node does not have yet."""
        self.node.attribute.extend(
            helper.make_attribute(name, value) for name, value in attributes.items()
        )

    def constant(self, values: Any, dtype: Any = np.int64) -> str:
        """Add a new constant in front of the node; returns its name."""
        return self.put("Constant", [], value=numpy_helper.from_array(np.array(values, dtype)))

    def put(self, op: str, inputs: list[str], **attributes: object) -> str:
        """Add a node in front; returns the name of its output."""
        self.before.append(self._new(op, inputs, self._tensor(op), attributes))
        self.scope.note(self.before[-1])
        return self.before[-1].output[0]

    def follow(self, op: str, index: int, *others: str, **attributes: object) -> None:
        """Make a new node compute output `index`, from what the node itself now computes and from
        `others`."""
        output = self.node.output[index]
        self.node.output[index] = self._tensor(self.node.op_type)
        self.after.append(self._new(op, [self.node.output[index], *others], output, attributes))

    def _tensor(self, op: str) -> str:
        name = self.scope.fresh(f"{self.node.output[0]}/{op}")
        self.scope.made.add(name)
        return name

    def _new(
        self, op: str, inputs: list[str], output: str, attributes: dict[str, Any]
    ) -> NodeProto:
        base = self.node.name or self.node.output[0]
        name = self.scope.fresh(f"{base}/{op}")
        self.scope.stands_for[name] = base
        return helper.make_node(op, inputs, [output], name, **attributes)
