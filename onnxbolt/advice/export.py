"""Graphs that exporters write worse than they could: sizes computed at run time, layers in training
mode."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_graphsurgeon as gs
from onnx import ModelProto, numpy_helper

from onnxbolt.advice.change import Change, Edit, Obstacle, counted
from onnxbolt.advice.draft import Draft
from onnxbolt.graph.edit import (
    constant_integers,
    constant_values,
    prune,
    remove,
    replace_uses,
)
from onnxbolt.graph.importer import import_model
from onnxbolt.graph.lift import default_opset
from onnxbolt.graph.names import fresh
from onnxbolt.graph.shapes import Shape, infer_at
from onnxbolt.graph.sizes import Sizes, filled
from onnxbolt.graph.symbols import is_generated

# sizes for open dimensions: a size that is the same for all of them is constant
_POINTS = (Sizes(2, (64, 96), 32), Sizes(3, (128, 160), 48), Sizes(5, (352, 288), 17))


@dataclass(frozen=True)
class ComputedShapes(Change):
    """Reshapes whose targets are computed in a way that hides their sizes from inference, although
    at most one of them varies, with constant targets."""

    kind: ClassVar[str] = "export"

    targets: tuple[tuple[str, tuple[int, ...]], ...]  # by the Reshapes' outputs
    places: tuple[str, ...]
    opset: int  # the source's

    @classmethod
    def find(cls, draft: Draft) -> Iterator[Change | Obstacle]:
        written = {node.output[0] for node in draft.source.graph.node if node.op_type == "Reshape"}
        nodes = [
            node
            for node in draft.graph.nodes
            if node.op == "Reshape" and node.outputs[0].name in written and not node.domain
            if constant_integers(node, 1) is None and not _is_known(node.outputs[0])
            if not node.attrs.get("allowzero", 0)  # 0 would be a size then
        ]
        if not nodes:
            return
        inputs = {tensor.name: tensor.shape for tensor in draft.graph.inputs}
        points = infer_at(draft.graph, [filled(inputs, sizes) for sizes in _POINTS])
        found = {
            node.outputs[0].name: target
            for node in nodes
            if (
                target := _constant(
                    [point.get(node.inputs[0].name) for point in points],
                    [point.get(node.outputs[0].name) for point in points],
                )
            )
        }
        if found:
            kept = (node for node in nodes if node.outputs[0].name in found)
            places = dict.fromkeys(name for node in kept for name in node.provenance)
            yield cls(tuple(found.items()), tuple(places), default_opset(draft.source) or 0)

    @property
    def key(self) -> str:
        return f"{self.kind}/shapes"

    @property
    def words(self) -> str:
        return (
            f"give {counted(len(self.targets), 'Reshape')} constant targets, with 0 or -1 for what"
            " varies:"
            f" export with a newer opset than {self.opset}, or write sizes of layers as numbers"
        )

    @property
    def nodes(self) -> tuple[str, ...]:
        return self.places

    def applied(self, model: ModelProto) -> ModelProto:
        """The targets are replaced before operators are lifted, which needs ranks."""
        result, targets = ModelProto(), dict(self.targets)
        result.CopyFrom(model)
        graph = import_model(model)
        for node in result.graph.node:
            if node.op_type == "Reshape" and node.output[0] in targets:
                name = fresh(graph, f"{node.output[0]}_shape")
                values = np.array(targets[node.output[0]], np.int64)
                result.graph.initializer.append(numpy_helper.from_array(values, name))
                node.input[1] = name
        draft = Draft(result)
        prune(draft.graph)  # the nodes that computed the targets
        return draft.model()


def _is_known(tensor: gs.Tensor) -> bool:
    """True if inference knows each size, as a number or by a name of the model."""
    return tensor.shape is not None and not any(
        size is None or is_generated(size) for size in tensor.shape
    )


def _constant(
    before: Sequence[Shape | None], behind: Sequence[Shape | None]
) -> tuple[int, ...] | None:
    """The target of a Reshape with operands and results of these shapes: 0 for a size that it
    keeps, -1 for one that varies otherwise; None if several do."""
    if any(shape is None for shape in behind) or len({len(shape or ()) for shape in behind}) > 1:
        return None
    target = []
    for axis, sizes in enumerate(zip(*filter(None, behind), strict=True)):
        if isinstance(sizes[0], int) and len(set(sizes)) == 1:
            target.append(sizes[0])
        else:
            kept = [shape[axis] if shape and axis < len(shape) else None for shape in before]
            target.append(0 if kept == list(sizes) else -1)
    empty = any(0 in shape for shape in behind if shape)
    return None if empty or target.count(-1) > 1 else tuple(target)


@dataclass(frozen=True)
class TrainingMode(Edit):
    """BatchNormalizations and Dropouts in training mode, as they are in inference."""

    kind: ClassVar[str] = "export"

    outputs: tuple[str, ...]
    places: tuple[str, ...]

    @classmethod
    def find(cls, draft: Draft) -> Iterator[Change | Obstacle]:
        nodes = [node for node in draft.graph.nodes if _trains(node)]
        if nodes:
            places = dict.fromkeys(name for node in nodes for name in node.provenance)
            yield cls(tuple(node.outputs[0].name for node in nodes), tuple(places))

    @property
    def key(self) -> str:
        return f"{self.kind}/training"

    @property
    def words(self) -> str:
        return (
            "export in inference mode, in PyTorch after model.eval():"
            f" {counted(len(self.outputs), 'layer')} in training mode, whose results depend on the"
            " other samples or on chance"
        )

    @property
    def nodes(self) -> tuple[str, ...]:
        return self.places

    @property
    def results(self) -> str:
        return "those of inference"

    def edit(self, draft: Draft) -> None:
        for output in self.outputs:
            node = draft.node(output)
            if node.op == "BatchNormalization":
                node.attrs["training_mode"] = 0
                node.origin = None
                node.outputs = node.outputs[:1]
            else:
                replace_uses(node.outputs[0], node.inputs[0])
                remove(draft.graph, [node])


def _trains(node: gs.Node) -> bool:
    if node.domain or any(t.name and t.outputs for t in node.outputs[1:]):
        return False
    if node.op == "BatchNormalization":
        return bool(node.attrs.get("training_mode", 0))
    mode = (
        constant_values(node.inputs[2]) if node.op == "Dropout" and len(node.inputs) > 2 else None
    )
    return mode is not None and bool(mode.all())
