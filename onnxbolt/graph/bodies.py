"""The bodies of If, Loop and Scan as models of their own, and back.

A body's model reads the body's own inputs (what the operator passes: a state, a slice, the number
of the iteration) and, as inputs too, the tensors around it that the body reads (its captures).
Constants around it are constants of the model. So every stage works on it as on any model, and its
inputs and outputs keep their types and names.

What a stage makes of the model goes back into the node. Constants that are new then lie in the
main graph, where equal ones of several bodies are one; those of the body itself stay in it.

A Loop does not say that a state keeps its shape. A size of the initial state is one of every
iteration's if the body, given a state of that size, computes one of the same size again.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx
import onnx_graphsurgeon as gs
from onnx import (
    AttributeProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TypeProto,
    ValueInfoProto,
)

from onnxbolt.errors import OnnxboltError
from onnxbolt.graph.edit import Constant
from onnxbolt.graph.exporter import (
    export_body,
    node_proto,
    tensor_proto,
    used_constants,
    value_info,
)
from onnxbolt.graph.fields import copy_fields
from onnxbolt.graph.importer import import_model, tensor_type
from onnxbolt.graph.names import fresh
from onnxbolt.graph.scopes import captured, outer_reads, subgraphs
from onnxbolt.graph.shapes import Shape, infer, infer_inner
from onnxbolt.graph.symbols import is_generated

_ROUNDS = 4  # then states whose shapes are still not certain have none


@dataclass(frozen=True)
class Value:
    """The value of a body's input in the first iteration: the tensor of this name around the body,
    or the first slice of it along `axis`, counted from its end if `reverse`. Without a name it is
    the number of the iteration, or a condition that holds."""

    name: str = ""
    axis: int | None = None
    reverse: bool = False


@dataclass(frozen=True)
class Body:
    """One body as a model of its own."""

    place: str  # in words, for reports
    owner: str  # the first output of the control-flow node
    attribute: str
    model: ModelProto
    values: Mapping[str, Value]  # by input of the model
    inputs: tuple[str, ...]  # the inputs of the body itself, in order
    states: Mapping[str, str]  # by these: the output that is its value in the next iteration
    constants: frozenset[str]  # constants of the model that lie around the body


@dataclass(frozen=True)
class Left:
    """A body that cannot be a model of its own, and why."""

    place: str
    reason: str


def bodies_of(graph: gs.Graph) -> tuple[list[Body], list[Left]]:
    """The bodies of an imported graph whose types are inferred, in the graph's order."""
    found: list[Body] = []
    left: list[Left] = []
    owners = [node for node in graph.nodes if any(bodies_in(node))]
    if not owners:
        return found, left
    around = _Around(graph)
    for node in owners:
        for attribute in bodies_in(node):
            place = place_of(node.origin or node_proto(node), attribute)
            rule = _RULES.get(node.op) if not node.domain else None
            try:
                if rule is None:
                    raise _ObstacleError("only bodies of If, Loop and Scan are optimized")
                found.append(_body(around, node, attribute, place, rule(node, attribute.g)))
            except (_ObstacleError, OnnxboltError) as reason:
                left.append(Left(place, str(reason)))
    return found, left


def placed(places: Sequence[str]) -> str:
    """The place of a body in words, from those of the bodies around it, the outermost first, and
    its own; empty for the main graph."""
    return ", in ".join(reversed(places))


def import_within(model: ModelProto, around: gs.Graph) -> gs.Graph:
    """The graph of a body's model. Neither it nor the graph around it gets a new name that the
    other one has."""
    graph = import_model(model)
    around.taken_names |= graph.taken_names
    graph.taken_names = around.taken_names
    return graph


@dataclass(frozen=True)
class Changed:
    """A body's graph as stages have changed it, and those of the bodies in it."""

    body: Body
    graph: gs.Graph
    inside: Sequence[Changed] = ()


def put_back(graph: gs.Graph, changed: Sequence[Changed]) -> None:
    """Put what stages made of bodies back into the nodes of the graph around them."""
    if changed:
        _put_back(graph, changed, _Shared(graph))


def _put_back(graph: gs.Graph, changed: Sequence[Changed], shared: _Shared) -> None:
    owners = {_first(node): node for node in graph.nodes}
    for each in changed:
        _put_back(each.graph, each.inside, shared)
        body, own = each.body, _own(each)
        for constant in used_constants(each.graph).values():
            shared.add(body, own, constant)
        node = owners[body.owner]
        proto = export_body(each.graph, body.inputs, own)
        node.attrs[body.attribute] = onnx.helper.make_attribute(body.attribute, proto)
        node.origin = None
    readers = [node_proto(node) for node in graph.nodes if any(bodies_in(node))]
    graph.captured = frozenset(captured(graph.source, readers))


def has_bodies(node: NodeProto) -> bool:
    """True if a node is control flow."""
    return any(True for attribute in node.attribute for _ in subgraphs(attribute))


def located(name: str, place: str) -> str:
    """The name of a node or a tensor, with the place of its body if it is in one."""
    return f"{name} in {place}" if place else name


