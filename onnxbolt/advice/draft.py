"""A copy of a model's main graph in which a change is tried."""

from __future__ import annotations

import onnx
import onnx_graphsurgeon as gs
from onnx import ModelProto

from onnxbolt.errors import InputError
from onnxbolt.graph import stale, weights
from onnxbolt.graph.edit import Constant
from onnxbolt.graph.exporter import export_apart, used_variables
from onnxbolt.graph.importer import import_model
from onnxbolt.graph.shapes import infer
from onnxbolt.graph.skeleton import inferred_types
from onnxbolt.options import Shapes


class Draft:
    """The graph of `source`, with types and shapes as far as inference knows them. Changes edit it;
    `source` stays as it is; `point` has the shapes of graph inputs at which it is planned.

    Raises InputError and LiftError as `import_model` and `infer` do.
    """

    def __init__(self, source: ModelProto, point: Shapes | None = None) -> None:
        self.source, self.point = source, point or {}
        self.graph = import_model(source)
        infer(self.graph)
        self._tensors: dict[str, gs.Tensor] = self.graph.tensors()

    def tensor(self, name: str) -> gs.Tensor:
        """The tensor of this name of the source."""
        return self._tensors[name]

    def node(self, output: str) -> gs.Node:
        """The node that computes the tensor `output` of the source."""
        return self._tensors[output].inputs[0]

    def model(self) -> ModelProto:
        """The changed model; large weights that no change touched stay in their files. Raises
        InputError if the graph contradicts itself."""
        model, large = export_apart(self.graph)
        for tensor in model.graph.initializer:
            if (constant := large.get(tensor.name)) is None:
                continue
            if isinstance(constant, Constant) and constant.untouched:
                tensor.CopyFrom(constant.proto)
                tensor.name = constant.name
            else:
                tensor.raw_data = bytes(weights.raw(tensor, large))
        self._check(model)
        return model

    def _check(self, model: ModelProto) -> None:
        wrong = stale.contradictions(model)
        try:
            # inference leaves out tensors of which it knows nothing, such as the result of a
            # product whose operands do not fit
            left = used_variables(self.graph).keys() & _with_shapes(self.source)
            wrong += [f"{name} has no shape" for name in sorted(left - _with_shapes(model))]
        except (onnx.shape_inference.InferenceError, onnx.checker.ValidationError) as error:
            wrong.append(" ".join(str(error).split()))
        if wrong:
            raise InputError(f"the changed model contradicts itself: {wrong[0]}")


def _with_shapes(model: ModelProto) -> set[str]:
    """The tensors whose shapes inference finds."""
    types = inferred_types(model)
    return {name for name, kind in types.items() if kind.tensor_type.HasField("shape")}
