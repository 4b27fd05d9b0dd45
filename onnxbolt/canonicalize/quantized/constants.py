"""Compute quantized constants:

    Q(w) = its codes;   Q(DQ(w)) = other codes;   DQ(b) = its values for a vector b;
    DQ(w, s, z) = DQ(w ^ 0x80, s, z - 128)

for weights w of uint8, which are int8 then. Weights stay codes behind DequantizeLinear: these take
a byte. Biases, of 32 bits or of 8, are vectors of fp32 to a kernel.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.canonicalize.quantized.scaling import (
    EIGHT_BITS,
    INTEGERS,
    PRODUCTS,
    Scaling,
    is_dequantize,
    is_quantize,
    scaling_of,
)
from onnxbolt.graph.edit import (
    Derived,
    Weight,
    add_constant,
    derived,
    disconnect,
    insert,
    pinned,
    producer,
    prune,
    remove,
    replace_uses,
    together,
)

_BIASES = (*INTEGERS, np.dtype(np.int32))
_VALUES = (np.dtype(np.float32), np.dtype(np.float16))
_SIGN = 0x80


def run(graph: gs.Graph) -> int:
    """Rewrite all such nodes; returns how many."""
    with together(graph):
        replaced = [
            node
            for node in list(graph.nodes)
            if node.inputs and (_of_constant(graph, node) or _again(graph, node))
        ]
        remove(graph, replaced)
    if replaced:
        prune(graph)  # DequantizeLinears that nobody reads any more
    return len(replaced)


def _of_constant(graph: gs.Graph, node: gs.Node) -> bool:
    if not isinstance(node.inputs[0], gs.Constant):
        return False
    return _quantize(graph, node) or _vector(graph, node) or _signed(graph, node)


def _again(graph: gs.Graph, node: gs.Node) -> bool:
    """Q(DQ(w)) of constant codes: a weight that is read transposed, with its own numbers for each
    reader. ONNX Runtime takes both for one pair where numbers are equal, and axes are not."""
    scaling = scaling_of(node) if is_quantize(node) else None
    before = producer(node.inputs[0]) if scaling is not None else None
    down = scaling_of(before) if before is not None and is_dequantize(before) else None
    if scaling is None or before is None or down is None or pinned(graph, node.outputs[0]):
        return False
    codes = before.inputs[0]
    if not isinstance(codes, gs.Constant) or down.code not in INTEGERS:
        return False
    if scaling.code not in EIGHT_BITS or not all(map(_divides, (scaling, down))):
        return False

    def again(values: np.ndarray) -> np.ndarray:
        return scaling.quantized(down.dequantized(values))

    return _becomes(node, derived(codes, again, scaling.code, codes.shape))


def _divides(scaling: Scaling) -> bool:
    """True for scales of fp32 that are numbers other than 0."""
    scale = scaling.scale
    return scale.dtype == np.float32 and bool(np.all(np.isfinite(scale)) and np.all(scale))


def _quantize(graph: gs.Graph, node: gs.Node) -> bool:
    scaling = scaling_of(node) if is_quantize(node) else None
    (x, *_), y = node.inputs, node.outputs[0]
    if scaling is None or scaling.code not in EIGHT_BITS or pinned(graph, y):
        return False
    plain = x.dtype == scaling.scale.dtype and x.dtype in _VALUES
    if not plain or not np.all(np.isfinite(x.values)) or not np.all(np.isfinite(scaling.scale)):
        return False
    if not np.all(scaling.scale):
        return False
    return _becomes(node, derived(x, scaling.quantized, scaling.code, x.shape))


def _vector(graph: gs.Graph, node: gs.Node) -> bool:
    scaling = scaling_of(node) if is_dequantize(node) else None
    (x, *_), y = node.inputs, node.outputs[0]
    if scaling is None or scaling.scale.dtype != np.float32 or pinned(graph, y):
        return False
    vector = math.prod(x.shape) == max(x.shape, default=1)
    if scaling.code not in _BIASES or not vector or any(_weighs(r, y) for r in y.outputs):
        return False
    return _becomes(node, derived(x, scaling.dequantized, scaling.scale.dtype, x.shape))


def _becomes(node: gs.Node, values: np.ndarray | Derived) -> bool:
    tensor = node.outputs[0]
    disconnect(node)
    replace_uses(tensor, Weight(tensor.name, values))
    return True


def _signed(graph: gs.Graph, node: gs.Node) -> bool:
    scaling = scaling_of(node) if is_dequantize(node) else None
    if scaling is None or scaling.code != np.uint8:
        return False
    weight, y = node.inputs[0], node.outputs[0]
    if not y.outputs or not all(_weighs(reader, y) for reader in y.outputs):
        return False
    codes = derived(weight, _flipped, np.dtype(np.int8), weight.shape)
    inputs = [
        add_constant(graph, f"{weight.name}_int8", codes),
        node.inputs[1],
        add_constant(graph, f"{weight.name}_zero_point", _zeros(scaling, node)),
    ]
    insert(graph, node.op, inputs, [y], [node], node.attrs, at=node)
    disconnect(node)
    return True


def _weighs(reader: gs.Node, tensor: gs.Tensor) -> bool:
    """True if `tensor` is the weight of a product."""
    found = not reader.domain and reader.op in PRODUCTS and len(reader.inputs) > 1
    return found and reader.inputs[1] is tensor and reader.inputs[0] is not tensor


def _flipped(codes: np.ndarray) -> np.ndarray:
    return (codes ^ np.uint8(_SIGN)).view(np.int8)


def _zeros(scaling: Scaling, node: gs.Node) -> np.ndarray:
    """The zero points of int8, in the shape of the scales."""
    zeros = np.broadcast_to(_flipped(np.atleast_1d(scaling.zero)), max(scaling.scale.size, 1))
    return np.ascontiguousarray(zeros).reshape(node.inputs[1].shape)
