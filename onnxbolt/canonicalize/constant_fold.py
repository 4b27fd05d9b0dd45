"""Replace nodes that depend on constants alone by their values.

    f(constants) = its value, by onnx's reference evaluator;
    Shape(x) = x's shape where inference knows it;
    Gather(Shape(x), i) = Slice(Shape(x), ..) = dimensions of x where inference knows these;
Gather(Resize(Expand(number, large)), ..) = the number in every place (DETR's masks of pixels).

Not folded: random and stateful operators, control flow, DequantizeLinear (which keeps weights
small), nodes whose type the evaluator lacks or whose value differs from ONNX Runtime's
(evaluator.py), and nodes whose value would make the model much larger, such as the Expand of a
scalar.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnx_graphsurgeon as gs

from onnxbolt.canonicalize.evaluator import differs
from onnxbolt.graph import drawn
from onnxbolt.graph.edit import (
    SELECTING,
    Derived,
    Weight,
    constant_values,
    derived,
    pinned,
    producer,
    prune,
    replace_uses,
)
from onnxbolt.graph.element_types import onnx_dtype
from onnxbolt.graph.exporter import node_proto, used_constants

if TYPE_CHECKING:
    from onnx.reference import ReferenceEvaluator

_NEVER = drawn.OPERATORS | frozenset(
    {
        "Dropout",
        "If",
        "Loop",
        "Scan",
        "QuantizeLinear",
        "DequantizeLinear",
        "Identity",
    }
)
_MOST_GROWTH = 2  # weights stored in fp16 and cast to fp32 are weights all the same
# a result up to here, or up to this share of the model's constants, is folded whatever it is made
# of: shapes, masks, position indices and embeddings
_FREE_BYTES, _FREE_SHARE = 1 << 18, 1 / 64
# every element of the result is one of the first operand's, converted by Cast, or one number
_KEEPING = SELECTING | {"Cast", "ConstantOfShape", "Gather", "GatherElements", "GatherND"}


def run(graph: gs.Graph) -> int:
    """Fold all nodes that can be folded; returns how many."""
    count, size = 0, sum(map(_bytes, used_constants(graph).values()))
    free = max(_FREE_BYTES, int(_FREE_SHARE * size))
    for node in list(graph.nodes):  # in topological order, so that one sweep is enough
        results = list(_results(graph, node, free))
        for tensor, values in results:
            replace_uses(tensor, Weight(tensor.name, values))
        count += bool(results)
    prune(graph)  # else nodes that compute shapes count as readers of the tensors in between
    return count


def _results(
    graph: gs.Graph, node: gs.Node, free: int
) -> Iterator[tuple[gs.Variable, np.ndarray | Derived]]:
    """The node's outputs with their values, if these are known and the names may become those of
    constants. Values of up to `free` bytes may have any operands."""
    named = [tensor for tensor in node.outputs if tensor.name]
    if (
        node.domain
        or node.op in _NEVER
        or any(pinned(graph, tensor) for tensor in named)
        or not any(tensor.outputs for tensor in named)
    ):
        return
    values = _from_shape(node)
    if (
        values is None
        and node.inputs
        and all(isinstance(t, gs.Constant) or not t.name for t in node.inputs)
    ):
        yield from _evaluated(graph, node, free)
        return
    if values is None:
        values = _uniform(node, free)
    if values is not None:
        yield node.outputs[0], values


def _evaluated(
    graph: gs.Graph, node: gs.Node, free: int
) -> Iterator[tuple[gs.Variable, np.ndarray | Derived]]:
    inputs = {tensor.name: constant_values(tensor) for tensor in node.inputs if tensor.name}
    if (
        any(values is None or values.dtype == object for values in inputs.values())
        or _has_subgraph(node)
        or differs(node, graph.opset)
    ):
        return
    allowed = max(
        free,
        _MOST_GROWTH * sum(values.nbytes for values in inputs.values() if values is not None),
    )
    if any(_bytes(tensor) > allowed for tensor in node.outputs):
        return
    from onnx.reference import ReferenceEvaluator

    evaluator = ReferenceEvaluator(_model(graph, node))
    try:
        with np.errstate(all="ignore"):  # masks contain infinities on purpose
            results = list(evaluator.run(None, inputs))
    except Exception:  # a node that the evaluator cannot compute stays in the model
        return
    outputs = [tensor for tensor in node.outputs if tensor.name]
    if all(
        _is_value(tensor, result, allowed) for tensor, result in zip(outputs, results, strict=True)
    ):
        large = [tensor for tensor in node.inputs if isinstance(tensor, Weight) and tensor.is_large]
        if len(large) == len(outputs) == 1:
            yield outputs[0], _again(evaluator, large[0], inputs, np.asarray(results[0]))
            return
        yield from (
            (tensor, np.asarray(result)) for tensor, result in zip(outputs, results, strict=True)
        )


def _again(
    evaluator: ReferenceEvaluator,
    large: Weight,
    inputs: dict[str, np.ndarray | None],
    result: np.ndarray,
) -> np.ndarray | Derived:
    """A large result that is computed from large weights as a value that is computed again each
    time it is asked for, so that the graph does not hold it in memory."""
    others = {name: values for name, values in inputs.items() if name != large.name}

    def evaluate(values: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            return np.asarray(*evaluator.run(None, {**others, large.name: values}))

    return derived(large, evaluate, result.dtype, result.shape)


def _is_value(tensor: gs.Variable, result: object, allowed: int) -> bool:
    """True if the result is a tensor (not a sequence), is small enough, and has the type that ONNX
    gives it."""
    if not isinstance(result, (np.ndarray, np.generic)) or result.nbytes > allowed:
        return False
    return tensor.dtype is None or tensor.dtype == result.dtype


def _has_subgraph(node: gs.Node) -> bool:
    return any(isinstance(value, onnx.AttributeProto) for value in node.attrs.values())


def _bytes(tensor: gs.Tensor) -> int:
    """The size of the tensor in bytes if it is known, else 0."""
    if (
        tensor.shape is None
        or not isinstance(tensor.dtype, np.dtype)
        or not all(isinstance(d, int) for d in tensor.shape)
    ):
        return 0
    size: int = math.prod(tensor.shape) * tensor.dtype.itemsize
    return size


def _model(graph: gs.Graph, node: gs.Node) -> onnx.ModelProto:
    inputs = {
        t.name: onnx.helper.make_tensor_value_info(t.name, onnx_dtype(t.dtype), list(t.shape))
        for t in node.inputs
        if t.name
    }
    outputs = [onnx.ValueInfoProto(name=t.name) for t in node.outputs if t.name]
    body = onnx.helper.make_graph([node_proto(node)], "constant", list(inputs.values()), outputs)
    return onnx.helper.make_model(body, opset_imports=[onnx.helper.make_opsetid("", graph.opset)])


def _uniform(node: gs.Node, free: int) -> np.ndarray | None:
    """The result of a node that keeps some elements of a tensor which is one number throughout: it
    is small, though the tensor may be too large to be a constant."""
    tensor, conversions = node.outputs[0], list[np.dtype]()
    if not _keeps(node) or not 0 < _bytes(tensor) <= free:
        return None
    source: gs.Node | None = node
    while source is not None and not source.domain and _keeps(source):
        if source.op == "Cast":
            conversions.append(source.outputs[0].dtype)
        if (number := _number(source)) is not None:
            for dtype in reversed(conversions):
                number = number.astype(dtype)
            return np.broadcast_to(number.reshape(()), tensor.shape).copy()
        source = producer(source.inputs[0])
    return None


def _number(node: gs.Node) -> np.ndarray | None:
    """The only number of a tensor that Expand or ConstantOfShape makes; None for others."""
    if node.op == "ConstantOfShape":
        value = node.attrs.get("value")
        return np.zeros(1, np.float32) if value is None else getattr(value, "values", value)
    values = constant_values(node.inputs[0]) if node.op == "Expand" else None
    return values if values is not None and values.size == 1 else None


def _keeps(node: gs.Node) -> bool:
    if node.op == "Resize":
        mode = node.attrs.get("coordinate_transformation_mode", "half_pixel")
        return node.attrs.get("mode", "nearest") == "nearest" and mode != "tf_crop_and_resize"
    if node.op == "Cast":
        dtype = node.outputs[0].dtype
        return isinstance(dtype, np.dtype) and dtype.isbuiltin == 1
    return node.op in _KEEPING


def _from_shape(node: gs.Node) -> np.ndarray | None:
    """Values that follow from a tensor's shape rather than from constants."""
    if node.op == "Shape":
        return _known(_dimensions(node))
    source = producer(node.inputs[0]) if node.op in ("Gather", "Slice") else None
    if source is None or source.op != "Shape" or source.domain:
        return None
    dimensions = _dimensions(source)
    indices = [constant_values(tensor) for tensor in node.inputs[1:]]
    if dimensions is None or any(values is None for values in indices):
        return None
    if node.op == "Gather":
        chosen = np.array(dimensions, object)[indices[0]]
        return _known(chosen.tolist() if isinstance(chosen, np.ndarray) else chosen)
    start, end, *rest = (int(values.reshape(-1)[0]) for values in indices if values is not None)
    return _known(dimensions[start : end : rest[1] if len(rest) > 1 else 1])


def _dimensions(shape: gs.Node) -> list[int | str | None] | None:
    """The result of a Shape node, symbols included; None if even the rank is unknown."""
    full = shape.inputs[0].shape
    if full is None:
        return None
    part: list[int | str | None] = list(full)[
        shape.attrs.get("start", 0) : shape.attrs.get("end", len(full))
    ]
    return part


def _known(dimensions: object) -> np.ndarray | None:
    values = np.array(dimensions, object)
    return (
        values.astype(np.int64)
        if dimensions is not None and all(isinstance(v, int) for v in values.reshape(-1))
        else None
    )
