"""Move DequantizeLinear behind operators that only move values, and QuantizeLinear in front of
them, so that codes move instead:

    M(DQ(q)) = DQ(M(q)),   Q(M(x)) = M(Q(x)),   Concat(DQ(a), DQ(b)) = DQ(Concat(a, b)),
    MaxPool(DQ(q)) = DQ(MaxPool(q)),   Q(MaxPool(x)) = MaxPool(Q(x))

M is a Transpose, a Reshape, a Slice, a nearest Resize and the like; Pad appends the code of its
value. Several inputs need equal scales and zero points on the way down, where they are not
rounded; on the way up each is rounded to the same ones. MaxPool takes the code of the same element,
since larger values have no smaller codes. Q moves only where M alone reads x, so that nothing
is stored both as values and as codes; in front of a MaxPool with strides, only where a product of
codes makes x, whose kernel then writes codes: else more would be rounded than is pooled. Nor does
it move in front of what moves the result of attention, whose kernels write it as values, moved.
"""

from __future__ import annotations

import itertools

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.canonicalize.quantized.scaling import (
    EIGHT_BITS,
    INTEGERS,
    PRODUCTS,
    Scaling,
    is_dequantize,
    is_quantize,
    new_tensor,
    repeated,
    scaling_of,
)
from onnxbolt.graph.edit import (
    add_constant,
    auto_pad,
    optional,
    pinned,
    producer,
    prune,
    remove,
    scalar,
    sole_use,
    together,
)

# the first input of these is moved; ONNX Runtime's CPU provider has them for int8 and uint8
_MOVING = frozenset(
    {
        "Expand",
        "Flatten",
        "Gather",
        "GatherElements",
        "GatherND",
        "MaxPool",
        "Pad",
        "Reshape",
        "Resize",
        "Slice",
        "Split",
        "Squeeze",
        "Tile",
        "Transpose",
        "Unsqueeze",
    }
)
_ALL_INPUTS = "Concat"


def run(graph: gs.Graph) -> int:
    """Move all nodes as far as they go; returns how many operators they passed."""
    nodes = list(graph.nodes)
    with together(graph):
        following = itertools.pairwise([*nodes, None])
        down = sum(_down(graph, node, behind) for node, behind in following if moves(node))
    prune(graph)  # DequantizeLinears that nobody reads any more
    with together(graph):
        return down + sum(_up(graph, node) for node in reversed(nodes) if moves(node))


def moves(node: gs.Node) -> bool:
    if node.domain or not node.outputs or not all(tensor.name for tensor in node.outputs):
        return False
    if node.op == "Resize":
        mode = node.attrs.get("coordinate_transformation_mode", "half_pixel")
        return node.attrs.get("mode", "nearest") == "nearest" and mode != "tf_crop_and_resize"
    if node.op == "MaxPool":
        # every window has an element: the padding of floats has no code
        dense = all(dilation == 1 for dilation in node.attrs.get("dilations", ()))
        inside = auto_pad(node) == "NOTSET" and not node.attrs.get("ceil_mode", 0)
        return dense and inside and len(node.outputs) == 1
    return node.op in _MOVING or node.op == _ALL_INPUTS


def data(node: gs.Node) -> list[gs.Tensor]:
    """The inputs whose values are moved."""
    return list(node.inputs) if node.op == _ALL_INPUTS else [node.inputs[0]]


def _passes(node: gs.Node, scaling: Scaling, padded_exactly: bool) -> bool:
    """True if codes of this scaling can be moved in place of values."""
    if scaling.axis is not None and node.op != "Transpose":
        return False
    if node.op == "Transpose" and scaling.axis is not None:
        return "perm" in node.attrs
    if node.op == "MaxPool":
        return scaling.increases
    if node.op == "Pad" and node.attrs.get("mode", "constant") == "constant":
        return _padding(node, scaling, padded_exactly) is not None
    return True


def _padding(node: gs.Node, scaling: Scaling, exactly: bool) -> np.ndarray | None:
    """The code of what a Pad appends, whose value that is `exactly`, to the bit; None if there is
    none."""
    tensor = optional(node.inputs, 2)
    value = 0.0 if tensor is None else scalar(tensor)
    if value is None or scaling.scale.dtype != np.float32 or not scaling.increases:
        return None
    values = np.array(value, np.float32)
    code = scaling.quantized(values)
    same = scaling.dequantized(code).tobytes() == values.tobytes()
    return code if same or (not exactly and bool(np.isfinite(values))) else None


