"""1x1 convolutions that cost almost nothing, for accuracy (Bolt, section 3.3, second principle).

A 1x1 convolution as wide as the layer before it, with an activation of the same kind, reads that
layer's result while it is on the chip (docs/decisions/conv-chains.md).
"""

from __future__ import annotations

import math
import zlib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import onnx_graphsurgeon as gs
from onnx import NodeProto

from onnxbolt.advice.activation import step_of
from onnxbolt.advice.change import Change, Edit, Obstacle, counted
from onnxbolt.advice.draft import Draft
from onnxbolt.canonicalize import activations
from onnxbolt.domains import INTERNAL
from onnxbolt.epilogues import EPILOGUES
from onnxbolt.graph.edit import (
    Node,
    add_constant,
    add_variable,
    insert,
    pinned,
    replace_uses,
    sole_use,
)
from onnxbolt.graph.names import fresh

_BETWEEN = ("BatchNormalization", "Add", "Mul")  # nodes between a convolution and its activation
_MOST_BETWEEN = 3


@dataclass(frozen=True)
class Deepening(Edit):
    """A 1x1 convolution and an activation behind each of some layers, with seeded weights."""

    kind: ClassVar[str] = "deepening"

    layers: tuple[str, ...]  # the layers' results, behind their activations
    places: tuple[str, ...]
    sizes: tuple[int, ...]  # channels, and pixels as far as they are known

    @classmethod
    def find(cls, draft: Draft) -> Iterator[Change | Obstacle]:
        """The layers of equal sizes together, since their convolutions cost the same."""
        own = Draft(draft.source)
        activations.run(own.graph)
        found = defaultdict[tuple[int, ...], list[tuple[str, gs.Node]]](list)
        for node in own.graph.nodes:
            layer = _layer(own.graph, node)
            if layer is not None:
                result = layer.outputs[0]
                size = tuple(s for s in result.shape[1:] if isinstance(s, int))
                kernel = tuple(int(s) for s in node.inputs[1].shape)
                found[*size, *kernel].append((result.name, node))
        for size, layers in found.items():
            places = dict.fromkeys(name for _, node in layers for name in node.provenance)
            channels = layers[0][1].inputs[1].shape[0]
            yield cls(tuple(name for name, _ in layers), tuple(places), (int(channels), *size[1:3]))

    def with_layers(self, other: Deepening) -> Deepening:
        """Both changes as one."""
        return replace(
            self, layers=(*self.layers, *other.layers), places=(*self.places, *other.places)
        )

    @property
    def key(self) -> str:
        return f"{self.kind}/{'+'.join(self.layers)}"

    @property
    def words(self) -> str:
        return (
            "add a 1x1 convolution with its activation behind"
            f" {counted(len(self.layers), 'layer')}, for accuracy"
        )

    @property
    def nodes(self) -> tuple[str, ...]:
        return self.places

    @property
    def results(self) -> str:
        return "those of further layers"

    @property
    def needs_retraining(self) -> bool:
        return True

    def edit(self, draft: Draft) -> None:
        graph = draft.graph
        activations.run(graph)
        for name in self.layers:
            _deepen(graph, draft.tensor(name))
        activations.restore(graph)


def _layer(graph: gs.Graph, node: gs.Node) -> gs.Node | None:
    """The activation behind a convolution of a window; None if it has none, or ends the graph."""
    if node.domain or node.op != "Conv" or not isinstance(node.inputs[1], gs.Constant):
        return None
    weight = node.inputs[1]
    if (
        len(weight.shape) != 4
        or tuple(weight.shape[2:]) == (1, 1)
        or node.attrs.get("group", 1) > 1
    ):
        return None
    behind = sole_use(graph, node.outputs[0])
    for _ in range(_MOST_BETWEEN):
        if behind is None or _activates(behind):
            break
        if behind.op not in _BETWEEN or behind.domain:
            return None
        behind = sole_use(graph, behind.outputs[0])
    if behind is None or not _activates(behind) or pinned(graph, behind.outputs[0]):
        return None
    return behind if behind.outputs[0].shape is not None else None


def _activates(node: gs.Node) -> bool:
    """True for an activation that is no gate."""
    step = step_of(node)
    return bool(step) and not EPILOGUES[step].bounding


def _deepen(graph: gs.Graph, x: gs.Tensor) -> None:
    """Put a 1x1 convolution and the activation that computes x between x and whoever reads it."""
    activation, channels = x.inputs[0], int(x.shape[1])
    readers = list(x.outputs)
    seed = np.random.default_rng(zlib.crc32(x.name.encode()))
    weight = seed.standard_normal((channels, channels, 1, 1), np.float32)
    weight *= math.sqrt(2 / channels)
    constants = [
        add_constant(graph, f"{x.name}_deeper.{name}", values.astype(x.dtype))
        for name, values in (("weight", weight), ("bias", np.zeros(channels, np.float32)))
    ]
    convolved, y = (add_variable(graph, f"{x.name}_{end}", x) for end in ("deeper", "deepened"))
    replace_uses(x, y)
    at = next((node for node in graph.nodes if any(node is reader for reader in readers)), None)
    attrs = {"kernel_shape": [1, 1], "group": 1}
    insert(graph, "Conv", [x, *constants], [convolved], [activation], attrs, at=at)
    copy = _copy(graph, activation, convolved, y)
    place = next((i for i, node in enumerate(graph.nodes) if node is at), len(graph.nodes))
    graph.nodes.insert(place, copy)


def _copy(graph: gs.Graph, activation: gs.Node, x: gs.Tensor, y: gs.Tensor) -> gs.Node:
    """The same activation of x."""
    name = fresh(graph, f"{y.name}/{activation.op}")
    inputs = [x, *activation.inputs[1:]]
    copy = Node(activation.op, name, activation.attrs, inputs, [y], activation.domain)
    if activation.domain == INTERNAL:
        expansion = tuple(_renamed(graph, proto) for proto in activation.expansion)
        copy.expansion, copy.recognition = expansion, activation.recognition
    return copy


def _renamed(graph: gs.Graph, node: NodeProto) -> NodeProto:
    copy = NodeProto()
    copy.CopyFrom(node)
    copy.name = fresh(graph, node.name or node.op_type)
    return copy
