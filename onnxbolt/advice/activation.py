"""Cheaper activations: HardSwish or ReLU instead of functions of exponentials (Bolt, section 3.3,
first principle)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import onnx_graphsurgeon as gs

from onnxbolt.advice.change import Change, Edit, Obstacle, counted
from onnxbolt.advice.draft import Draft
from onnxbolt.canonicalize import activations
from onnxbolt.domains import INTERNAL
from onnxbolt.epilogues import EPILOGUES
from onnxbolt.graph.edit import add_variable, insert, pinned, remove

_CHEAPER = ("HardSwish", "Relu")
_LEAST_COST = 5  # instructions per element: functions of exponentials take more
_HARD_SWISH_OPSET = 14


@dataclass(frozen=True)
class Activation(Edit):
    """All activations of one kind, as another."""

    kind: ClassVar[str] = "activation"

    before: str  # names of epilogue steps
    to: str
    outputs: tuple[str, ...]  # the activations' results
    places: tuple[str, ...]

    @classmethod
    def find(cls, draft: Draft) -> Iterator[Change | Obstacle]:
        own = Draft(draft.source)
        activations.run(own.graph)
        found = defaultdict[str, list[gs.Node]](list)
        for node in own.graph.nodes:
            name = step_of(node)
            if name and _is_costly(name) and not pinned(own.graph, node.outputs[0]):
                found[name].append(node)
        for name, nodes in found.items():
            for to in _CHEAPER:
                outputs = tuple(node.outputs[0].name for node in nodes)
                places = dict.fromkeys(source for node in nodes for source in node.provenance)
                yield cls(name, to, outputs, tuple(places))

    @property
    def key(self) -> str:
        return f"{self.kind}/{self.before}/{self.to}"

    @property
    def words(self) -> str:
        return f"use {self.to} instead of {self.before} in {counted(len(self.outputs), 'place')}"

    @property
    def nodes(self) -> tuple[str, ...]:
        return self.places

    @property
    def results(self) -> str:
        return "those of another function"

    @property
    def needs_retraining(self) -> bool:
        return True

    def edit(self, draft: Draft) -> None:
        graph, wanted = draft.graph, set(self.outputs)
        activations.run(graph)
        for node in list(graph.nodes):
            if node.outputs and node.outputs[0].name in wanted:
                activate(graph, self.to, node.inputs[0], node.outputs[0], node)
        activations.restore(graph)


def step_of(node: gs.Node) -> str:
    """The epilogue step that a node is by itself, an activation; empty if it is none."""
    if node.domain == INTERNAL:
        return str(node.op) if node.op in EPILOGUES and EPILOGUES[node.op].activation else ""
    if node.domain:
        return ""
    steps = (step for step in EPILOGUES.values() if step.activation)
    return next((step.name for step in steps if node.op in step.functions), "")


def activate(graph: gs.Graph, step: str, x: gs.Tensor, y: gs.Tensor, at: gs.Node) -> None:
    """Compute y as the activation `step` of x, instead of by the node `at`."""
    position = next(i for i, node in enumerate(graph.nodes) if node is at)
    behind = graph.nodes[position + 1] if position + 1 < len(graph.nodes) else None
    remove(graph, [at])
    if step == "HardSwish" and graph.opset < _HARD_SWISH_OPSET:
        gate = add_variable(graph, f"{y.name}_gate", y)
        insert(graph, "HardSigmoid", [x], [gate], [at], {"alpha": 1 / 6, "beta": 0.5}, at=behind)
        insert(graph, "Mul", [x, gate], [y], [at], at=behind)
    else:
        insert(graph, step, [x], [y], [at], at=behind)


def _is_costly(step: str) -> bool:
    """True for an activation that takes an exponential function and does not bound its result, as
    gates do."""
    found = EPILOGUES[step]
    return found.cost > _LEAST_COST and not found.bounding