def is_there(graph: gs.Graph, body: Body) -> bool:
    """True if the graph still has the node of a body."""
    return any(_first(node) == body.owner for node in graph.nodes)


class _ObstacleError(Exception):
    """Why a body cannot be a model of its own."""


def _first(node: gs.Node) -> str:
    return next((tensor.name for tensor in node.outputs if tensor.name), "")


def bodies_in(node: gs.Node) -> Iterator[AttributeProto]:
    """The attributes of a node that hold bodies."""
    for value in node.attrs.values():
        if isinstance(value, AttributeProto) and any(True for _ in subgraphs(value)):
            yield value


def place_of(node: NodeProto, attribute: AttributeProto) -> str:
    """The place of a body, in words."""
    name = node.name or next(filter(None, node.output), "")
    return f"{attribute.name} of {node.op_type} {name}"


# --- out of the graph -----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Formal:
    """The inputs of a body in their order: their values, element types and shapes in the first
    iteration, and the outputs that follow them."""

    values: Sequence[Value]
    types: Sequence[tuple[int | None, Shape | None]]
    states: Mapping[int, int]
    keeps_shapes: bool  # by the operator's definition


class _Around:
    """The graph around bodies: types and constants by name."""

    def __init__(self, graph: gs.Graph) -> None:
        self.graph = graph
        self.tensors = graph.tensors() | {tensor.name: tensor for tensor in graph.inputs}
        self._types: dict[str, TypeProto] | None = None

    def declared(self, name: str) -> ValueInfoProto:
        """The type of a variable that a body reads. Raises _ObstacleError if it is not known."""
        tensor = self.tensors.get(name)
        if tensor is not None and tensor.dtype is not None:
            return _named(value_info(tensor, None))
        if self._types is None:
            inferred = infer_inner(self.graph, {}).graph
            values = (*inferred.input, *inferred.value_info, *inferred.output)
            self._types = {value.name: value.type for value in values}
        found = self._types.get(name, TypeProto())
        if found.WhichOneof("value") is None:
            raise _ObstacleError(f"the type of a tensor that it reads is not known: {name}")
        return ValueInfoProto(name=name, type=found)


def _body(
    around: _Around, node: gs.Node, attribute: AttributeProto, place: str, formal: _Formal
) -> Body:
    graph, proto = around.graph, attribute.g
    reads = sorted(outer_reads(proto))
    constants = [name for name in reads if name in graph.constants]
    captures = [around.declared(name) for name in reads if name not in graph.constants]
    own = [
        _declared(around, value, given, *known)
        for value, given, known in zip(proto.input, formal.values, formal.types, strict=True)
    ]
    model = ModelProto()
    copy_fields(graph.source, model, skip=("graph", "opset_import", "training_info"))
    model.opset_import.extend(graph.import_domains)
    copy_fields(proto, model.graph, skip=("input",))
    for name in constants:
        tensor = model.graph.initializer.add()
        tensor.CopyFrom(_proto(graph.constants[name]))
        tensor.name = name
    model.graph.input.extend((*own, *captures))
    states = {proto.input[i].name: proto.output[o].name for i, o in formal.states.items()}
    if not formal.keeps_shapes:
        _settle(model, states, {value.name for value in proto.input if not _has_shape(value)})
    infer(import_model(model))  # raises where the stages could not work on it
    values = dict(zip((value.name for value in proto.input), formal.values, strict=True))
    values |= {value.name: Value(value.name) for value in captures}
    inputs = tuple(value.name for value in proto.input)
    return Body(
        place,
        _first(node),
        attribute.name,
        model,
        values,
        inputs,
        states,
        frozenset(constants),
    )


def _proto(constant: gs.Constant) -> onnx.TensorProto:
    return constant.proto if isinstance(constant, Constant) else tensor_proto(constant)


def _declared(
    around: _Around, value: ValueInfoProto, given: Value, kind: int | None, shape: Shape | None
) -> ValueInfoProto:
    """The type of a body's own input: what it declares itself, completed by what the operator
    passes."""
    if value.type.WhichOneof("value") not in (None, "tensor_type"):
        return value
    kind = value.type.tensor_type.elem_type or kind
    if kind is None:
        if given.name and given.axis is None:
            return ValueInfoProto(name=value.name, type=around.declared(given.name).type)
        raise _ObstacleError(f"the type of an input is not known: {value.name}")
    own = tensor_type(value.type)[1]
    if own is not None and shape is not None and len(own) == len(shape):
        own = [a if isinstance(a, int) or b is None else b for a, b in zip(own, shape, strict=True)]
    return _named(onnx.helper.make_tensor_value_info(value.name, kind, own or shape))


def _named(value: ValueInfoProto) -> ValueInfoProto:
    """The declaration with names for sizes of which inference, which starts again in the body,
    makes none."""
    for dim in value.type.tensor_type.shape.dim:
        if is_generated(dim.dim_param):
            dim.dim_param = f"around.{dim.dim_param}"
    return value


def _has_shape(value: ValueInfoProto) -> bool:
    return bool(value.type.tensor_type.HasField("shape"))


