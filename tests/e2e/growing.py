"""A graph that grows by moves; ONNX's own inference tells the shapes, and a move that does not
fit is taken back."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, helper

from tests.support import Net

BATCH = 2  # a size that some of the models leave symbolic
LARGEST = 4000  # elements of a tensor
SIZES = (3, 5, 6, 8)  # few, so that axes of different meaning are often of one size
OPSETS = (11, 12, 13, 14, 15, 16, 17, 17, 18, 19, 20, 21, 22, 23, 24)
Shape = tuple[int, ...]


class UnfitError(Exception):
    """The move does not fit the tensors that were drawn."""


class GrowingGraph:
    """The model in the making: `shapes` are those of the tensors that moves may read, in the
    order in which they were made."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.symbolic = self.draw.random() < 0.2
        self.size = self.draw.choice((4, 8, 14, 22))
        self.shapes: dict[str, Shape] = {}
        image = (
            self.draw.choice((1, 2, 3, 5, 6, 8, 16)),
            self.draw.choice(SIZES),
            self.draw.choice(SIZES),
        )
        rows = (self.draw.choice((1, *SIZES)), self.draw.choice((*SIZES, 65)))
        for name, rest in zip(
            ("a", "b"), self.draw.choice(((image,), (image,), (rows,), (image, rows))), strict=False
        ):
            self.shapes[name] = (BATCH, *rest)
        batch = "N" if self.symbolic else BATCH
        self.net = Net(
            {name: (batch, *shape[1:]) for name, shape in self.shapes.items()},
            opset=self.draw.choice(OPSETS),
            seed=seed,
        )

    def move(self, moves: Mapping[Callable[[GrowingGraph], None], int]) -> None:
        """One of the moves, by their weights, or nothing where it does not fit."""
        before = len(self.net.nodes), len(self.net.initializers), dict(self.shapes)
        try:
            self.draw.choices(list(moves), list(moves.values()))[0](self)
        except UnfitError:
            del self.net.nodes[before[0] :], self.net.initializers[before[1] :]
            self.shapes = before[2]

    def model(self) -> ModelProto:
        """Outputs are what nothing reads, and sometimes a tensor or two in the middle."""
        written = [name for node in self.net.nodes for name in node.output]
        read = {name for node in self.net.nodes for name in node.input}
        middle = [name for name in written if name in read and name in self.shapes]
        extra = self.draw.sample(middle, min(len(middle), self.draw.choice((0, 0, 1, 2))))
        model = self.net.model(*(name for name in written if name not in read), *extra)
        if self.draw.random() < 0.15:
            for node in model.graph.node:
                node.ClearField("name")
        return model

    # moves are made of these

    def tensor(self, *ranks: int, fits: Callable[[Shape], bool] = lambda shape: True) -> str:
        """One of the tensors, more likely a late one."""
        found = [
            name
            for name, shape in self.shapes.items()
            if len(shape) in (ranks or (2, 3, 4, 5)) and fits(shape)
        ]
        if not found:
            raise UnfitError
        return self.draw.choice(found[-5:] if self.draw.random() < 0.8 else found)

    def add(self, op: str, *inputs: str, outputs: int = 1, **attributes: Any) -> str:
        """A node; what it gives may be read from now on."""
        first = self.net.node(op, *inputs, outputs=outputs, **attributes)
        node = self.net.nodes[-1]
        constants = {t.name: t for t in self.net.initializers}
        types = {
            name: (
                _type(constants[name].dims, constants[name].data_type)
                if name in constants
                else _type(self.shapes[name])
            )
            for name in inputs
            if name
        }
        try:
            schema = onnx.defs.get_schema(op, self.net.opset)
            data = {name: constants[name] for name in inputs if name in constants}
            opset = [helper.make_opsetid("", self.net.opset)]
            inferred = onnx.shape_inference.infer_node_outputs(
                schema, node, types, data, opset_imports=opset
            )
        except (onnx.shape_inference.InferenceError, onnx.defs.SchemaError) as error:
            raise UnfitError from error
        for name, found in inferred.items():
            shape = tuple(dim.dim_value for dim in found.tensor_type.shape.dim)
            if not shape or min(shape) < 1 or np.prod(shape) > LARGEST or shape[0] != BATCH:
                raise UnfitError
            self.shapes[name] = shape
        return first

    def sizes(self, values: Sequence[int]) -> str:
        return self.net.const(list(values), np.int64)

    def axes(self, op: str, x: str, axes: list[int], since: int = 13, **attributes: Any) -> str:
        """An op whose axes are an attribute in old opsets and an input in newer ones."""
        if self.net.opset < since:
            return self.add(op, x, axes=axes, **attributes)
        return self.add(op, x, self.sizes(axes), **attributes)

    def inner_axis(self, shape: Shape) -> int:
        return self.draw.randrange(1, len(shape))


def _type(shape: Sequence[int], kind: int = TensorProto.FLOAT) -> onnx.TypeProto:
    return helper.make_tensor_type_proto(kind, list(shape))
