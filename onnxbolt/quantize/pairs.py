"""Writes QuantizeLinear and DequantizeLinear where a placement has them, and weights as codes."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.canonicalize.quantized.scaling import DEQUANTIZE, QUANTIZE, new_tensor
from onnxbolt.dtypes import DType
from onnxbolt.errors import InputError
from onnxbolt.graph.edit import add_constant, add_variable, derived, insert, producer, together
from onnxbolt.quantize.placement import Placement, Product
from onnxbolt.spelling import option

# the value of the largest code; integers are symmetric, so that no kernel adds up zero points
LARGEST = {DType.I8: 127.0, DType.E4M3: 448.0}


_DIGITS = 11  # significant bits of a tensor's scale


def scale_of(magnitude: float, dtype: DType) -> float:
    """The scale with which a magnitude has the largest code; 1 for a tensor of zeros. It has few
    significant bits, so that another processor, whose sums differ in the last ones, mostly finds
    the same."""
    fraction, exponent = math.frexp(magnitude / LARGEST[dtype])
    scale = math.ldexp(math.ceil(fraction * 2**_DIGITS), exponent - _DIGITS)
    return max(scale, float(np.finfo(np.float32).tiny)) if magnitude else 1.0


def switch_of(tensor: str) -> str:
    """The input by which a model with switches rounds a tensor."""
    return f"{tensor}//rounded"


def weight_switch_of(product: str) -> str:
    """Likewise the weight of a product, whose node may be named like a tensor."""
    return f"{product}//weight rounded"


def write(placement: Placement, scales: Mapping[str, float], switches: bool = False) -> None:
    """Write all pairs into the placement's graph, whose tensors have these scales. With `switches`,
    a boolean input for each tensor and product says whether it is rounded."""
    graph, dtype = placement.graph, placement.dtype
    zero = add_constant(graph, "zero_code", np.zeros((), dtype.numpy))
    products, groups = placement.products, placement.groups
    readers = {t.name: placement.readers(t) for group in groups for t in group}
    with together(graph):
        for group in groups:
            value = np.array(scales[group[0].name], np.float32)
            scale = add_constant(graph, f"{group[0].name}_scale", value)
            for tensor in group:
                values = _between(graph, tensor, readers[tensor.name], [scale, zero])
                if switches:
                    switch = switch_of(tensor.name)
                    _switched(graph, switch, values, tensor, readers[tensor.name])
        for product in products:
            weight = product.weight
            _weight(graph, product, dtype)
            if switches:
                switch, values = weight_switch_of(product.node.name), product.node.inputs[1]
                _switched(graph, switch, values, weight, [product.node])


def _switched(
    graph: gs.Graph, name: str, values: gs.Tensor, before: gs.Tensor, readers: list[gs.Node]
) -> None:
    """Let readers of `values` read these or what they were before, by the input `name`."""
    switch = gs.Variable(name, np.dtype(np.bool_), [])
    graph.inputs.append(switch)
    chosen = add_variable(graph, f"{name}//chosen", before)
    for reader in readers:
        reader.inputs = [chosen if each is values else each for each in reader.inputs]
    insert(graph, "Where", [switch, values, before], [chosen], [readers[0]], at=readers[0])


def _between(
    graph: gs.Graph, tensor: gs.Tensor, readers: list[gs.Node], numbers: list[gs.Tensor]
) -> gs.Variable:
    """The values of codes, which the readers get."""
    codes = new_tensor(graph, f"{tensor.name}_codes", numbers[1].dtype, tensor.shape)
    values = add_variable(graph, f"{tensor.name}_values", tensor)
    for reader in readers:
        reader.inputs = [values if each is tensor else each for each in reader.inputs]
    sources = [producer(tensor) or readers[0]]
    at = readers[0]
    insert(graph, QUANTIZE, [tensor, *numbers], [codes], sources, at=at)
    insert(graph, DEQUANTIZE, [codes, *numbers], [values], sources, at=at)
    return values


def _weight(graph: gs.Graph, product: Product, dtype: DType) -> None:
    weight, axis = product.weight, product.axis
    others = tuple(i for i in range(len(weight.shape)) if i != axis)
    largest = np.abs(weight.values).max(axis=others)
    if not np.isfinite(largest).all():
        raise InputError(
            f"weight {weight.name} of {product.node.name} has values that are NaN or infinite,"
            " which no code of 8 bits has: correct the model, or choose another"
            f" {option('precision')}"
        )
    scales = np.where(largest > 0, largest / np.float32(LARGEST[dtype]), np.float32(1))
    scales = np.maximum(scales, np.finfo(np.float32).tiny).astype(np.float32)
    spread = scales.reshape([-1 if i == axis else 1 for i in range(len(weight.shape))])

    def codes(values: np.ndarray) -> np.ndarray:
        limit = LARGEST[dtype]
        scaled = np.clip(values / spread, -limit, limit)
        return (np.rint(scaled) if dtype is DType.I8 else scaled).astype(dtype.numpy)

    made = derived(weight, codes, dtype.numpy, weight.shape)
    inputs = [
        add_constant(graph, f"{weight.name}_codes", made),
        add_constant(graph, f"{weight.name}_scales", scales),
    ]
    values = new_tensor(graph, f"{weight.name}_values", weight.dtype, weight.shape)
    node = product.node
    insert(graph, DEQUANTIZE, inputs, [values], [node], {"axis": axis}, at=node)
    node.inputs[1] = values
