"""Balances linear pairs of transformers, as SmoothQuant does (Xiao et al. 2023): channels of x with
large values are divided by a factor, by which the rows of the weight are multiplied.

    x W = (x / s) (s W),   s_j = sqrt(max |x_j| / max |W_j|)

x is what a normalization or another linear layer makes, whose own factors take 1 / s. The factors
are powers of two, so that the model of floats computes the same numbers as before, and a lock file
holds small integers. It helps integers alone: a power of two moves the exponent of an fp8 number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.graph.edit import add_constant, derived, producer, sole_use
from onnxbolt.quantize.placement import FLOAT, Placement, Product

_NORMS = ("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization")
_FURTHEST = 8  # exponents beyond move values that matter little anyway


@dataclass(frozen=True)
class Pair:
    """A tensor that only linear layers read, and what takes the inverse factors: inputs of nodes,
    by node and index."""

    tensor: gs.Tensor
    products: tuple[Product, ...]
    takers: tuple[tuple[gs.Node, int], ...]

    @property
    def channels(self) -> int:
        return int(self.products[0].weight.shape[0])


def pairs(placement: Placement) -> dict[str, Pair]:
    """The linear pairs, by the name of the tensor between."""
    readers = dict[str, list[Product]]()
    for product in placement.products:
        if product.node.op == "MatMul":
            readers.setdefault(product.x.name, []).append(product)
    found = dict[str, Pair]()
    for name, products in readers.items():
        tensor = products[0].x
        nodes = {product.node for product in products}
        pinned = name in placement.graph.captured or any(
            tensor is output for output in placement.graph.outputs
        )
        if pinned or set(tensor.outputs) != nodes:
            continue
        channels = int(products[0].weight.shape[0])
        if takers := _takers(placement.graph, tensor, channels):
            found[name] = Pair(tensor, tuple(products), takers)
    return found


def _takers(graph: gs.Graph, tensor: gs.Tensor, channels: int) -> tuple[tuple[gs.Node, int], ...]:
    """The constants along channels that scale all of the tensor; none if there are none."""
    node, found = producer(tensor), list[tuple[gs.Node, int]]()
    while node is not None:
        if node.op in _NORMS:
            factors = [(node, index) for index in range(1, min(len(node.inputs), 3))]
            return (*found, *factors) if all(_scales(*at, channels) for at in factors) else ()
        if node.domain:
            return ()
        if node.op == "MatMul":
            weight = node.inputs[1]
            whole = isinstance(weight, gs.Constant) and weight.shape[-1] == channels
            return (*found, (node, 1)) if whole and len(weight.shape) == 2 else ()
        if node.op in ("Add", "Mul"):
            constants = [i for i in (0, 1) if _scales(node, i, channels)]
            if len(constants) != 1:
                return ()
            found.append((node, constants[0]))
            if node.op == "Mul":
                return tuple(found)
            x = node.inputs[1 - constants[0]]
        elif node.op == "Relu":
            x = node.inputs[0]
        else:
            return ()
        if sole_use(graph, x) is not node:
            return ()
        node = producer(x)
    return ()


def _scales(node: gs.Node, index: int, channels: int) -> bool:
    tensor = node.inputs[index]
    is_vector = isinstance(tensor, gs.Constant) and tensor.dtype == FLOAT
    return is_vector and tensor.shape[-1:] == (channels,) and np.prod(tensor.shape) == channels


def exponents(pair: Pair, largest: np.ndarray) -> tuple[int, ...]:
    """The power of two of each channel, from its largest magnitude in x; all 0 if x and weight are
    balanced."""
    weights = [np.abs(product.weight.values).max(axis=1) for product in pair.products]
    rows = np.max(weights, axis=0).astype(np.float64)
    known = (rows > 0) & (largest > 0)
    ratio = np.divide(largest, rows, out=np.ones_like(rows), where=known)
    found = np.rint(np.log2(ratio) / 2)
    found[known] -= np.rint(np.median(found[known])) if known.any() else 0
    found[~known] = 0
    return tuple(int(each) for each in np.clip(found, -_FURTHEST, _FURTHEST))


def apply(graph: gs.Graph, pair: Pair, powers: Mapping[str, tuple[int, ...]]) -> None:
    """Divide the channels of x, and multiply the rows of the weights."""
    factors = np.exp2(np.array(powers[pair.tensor.name], np.float64)).astype(np.float32)
    for node, index in pair.takers:
        _scale(graph, node, index, 1 / factors)
    for product in pair.products:
        _scale(graph, product.node, 1, factors[:, None])


def _scale(graph: gs.Graph, node: gs.Node, index: int, factors: np.ndarray) -> None:
    constant = node.inputs[index]
    values = derived(constant, lambda values: values * factors, FLOAT, constant.shape)
    node.inputs[index] = add_constant(graph, f"{constant.name}_balanced", values)