def _settle(model: ModelProto, states: Mapping[str, str], supposed: set[str]) -> None:
    """Drop the sizes of states that the next iteration does not have again, and the `supposed`
    ones that it is not known to have."""
    inputs = {value.name: value for value in model.graph.input}
    for _ in range(_ROUNDS):
        graph = import_model(model)
        infer(graph)
        results = {tensor.name: tensor.shape for tensor in graph.outputs}
        changed = False
        for name, following in states.items():
            kind = inputs[name].type.tensor_type
            before = tensor_type(inputs[name].type)[1]
            if before is None:
                continue
            after = _kept(before, results.get(following), name in supposed)
            if after != before:
                changed = True
                inputs[name].CopyFrom(
                    onnx.helper.make_tensor_value_info(name, kind.elem_type, after)
                )
        if not changed:
            return
    for name in states:
        inputs[name].type.tensor_type.ClearField("shape")


def _kept(before: Shape, after: Shape | None, supposed: bool) -> Shape | None:
    """The sizes that a state keeps."""
    if after is None:
        return None if supposed else before
    if len(after) != len(before):
        return None
    return [
        old if old == new or (not supposed and not isinstance(new, int)) else None
        for old, new in zip(before, after, strict=True)
    ]


def _type(tensor: gs.Tensor) -> tuple[int | None, Shape | None]:
    if tensor.dtype is None:
        return None, None
    value = _named(value_info(tensor, None))
    return value.type.tensor_type.elem_type, tensor_type(value.type)[1]


def _if(node: gs.Node, body: GraphProto) -> _Formal:
    return _Formal((), (), {}, True)


def _loop(node: gs.Node, body: GraphProto) -> _Formal:
    """Inputs: the number of the iteration, the condition, states. Outputs: the condition, states,
    and what is collected."""
    condition, *states = node.inputs[1:]
    values = [Value(), Value(condition.name), *(Value(tensor.name) for tensor in states)]
    types = [
        (onnx.TensorProto.INT64, list[int | str | None]()),
        (onnx.TensorProto.BOOL, list[int | str | None]()),
        *map(_type, states),
    ]
    return _Formal(values, types, {i: i - 1 for i in range(1, len(states) + 2)}, False)


def _scan(node: gs.Node, body: GraphProto) -> _Formal:
    """Inputs: states, and slices of sequences. Outputs: states, and what is collected."""
    count = len(node.inputs) - int(node.attrs["num_scan_inputs"])
    states, sequences = node.inputs[:count], node.inputs[count:]
    axes, directions = (
        list(node.attrs.get(name, [0] * len(sequences)))
        for name in ("scan_input_axes", "scan_input_directions")
    )
    values, types = [Value(tensor.name) for tensor in states], list(map(_type, states))
    for tensor, axis, direction in zip(sequences, axes, directions, strict=True):
        values.append(Value(tensor.name, int(axis), bool(direction)))
        kind, shape = _type(tensor)
        types.append((kind, None if shape is None else _without(shape, int(axis))))
    return _Formal(values, types, {i: i for i in range(count)}, True)


def _without(shape: Shape, axis: int) -> Shape:
    axis %= len(shape)
    return shape[:axis] + shape[axis + 1 :]


_RULES: dict[str, Callable[[gs.Node, GraphProto], _Formal]] = {
    "If": _if,
    "Loop": _loop,
    "Scan": _scan,
}


# --- back into the graph --------------------------------------------------------------------------


def _own(changed: Changed) -> set[str]:
    """The constants of the body itself. They are those of the model that was imported: an If of the
    body's model with a known condition is its branch there, with the branch's constants."""
    graph = changed.graph.source.graph
    made = {name for node in graph.node if node.op_type == "Constant" for name in node.output}
    return ({tensor.name for tensor in graph.initializer} | made) - changed.body.constants


class _Shared:
    """Gives the new constants of bodies to the main graph, equal ones once."""

    def __init__(self, graph: gs.Graph) -> None:
        self._graph = graph
        self._known: dict[tuple[object, ...], list[gs.Constant]] = defaultdict(list)
        self._sums: dict[str, bytes] = {}
        for constant in used_constants(graph).values():
            self._known[_kind(constant)].append(constant)

    def add(self, body: Body, own: set[str], constant: gs.Constant) -> None:
        """Give the main graph a constant of the body, unless it is the body's `own` or lies around
        it as it is; one that the graph has already gets the name that it has there."""
        changed = not (isinstance(constant, Constant) and constant.untouched)
        if constant.name in body.constants:
            if not changed:
                return
            constant.name = fresh(self._graph, constant.name)
        elif constant.name in own:
            return
        equals = self._known[_kind(constant)]
        for known in equals:
            if known is constant or self._sum(known) == self._sum(constant):
                constant.name = known.name
                self._graph.constants.setdefault(known.name, known)
                return
        equals.append(constant)
        self._graph.constants[constant.name] = constant

    def _sum(self, constant: gs.Constant) -> bytes:
        if constant.name not in self._sums:
            self._sums[constant.name] = hashlib.blake2b(constant.values.tobytes()).digest()
        return self._sums[constant.name]


def _kind(constant: gs.Constant) -> tuple[object, ...]:
    return (str(constant.dtype), *constant.shape)
