"""Fold y = scale * x + shift, per output channel, into the weight and bias that x is computed with.

    Conv:    scale * (W * x + b) + shift  =  (scale W) * x + (scale b + shift)
             W [K, C/groups, ..], one scale per K; of ConvTranspose W [C, K/groups, ..]
    MatMul:  scale * (x W + b) + shift    =  x (W scale) + (scale b + shift)
             W [K, N], one scale per N

Two passes use it: batchnorm.py and scale_shift.py. The new weight is computed in float64 and
rounded once to the weight's type; refused where the result does not fit that type.
"""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.graph.edit import (
    add_constant,
    add_variable,
    constant_values,
    is_float,
    producer,
    remove,
    sole_use,
)

_CONVOLUTIONS = ("Conv", "ConvTranspose")


def channels(graph: gs.Graph, x: gs.Tensor) -> tuple[int, int, int] | None:
    """(rank, channel axis, channels) of x if a Conv, ConvTranspose, MatMul or MatMul+Add with
    constant weights computes it; else None."""
    node = producer(x)
    if node is None or node.domain:
        return None
    if node.op in _CONVOLUTIONS:
        weight = node.inputs[1]
        if not (isinstance(weight, gs.Constant) and is_float(weight)):
            return None
        groups, width = _outputs(node)
        whole = groups > 0 and weight.shape[0] % groups == 0
        return (len(weight.shape), 1, groups * width) if whole else None
    product = _product(graph, node)
    if product is None:
        return None
    n = product.inputs[1].shape[1]
    return (0 if x.shape is None else len(x.shape)), -1, n


def vector(values: np.ndarray, rank: int, axis: int, count: int) -> np.ndarray | None:
    """The constant as float64 [count] along the channel axis of a tensor of `rank` (0: unknown);
    None if it is not such a vector."""
    if values.ndim == 0:
        return np.full(count, np.float64(values))
    if values.ndim > max(rank, 1):
        return None
    aligned = values.reshape((1,) * (max(rank, 1) - values.ndim) + values.shape)
    if rank == 0:
        axis = -1
    wide = [i for i, size in enumerate(aligned.shape) if size != 1]
    if wide and (wide != [axis % aligned.ndim] or aligned.size != count):
        return None
    return np.broadcast_to(aligned.reshape(-1), (count,)).astype(np.float64)


def fold(
    graph: gs.Graph, node: gs.Node, x: gs.Tensor, scale: np.ndarray, shift: np.ndarray
) -> bool:
    """Fold `node`, which computes scale * x + shift (float64 [channels]), into what computes x,
    if nothing else reads x."""
    if sole_use(graph, x) is not node:
        return False
    maker = x.inputs[0]
    return (
        _into_conv(graph, maker, node, scale, shift)
        if maker.op in _CONVOLUTIONS
        else _into_product(graph, maker, node, scale, shift)
    )


def _into_conv(
    graph: gs.Graph, conv: gs.Node, node: gs.Node, scale: np.ndarray, shift: np.ndarray
) -> bool:
    weight = conv.inputs[1]
    given = conv.inputs[2] if len(conv.inputs) > 2 and conv.inputs[2].name else None
    old = np.zeros(len(scale)) if given is None else constant_values(given)
    if old is None:
        return False
    values = weight.values.astype(np.float64)
    if conv.op == "Conv":
        scaled = rounded(weight, values * scale.reshape(-1, *[1] * (values.ndim - 1)))
    else:
        groups, width = _outputs(conv)
        apart = values.reshape(groups, -1, width, *values.shape[2:])
        factors = scale.reshape(groups, 1, width, *[1] * (values.ndim - 2))
        scaled = rounded(weight, (apart * factors).reshape(values.shape))
    shifted = rounded(weight, old.astype(np.float64) * scale + shift)
    if scaled is None or shifted is None:
        return False
    if (scale != 1).any():
        conv.inputs[1] = add_constant(graph, f"{weight.name}_scaled", scaled)
    if shifted.any() or given is not None:
        bias = add_constant(graph, f"{(weight if given is None else given).name}_shifted", shifted)
        conv.inputs = [*conv.inputs[:2], bias]
    take_over(graph, conv, node)
    return True


def _outputs(conv: gs.Node) -> tuple[int, int]:
    """Groups of a convolution with a constant weight, and output channels of each."""
    groups, weight = int(conv.attrs.get("group", 1)), conv.inputs[1]
    if conv.op == "ConvTranspose":
        return groups, int(weight.shape[1])
    return 1, int(weight.shape[0])


def _into_product(
    graph: gs.Graph, maker: gs.Node, node: gs.Node, scale: np.ndarray, shift: np.ndarray
) -> bool:
    """`maker` is a MatMul, or the Add of a constant vector after one."""
    product = _product(graph, maker)
    given = _addend(maker)
    if product is None or (given is None and (scale == 1).all()):
        return False  # a bias right after a MatMul is the form wanted
    weight = product.inputs[1]
    bias = np.zeros(len(scale)) if given is None else vector(given.values, 0, -1, len(scale))
    scaled = rounded(weight, weight.values.astype(np.float64) * scale)
    shifted = None if bias is None else rounded(weight, bias * scale + shift)
    if scaled is None or shifted is None:
        return False
    inner = product.outputs[0]
    if (scale != 1).any():  # the product has a new value, so it needs a new name
        product.inputs[1] = add_constant(graph, f"{weight.name}_scaled", scaled)
        inner = add_variable(graph, f"{inner.name}_scaled", inner)
        product.outputs = [inner]
    if given is not None:
        maker.inputs = [inner, add_constant(graph, f"{given.name}_shifted", shifted)]
        take_over(graph, maker, node)
    elif shifted.any():
        node.op, node.attrs, node.origin = "Add", {}, None
        node.inputs = [inner, add_constant(graph, f"{weight.name}_shift", shifted)]
    else:
        take_over(graph, product, node)
    return True


def _product(graph: gs.Graph, node: gs.Node) -> gs.Node | None:
    """The MatMul by a constant matrix that `node` is, or whose result `node` alone uses in an Add
    of a constant vector."""
    if node.op == "Add":
        given = _addend(node)
        other = next((t for t in node.inputs if t is not given), None)
        maker = (
            None
            if given is None or other is None or sole_use(graph, other) is not node
            else producer(other)
        )
        return _product(graph, maker) if maker is not None and maker.op == "MatMul" else None
    if node.op != "MatMul" or node.domain:
        return None
    weight = node.inputs[1]
    return (
        node
        if isinstance(weight, gs.Constant) and is_float(weight) and len(weight.shape) == 2
        else None
    )


def _addend(node: gs.Node) -> gs.Constant | None:
    """The constant vector that an Add adds."""
    if node.op != "Add" or node.domain:
        return None
    return next(
        (
            t
            for t in node.inputs
            if isinstance(t, gs.Constant) and is_float(t) and len(t.shape) <= 1
        ),
        None,
    )


def rounded(weight: gs.Constant, values: np.ndarray) -> np.ndarray | None:
    """The values in the weight's type; None if one of them exceeds its range."""
    with np.errstate(over="ignore"):
        rounded = values.astype(weight.dtype)
    return rounded if np.isfinite(rounded.astype(np.float64)).all() else None


def take_over(graph: gs.Graph, maker: gs.Node, node: gs.Node) -> None:
    """Make `maker` write the output of `node`, under its name."""
    y = node.outputs[0]
    remove(graph, [node])
    maker.outputs = [y]
    maker.provenance = tuple(dict.fromkeys((*maker.provenance, *node.provenance)))
