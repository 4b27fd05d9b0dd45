"""Values of the small tensors that sizes are computed from, for inputs whose sizes are numbers.

onnx's inference with data propagation knows sums, products and parts of shapes. Exporters compute
sizes by other operators as well: Range for a mask's positions, Where(Equal(..)) for the sizes of an
Expand (PyTorch's -1), Mod and Ceil for padding to whole windows.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, numpy_helper

from onnxbolt.graph.skeleton import LARGE

if TYPE_CHECKING:
    from onnx.reference import ReferenceEvaluator

# results of these are larger than their operands: they are evaluated where they are known to be
# small
_GROWING = frozenset({"ConstantOfShape", "Expand", "Range", "Tile"})
_OPERATORS = _GROWING | {
    *("Abs", "Add", "And", "Cast", "Ceil", "Clip", "Concat", "Constant", "CumSum", "Div", "Equal"),
    *("Flatten", "Floor", "Gather", "GatherElements", "GatherND", "Greater", "GreaterOrEqual"),
    *("Identity", "Less", "LessOrEqual", "Max", "Min", "Mod", "Mul", "Neg", "Not", "Or", "Pow"),
    *("Reciprocal", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceSum", "Reshape", "Round"),
    *("ScatterElements", "ScatterND", "Shape", "Sign", "Size", "Slice", "Split", "Sqrt"),
    *("Squeeze", "Sub", "Transpose", "Unsqueeze", "Where", "Xor"),
}


def evaluate(
    model: ModelProto, shapes: Mapping[str, Sequence[int | str | None]]
) -> dict[str, np.ndarray]:
    """Replace nodes of `model` by initializers with their values, as far as these follow from its
    other initializers of up to LARGE elements and from `shapes`; returns the values by name."""
    graph = model.graph
    opset = max((e.version for e in model.opset_import if e.domain in ("", "ai.onnx")), default=1)
    known = {
        tensor.name: numpy_helper.to_array(tensor)
        for tensor in graph.initializer
        if math.prod(tensor.dims) <= LARGE
    }
    written = {value.name for value in graph.output}
    left, found = list[NodeProto](), dict[str, np.ndarray]()
    for node in graph.node:
        results = _results(node, known, shapes, opset)
        if results is None or written & results.keys():
            left.append(node)
        else:
            known |= results
            found |= results
    del graph.node[:]
    graph.node.extend(left)
    graph.initializer.extend(numpy_helper.from_array(v, name) for name, v in found.items())
    return found


def _results(
    node: NodeProto,
    known: Mapping[str, np.ndarray],
    shapes: Mapping[str, Sequence[int | str | None]],
    opset: int,
) -> dict[str, np.ndarray] | None:
    """The node's outputs by name; None unless all are known, and small numbers."""
    outputs = [name for name in node.output if name]
    if node.domain not in ("", "ai.onnx") or node.op_type not in _OPERATORS:
        return None
    if node.op_type in _GROWING and not all(_is_small(shapes.get(name)) for name in outputs):
        return None
    if node.op_type in ("Shape", "Size"):
        return _of_shape(node, shapes.get(node.input[0]))
    inputs = {name: known[name] for name in node.input if name in known}
    if any(name and name not in inputs for name in node.input):
        return None
    try:
        with np.errstate(all="ignore"):
            values = _evaluator(node.SerializeToString(), opset).run(None, inputs)
    except Exception:  # the evaluator cannot compute it: its value stays unknown
        return None
    if not all(map(_is_value, values)):
        return None
    return {name: np.asarray(v) for name, v in zip(outputs, values, strict=True)}


def _is_value(result: object) -> bool:
    """True for numbers, few enough."""
    return (
        isinstance(result, np.ndarray | np.generic)
        and result.dtype.kind in "biuf"
        and result.size <= LARGE
    )


def _is_small(shape: Sequence[int | str | None] | None) -> bool:
    sizes = [size for size in shape or () if isinstance(size, int)]
    return shape is not None and len(sizes) == len(shape) and math.prod(sizes) <= LARGE


def _of_shape(
    node: NodeProto, shape: Sequence[int | str | None] | None
) -> dict[str, np.ndarray] | None:
    """The result of a Shape or a Size node; None unless all sizes in it are known."""
    if shape is None:
        return None
    attributes = {a.name: a.i for a in node.attribute}
    part = shape[attributes.get("start", 0) : attributes.get("end", len(shape))]
    sizes = [size for size in part if isinstance(size, int)]
    if len(sizes) < len(part):
        return None
    value = math.prod(sizes) if node.op_type == "Size" else sizes
    return {node.output[0]: np.array(value, np.int64)}


@functools.lru_cache(maxsize=4096)
def _evaluator(node: bytes, opset: int) -> ReferenceEvaluator:
    """For one node; the same nodes are evaluated for each of a plan's points."""
    from onnx.reference import ReferenceEvaluator

    proto = NodeProto.FromString(node)
    inputs, outputs = (
        [onnx.ValueInfoProto(name=name) for name in dict.fromkeys(names) if name]
        for names in (proto.input, proto.output)
    )
    graph = onnx.helper.make_graph([proto], "value", inputs, outputs)
    imports = [onnx.helper.make_opsetid("", opset)]
    return ReferenceEvaluator(onnx.helper.make_model(graph, opset_imports=imports))