def _give(graph: gs.Graph, node: gs.Node, inputs: list[gs.Tensor], scaling: Scaling) -> None:
    """Let `node` move the codes `inputs`."""
    others = list(node.inputs[len(inputs) :])
    if _appends(node):
        padded = _padding(node, scaling, exactly=False)
        assert padded is not None  # _passes has looked
        others[1:2] = [add_constant(graph, f"{node.outputs[0].name}_padding", padded)]
    node.inputs = [*inputs, *others]


def _appends(node: gs.Node) -> bool:
    return node.op == "Pad" and node.attrs.get("mode", "constant") == "constant"


def _down(graph: gs.Graph, node: gs.Node, following: gs.Node | None) -> bool:
    """Move the DequantizeLinears in front of `node` behind it, where `following` stands."""
    sources = [producer(tensor) for tensor in data(node)]
    found = [source for source in sources if source is not None and is_dequantize(source)]
    if not sources or len(found) != len(sources):
        return False
    scalings = [scaling_of(source) for source in found]
    first = scalings[0]
    if first is None or not all(other is not None and first.same(other) for other in scalings):
        return False
    # a Transpose of constant codes is computed, whatever their type
    kept = node.op == "Transpose" and isinstance(found[0].inputs[0], gs.Constant)
    movable = first.code in INTEGERS or (kept and first.code in EIGHT_BITS)
    if not movable or not _passes(node, first, padded_exactly=True):
        return False
    like, results = found[0], list(node.outputs)
    _give(graph, node, [source.inputs[0] for source in found], first)
    node.outputs = [new_tensor(graph, f"{t.name}_codes", first.code, t.shape) for t in results]
    axis = None if first.axis is None else list(node.attrs["perm"]).index(first.axis)
    for codes, result in zip(node.outputs, results, strict=True):
        repeated(graph, like, codes, result, following, axis)
    return True


def _up(graph: gs.Graph, node: gs.Node) -> bool:
    """Move the QuantizeLinears behind `node` in front of it."""
    readers = [sole_use(graph, tensor) for tensor in node.outputs]
    found = [reader for reader in readers if reader is not None and is_quantize(reader)]
    inputs = data(node)
    if len(found) != len(readers) or not all(_is_free(graph, tensor) for tensor in inputs):
        return False
    if node.op == "MaxPool" and max(node.attrs.get("strides", [1])) > 1 and not _is_written(node):
        return False
    if any(map(_of_attention, inputs)):
        return False
    scalings = [scaling_of(reader) for reader in found]
    first = scalings[0]
    if first is None or not all(other is not None and first.same(other) for other in scalings):
        return False
    if first.code not in INTEGERS or not _passes(node, first, padded_exactly=False):
        return False
    axis = None if first.axis is None else int(node.attrs["perm"][first.axis])
    codes = [new_tensor(graph, f"{t.name}_codes", first.code, t.shape) for t in inputs]
    for tensor, made in zip(inputs, codes, strict=True):
        repeated(graph, found[0], tensor, made, node, axis)
    _give(graph, node, codes, first)
    results = [reader.outputs[0] for reader in found]
    remove(graph, found)
    node.outputs = results
    return True


def _is_written(node: gs.Node) -> bool:
    """True if a product of codes makes what `node` reads, by one step after another."""
    maker = producer(node.inputs[0])
    while maker is not None and maker.op not in PRODUCTS:
        variables = [t for t in maker.inputs if isinstance(t, gs.Variable) and t.name]
        maker = producer(variables[0]) if variables else None
    return maker is not None and is_dequantize(producer(maker.inputs[0]))


def _of_attention(tensor: gs.Tensor) -> bool:
    """True if `tensor` has the values, which may be moved, of a product of two tensors that are
    computed at run time."""
    node = producer(tensor)
    while node is not None and moves(node) and node.op != _ALL_INPUTS:
        node = producer(node.inputs[0])
    if node is None or node.op != "MatMul" or node.domain:
        return False
    return not any(map(_is_weight, node.inputs))


def _is_weight(tensor: gs.Tensor) -> bool:
    node = producer(tensor)
    codes = node.inputs[0] if node is not None and is_dequantize(node) else tensor
    return isinstance(codes, gs.Constant)


def _is_free(graph: gs.Graph, tensor: gs.Tensor) -> bool:
    """True if the tensor is a constant, the value of codes, or read by one node alone."""
    if isinstance(tensor, gs.Constant) or is_dequantize(producer(tensor)):
        return True
    alone = len(set(tensor.outputs)) == 1 and not pinned(graph, tensor)
    return producer(tensor) is not None and alone
