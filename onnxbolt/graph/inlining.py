"""Replaces calls of a model's own functions by the functions' bodies, as ONNX Runtime does, so that
fusing continues across them."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import onnx.inliner
from onnx import FunctionProto, ModelProto, NodeProto, TensorProto

from onnxbolt.errors import InputError
from onnxbolt.graph import contrib
from onnxbolt.graph.exporter import FUSED_DOMAIN
from onnxbolt.graph.fields import copy_fields
from onnxbolt.graph.scopes import rename, subgraphs

_KEPT = (FUSED_DOMAIN, contrib.DOMAIN)  # ours, and those for which ONNX Runtime has kernels
_STANDARD = ("", "ai.onnx")
MOST_NODES = 1_000_000


def inlined(model: ModelProto) -> ModelProto:
    """The model without calls of its functions; `model` itself if there are none, or if a function
    has another opset than the model.

    Raises InputError if inlining would give more than MOST_NODES nodes: each level of functions
    can double their number.
    """
    if not calls(model):
        return model
    if (count := _nodes_inlined(model)) > MOST_NODES:
        raise InputError(
            f"the model's functions expand to {count} nodes, more than the limit of"
            f" {MOST_NODES}: export it with less nesting"
        )
    skeleton = _without_data(model)
    kept = [(function.domain, function.name) for function in model.functions if _is_kept(function)]
    _give_defaults(skeleton)
    try:
        result = onnx.inliner.inline_selected_functions(skeleton, kept, exclude=True)
    except RuntimeError:  # the inliner converts no opsets
        return model
    return _with_data(result, model)


def unfused(model: ModelProto, names: Collection[str]) -> ModelProto:
    """The model with the function's body in place of each fused node of one of these names, and
    without the functions that no node calls any more."""
    skeleton, made = _without_data(model), list[tuple[str, str]]()
    functions = {function.name: function for function in _fused_functions(model)}
    for node in with_inner(skeleton.graph.node):
        if node.domain == FUSED_DOMAIN and node.name in names:
            own = _own_function(functions[node.op_type], node, len(made))
            skeleton.functions.append(own)
            made.append((FUSED_DOMAIN, own.name))
            node.op_type = own.name
    result = onnx.inliner.inline_selected_functions(skeleton, made, exclude=False)
    called = {node.op_type for node in with_inner(result.graph.node) if node.domain == FUSED_DOMAIN}
    kept = [f for f in result.functions if f.domain != FUSED_DOMAIN or f.name in called]
    del result.functions[:]
    result.functions.extend(kept)
    return _with_data(result, model)


def _fused_functions(model: ModelProto) -> list[FunctionProto]:
    return [function for function in model.functions if function.domain == FUSED_DOMAIN]


def _own_function(function: FunctionProto, node: NodeProto, number: int) -> FunctionProto:
    """A copy of the function for one node, by whose name its inner tensors and nodes are called:
    they must not have the name of a tensor of the source model, which verification would take them
    for."""
    own = FunctionProto()
    own.CopyFrom(function)
    own.name = f"{function.name}__{number}"
    ends = {*own.input, *own.output, ""}
    inner = (name for each in with_inner(own.node) for name in each.output if name not in ends)
    rename(own.node, {name: f"{node.name}/{name}" for name in inner})
    for place, each in enumerate(own.node):
        each.name = f"{node.name}/{each.op_type}{place}"
    return own


def _without_data(model: ModelProto) -> ModelProto:
    """A copy for the inliner, which needs only the initializers' names, so that no new tensor gets
    one of them."""
    skeleton = ModelProto()
    copy_fields(model, skeleton, skip=("graph",))
    copy_fields(model.graph, skeleton.graph, skip=("initializer",))
    skeleton.graph.initializer.extend(
        TensorProto(name=tensor.name) for tensor in model.graph.initializer
    )
    return skeleton


def _with_data(result: ModelProto, model: ModelProto) -> ModelProto:
    """The inliner's result with the initializers of the model."""
    del result.graph.initializer[:]
    result.graph.initializer.extend(model.graph.initializer)
    return result


def calls(model: ModelProto) -> list[FunctionProto]:
    """The functions whose calls could be replaced by their bodies."""
    return [function for function in model.functions if not _is_kept(function)]


def _is_kept(function: FunctionProto) -> bool:
    """True if ONNX Runtime has a kernel for the function, which it prefers to the body."""
    return function.domain in _KEPT or (
        function.domain in _STANDARD and onnx.defs.has(function.name)
    )


def _nodes_inlined(model: ModelProto) -> int:
    """The number of nodes of the main graph after inlining; 0 if a function calls itself, which the
    inliner refuses."""
    bodies = {
        (f.domain, f.name, f.overload): [_callee(node) for node in with_inner(f.node)]
        for f in calls(model)
    }
    sizes: dict[tuple[str, str, str], int] = {}
    for function in bodies:
        open_calls = [function]  # a stack, since recursion has limits
        while open_calls:
            inner = dict.fromkeys(
                callee
                for callee in bodies[open_calls[-1]]
                if callee in bodies and callee not in sizes
            )
            if not inner:
                done = open_calls.pop()
                sizes[done] = sum(sizes.get(callee, 1) for callee in bodies[done])
            elif len(open_calls) > len(bodies):
                return 0
            else:
                open_calls.append(next(iter(inner)))
    return sum(sizes.get(_callee(node), 1) for node in with_inner(model.graph.node))


def _callee(node: NodeProto) -> tuple[str, str, str]:
    return node.domain, node.op_type, node.overload


def _give_defaults(model: ModelProto) -> None:
    """Give calls the attributes that they leave to their function's defaults, which onnx's inliner
    does not know."""
    defaults = {
        (function.domain, function.name, function.overload): function.attribute_proto
        for function in model.functions
    }
    for nodes in (model.graph.node, *(function.node for function in model.functions)):
        for node in with_inner(nodes):
            given = {attribute.name for attribute in node.attribute}
            missing = defaults.get((node.domain, node.op_type, node.overload), ())
            node.attribute.extend(attribute for attribute in missing if attribute.name not in given)


def with_inner(nodes: Iterable[NodeProto]) -> Iterable[NodeProto]:
    """The nodes and the nodes of their subgraphs."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for graph in subgraphs(attribute):
                yield from with_inner(graph.node)


def left(model: ModelProto) -> list[str]:
    """A line for the report if some functions are still called."""
    names = ", ".join(sorted({function.name for function in calls(model)}))
    return (
        [
            "functions not inlined, because their opset is not the model's (nothing inside"
            f" them is fused): {names}"
        ]
        if names
        else []
    )
