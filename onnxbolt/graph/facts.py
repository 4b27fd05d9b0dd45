"""Facts of a written model by which `onnxbolt.runtime` chooses how to run it: entries of the
model's metadata.

ONNX Runtime's CUDA provider may search for the fastest algorithm of each convolution that is left
to it, for every new size of its input again. The kind of search is chosen by whether these sizes
vary. Whether a run can be captured in a CUDA graph is asked before the session is made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from onnx import ModelProto

from onnxbolt.graph.capture import obstacle
from onnxbolt.graph.convolutions import convolutions
from onnxbolt.graph.importer import tensor_type
from onnxbolt.graph.sizes import Size
from onnxbolt.names import (
    CONVOLUTIONS,
    CUDA_GRAPH,
    FIXED,
    IMPOSSIBLE,
    INPUTS,
    NONE,
    OPEN,
    POSSIBLE,
)
from onnxbolt.terminal import one_line


def facts_of(
    model: ModelProto, shapes: Mapping[str, Sequence[Size] | None] | None = None
) -> dict[str, str]:
    """The entries of a written model's metadata. `shapes` are those of tensors, as far as they are
    known; without them, those that the model declares."""
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = {
        value.name: tensor_type(value.type)[1]
        for value in model.graph.input
        if value.name not in weights
    }
    if shapes is None:
        shapes = inputs | {
            value.name: tensor_type(value.type)[1] for value in model.graph.value_info
        }
    left = [shapes.get(node.input[0]) for node in convolutions(model)]
    reason = obstacle(model)
    return {
        CONVOLUTIONS: _sizes_of(left) if left else NONE,
        INPUTS: _sizes_of(inputs.values()),
        CUDA_GRAPH: f"{IMPOSSIBLE}{one_line(reason)}" if reason else POSSIBLE,
    }


def _sizes_of(shapes: Iterable[Sequence[Size] | None]) -> str:
    known = (s is not None and all(isinstance(size, int) for size in s) for s in shapes)
    return FIXED if all(known) else OPEN
