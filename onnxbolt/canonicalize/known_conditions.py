"""Replace Ifs whose conditions are known by the branch that these choose.

    If(c){then, else} = then if c is a constant that is true, else if it is one that is false.

Exporters write such Ifs where a module asks for a shape that the model has fixed, or for a flag.
This runs in front of all stages and gives a model again: the nodes of a branch are then nodes of
the main graph like others, and verification knows their tensors by name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import onnx_graphsurgeon as gs
from onnx import GraphProto, ModelProto, NodeProto, helper

from onnxbolt.canonicalize import constant_fold, noops
from onnxbolt.errors import OnnxboltError
from onnxbolt.graph.edit import constant_values, insert
from onnxbolt.graph.exporter import INTERNAL_DOMAIN
from onnxbolt.graph.fields import copy_fields
from onnxbolt.graph.importer import import_model
from onnxbolt.graph.names import fresh
from onnxbolt.graph.scopes import names, rename
from onnxbolt.graph.shapes import infer

_BRANCHES = ("else_branch", "then_branch")  # by the condition


def resolved(model: ModelProto) -> tuple[ModelProto, list[str]]:
    """The model without Ifs of its main graph whose conditions follow from constants and shapes,
    and a line for the report; `model` itself and no line if there are none."""
    count = 0
    while chosen := _chosen(model):
        model = _replaced(model, chosen)
        count += len(chosen)
    lines = [f"known_conditions: {count} (Ifs replaced by the branch that they always take)"]
    return model, lines if count else []


def _chosen(model: ModelProto) -> dict[str, str]:
    """The branch of each If whose condition is known, by the If's first output."""
    if not any(_is_if(node) for node in model.graph.node):
        return {}
    try:
        graph = import_model(model)
        infer(graph)
        _free_captured(graph)
        while noops.run(graph) + constant_fold.run(graph):
            infer(graph)
    except OnnxboltError:  # the stages will say so
        return {}
    found = {}
    for node in graph.nodes:
        condition = constant_values(node.inputs[0]) if _is_if(node.origin) else None
        if condition is not None and condition.size == 1:
            found[_first(node.origin)] = _BRANCHES[bool(condition.reshape(())[()])]
    return found


def _free_captured(graph: gs.Graph) -> None:
    """Let tensors that bodies read be folded: these read a copy, so that the rest is not pinned."""
    for node in list(graph.nodes):
        for tensor in node.outputs:
            if tensor.name in graph.captured and not any(tensor is end for end in graph.outputs):
                copy = gs.Variable(tensor.name, tensor.dtype, tensor.shape)
                tensor.name = fresh(graph, tensor.name)
                insert(graph, "Copy", [tensor], [copy], [node], domain=INTERNAL_DOMAIN)


def _is_if(node: NodeProto | None) -> bool:
    return node is not None and node.op_type == "If" and node.domain in ("", "ai.onnx")


def _first(node: NodeProto) -> str:
    return next(filter(None, node.output), "")


def _replaced(model: ModelProto, chosen: Mapping[str, str]) -> ModelProto:
    """The model with branches, by the first outputs of their Ifs, in place of these."""
    result, graph = ModelProto(), model.graph
    copy_fields(model, result, skip=("graph",))
    copy_fields(graph, result.graph, skip=("node",))
    taken = Counter(names(graph))
    for node in graph.node:
        if not _is_if(node) or _first(node) not in chosen:
            result.graph.node.append(node)
            continue
        branches = {attribute.name: attribute.g for attribute in node.attribute}
        for branch in branches.values():
            taken.subtract(names(branch))
        branch = GraphProto()
        branch.CopyFrom(branches[chosen[_first(node)]])
        _move(branch, node.output, taken, result.graph)
    return result


def _move(
    branch: GraphProto, outputs: Iterable[str], taken: Counter[str], target: GraphProto
) -> None:
    """Append the content of `branch` to `target`, with its results under the names `outputs`, and
    under names that are not in `taken`, which gets them."""
    made = {name for node in branch.node for name in node.output}
    new: dict[str, str] = {}
    copies: list[NodeProto] = []
    for value, output in zip(branch.output, outputs, strict=True):
        if output and value.name in made and value.name not in new:
            new[value.name] = output
        elif output:
            copies.append(helper.make_node("Identity", [value.name], [output], name=output))
    for name in dict.fromkeys(names(branch)):
        if name and name not in new:
            new[name] = _free(name, taken)
    renamed = [*branch.node, *copies]
    rename(renamed, new)
    for entry in (*branch.initializer, *branch.value_info):
        entry.name = new.get(entry.name, entry.name)
    for sparse in branch.sparse_initializer:
        sparse.values.name = new.get(sparse.values.name, sparse.values.name)
    for annotation in branch.quantization_annotation:
        annotation.tensor_name = new.get(annotation.tensor_name, annotation.tensor_name)
    target.node.extend(renamed)
    for field in ("initializer", "sparse_initializer", "value_info", "quantization_annotation"):
        getattr(target, field).extend(getattr(branch, field))


def _free(name: str, taken: Counter[str]) -> str:
    """`name`, or `name__2`, `name__3`, .. if that is taken."""
    free, count = name, 1
    while taken[free] > 0:
        count += 1
        free = f"{name}__{count}"
    taken[free] += 1
    return free
