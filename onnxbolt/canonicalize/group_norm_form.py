"""Normalizations over pixels and groups of channels, written as one node `GroupNormalization` of
the domain `onnxbolt.internal`, with gamma and beta for each channel:

    GroupNormalization (opset 18: a factor for each group; 21: for each channel)
    InstanceNormalization: groups of one channel
    LayerNormalization of [N, C, H, W] from axis 1, factors by channel alone: one group
    Reshape to [N, G, -1], InstanceNormalization, Reshape back, Mul, Add, as exporters decompose
    GroupNormalization; Mul and Add may be missing

A node that no kernel takes is restored (restore.py).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.canonicalize.recognition import replace
from onnxbolt.dtypes import DType
from onnxbolt.graph.edit import (
    add_constant,
    constant_integers,
    constant_values,
    insert,
    is_float,
    pinned,
    producer,
    sole_use,
)
from onnxbolt.graph.names import fresh

OP = "GroupNormalization"
_CHANNEL_OPSET = 21  # GroupNormalization has a factor for each channel since
_EPSILON = 1e-5  # the operators' default
_RANKS = (3, 4, 5)


@dataclass(frozen=True)
class _Region:
    """A normalization of `x` [N, C, ..] as far as it is read: `result` is its last tensor, `nodes`
    compute that; gamma and beta have a value for each channel."""

    x: gs.Tensor
    result: gs.Tensor
    groups: int
    epsilon: float
    gamma: np.ndarray
    beta: np.ndarray
    nodes: list[gs.Node] = field(default_factory=list)
    reshapes: tuple[gs.Node, ...] = ()  # to groups and back


def run(graph: gs.Graph) -> int:
    """Recognize all normalizations; returns how many."""
    count = 0
    for node in list(graph.nodes):
        region = _recognized(graph, node) if node.outputs and not node.domain else None
        if region is None:
            continue
        factors = [
            add_constant(graph, f"{region.result.name}/{name}", values.astype(region.x.dtype))
            for name, values in (("gamma", region.gamma), ("beta", region.beta))
        ]
        shapes = [node for node in [_own_shape(graph, region)] if node is not None]
        attrs = {"groups": region.groups, "epsilon": region.epsilon}
        root = region.result.inputs[0]
        replace(graph, root, OP, [region.x, *factors], [*region.nodes, *shapes], attrs)
        count += 1
    return count


def _recognized(graph: gs.Graph, node: gs.Node) -> _Region | None:
    """The longest normalization that `node` computes the middle of and that only its result
    leaves."""
    if node.op == "InstanceNormalization":
        reshaped = _reshaped(graph, node)
        if reshaped is not None:
            return list(_ends(graph, reshaped))[-1]
    alone = {
        "GroupNormalization": _group_normalization,
        "InstanceNormalization": _instance_normalization,
        "LayerNormalization": _layer_normalization,
    }.get(node.op)
    return None if alone is None else alone(graph, node)


def _group_normalization(graph: gs.Graph, node: gs.Node) -> _Region | None:
    groups = int(node.attrs.get("num_groups", 0))
    return _alone(node, groups, per_group=graph.opset < _CHANNEL_OPSET)


def _instance_normalization(graph: gs.Graph, node: gs.Node) -> _Region | None:
    return _alone(node, _channels(node.inputs[0]), per_group=False)


def _layer_normalization(graph: gs.Graph, node: gs.Node) -> _Region | None:
    x = node.inputs[0]
    axis = int(node.attrs.get("axis", -1))
    if x.shape is None or len(x.shape) != 4 or axis not in (1, -3):
        return None
    if any(t.name and (t.outputs or pinned(graph, t)) for t in node.outputs[1:]):
        return None
    return _alone(node, 1, per_group=False)


def _alone(node: gs.Node, groups: int, per_group: bool) -> _Region | None:
    """The normalization that one operator computes."""
    x, *given = node.inputs
    channels = _channels(x)
    if not channels or groups < 1 or channels % groups:
        return None
    factors = []
    for i in (0, 1):
        values: np.ndarray | None = np.array([1.0 - i])
        if i < len(given) and given[i].name:
            values = constant_values(given[i])
        vector = None if values is None else _vector(values, channels, groups if per_group else 0)
        if vector is None:
            return None
        factors.append(vector)
    epsilon = float(node.attrs.get("epsilon", _EPSILON))
    gamma, beta = factors
    return _Region(x, node.outputs[0], groups, epsilon, gamma, beta, [node])


def _channels(x: gs.Tensor) -> int:
    """Channels of an image or sequence whose type kernels have; 0 if they are not known, or if it
    is no such tensor."""
    known = isinstance(x, gs.Variable) and DType.of(x.dtype) is not None and x.shape is not None
    if not known or len(x.shape) not in _RANKS:
        return 0
    return x.shape[1] if isinstance(x.shape[1], int) and 0 not in x.shape else 0


def _vector(values: np.ndarray, channels: int, groups: int = 0) -> np.ndarray | None:
    """A value for each channel in float64, of values for each of `groups` groups, or, for 0, of
    values [C, ..] that vary along the first axis alone; None for any others."""
    values = values.astype(np.float64)
    if groups and values.shape == (groups,):
        return np.repeat(values, channels // groups)
    if values.size == 1:
        return np.full(channels, values.item())
    if groups or not values.ndim or values.shape[0] != channels:
        return None
    rows = values.reshape(channels, -1)
    found: np.ndarray = rows[:, 0]
    return found if (rows == found[:, None]).all() else None


def _reshaped(graph: gs.Graph, node: gs.Node) -> _Region | None:
    """The normalization of groups that are the channels of an InstanceNormalization, with the
    Reshapes around it."""
    grouped = node.outputs[0]
    before, behind = _reshape(producer(node.inputs[0])), _reshape(sole_use(graph, grouped))
    if before is None or behind is None:
        return None
    x, middle = before.inputs[0], before.outputs[0]
    groups, channels = _groups(before), _channels(x)
    alone = sole_use(graph, middle) is node
    if not groups or not channels or channels % groups or not alone:
        return None
    if behind.inputs[0] is not grouped or not _restores(behind, x):
        return None
    factors = [constant_values(tensor) for tensor in node.inputs[1:]]
    vectors = [_vector(values, channels, groups) for values in factors if values is not None]
    gamma, beta = vectors if len(vectors) == 2 else (None, None)
    if gamma is None or beta is None:
        return None
    epsilon = float(node.attrs.get("epsilon", _EPSILON))
    nodes = [before, node, behind]
    result = behind.outputs[0]
    return _Region(x, result, groups, epsilon, gamma, beta, nodes, (before, behind))


def _reshape(node: gs.Node | None) -> gs.Node | None:
    """The node if it is a Reshape."""
    return node if node is not None and node.op == "Reshape" and not node.domain else None


def _groups(reshape: gs.Node) -> int:
    """The groups G if the node reshapes [N, C, ..] to [N, G, L]; else 0."""
    x, y = reshape.inputs[0], reshape.outputs[0]
    shape = constant_integers(reshape, 1)
    if reshape.attrs.get("allowzero", 0):
        shape = None
    if shape is not None and len(shape) == 3 and shape[0] == 0 and shape[1] > 0:
        return shape[1]
    if x.shape is None or y.shape is None or len(y.shape) != 3 or not isinstance(y.shape[1], int):
        return 0
    return y.shape[1] if x.shape[0] is not None and y.shape[0] == x.shape[0] else 0


def _restores(reshape: gs.Node, x: gs.Tensor) -> bool:
    """True if the node reshapes to the shape of `x`."""
    shape = producer(reshape.inputs[1])
    if shape is not None and shape.op == "Shape" and not shape.domain and shape.inputs[0] is x:
        return shape.attrs.get("start", 0) == 0 and "end" not in shape.attrs
    y = reshape.outputs[0].shape
    return y is not None and list(y) == list(x.shape) and None not in y


def _own_shape(graph: gs.Graph, region: _Region) -> gs.Node | None:
    """Let the Reshapes read shapes that depend on x alone; the new node that computes one.

    What a recognized node stands for reads x and constants; other nodes that computed a shape
    would be gone when it is restored.
    """
    if not region.reshapes:
        return None
    before, behind = region.reshapes
    if not isinstance(before.inputs[1], gs.Constant):
        groups = np.array([0, region.groups, -1])
        before.inputs[1] = add_constant(graph, f"{before.name}/groups", groups)
    if isinstance(behind.inputs[1], gs.Constant):
        return None
    rank = len(region.x.shape)
    shape = gs.Variable(fresh(graph, f"{behind.name}/shape"), np.dtype(np.int64), [rank])
    made = insert(graph, "Shape", [region.x], [shape], [behind], at=before)
    behind.inputs[1] = shape
    return made


def _ends(graph: gs.Graph, region: _Region) -> Iterator[_Region]:
    """The normalization, and with a factor and a summand for each channel behind it."""
    yield region
    for op in ("Mul", "Add"):
        node = sole_use(graph, region.result)
        if node is None or node.domain or node.op not in ("Mul", "Add"):
            return
        if node.op != op:
            continue
        x, other = node.inputs if node.inputs[0] is region.result else node.inputs[::-1]
        vector = _by_channel(other, region.x) if x is region.result else None
        if vector is None:
            return
        gamma, beta = region.gamma, region.beta
        if op == "Mul":
            gamma, beta = gamma * vector, beta * vector
        else:
            beta = beta + vector
        nodes = [*region.nodes, node]
        region = dataclasses.replace(
            region, result=node.outputs[0], gamma=gamma, beta=beta, nodes=nodes
        )
        yield region


def _by_channel(constant: gs.Tensor, x: gs.Tensor) -> np.ndarray | None:
    """A constant as a value for each channel of `x`, if it varies along these alone and does not
    widen x."""
    values = constant_values(constant)
    if values is None or not is_float(constant) or values.ndim > len(x.shape):
        return None
    rank, channels = len(x.shape), x.shape[1]
    shape = (1,) * (rank - values.ndim) + values.shape
    others = [size for axis, size in enumerate(shape) if axis != 1]
    if any(size != 1 for size in others) or shape[1] not in (1, channels):
        return None
    return np.broadcast_to(values.astype(np.float64).reshape(-1), (channels,))
