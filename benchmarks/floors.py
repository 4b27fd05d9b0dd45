"""Lower bounds of a model's time: its products at the tensor cores' rate, and its weights, inputs
and outputs once through memory."""

from __future__ import annotations

import math

import onnx
from onnx import helper, shape_inference

from onnxbolt.archs import Arch
from onnxbolt.dtypes import DType

# shares of the data sheet's rates that long products and copies reach on an H200: 790 TFLOP/s, 4.3
# TB/s
_TENSOR_EFFICIENCY, _MEMORY_EFFICIENCY = 0.8, 0.9


def flops(model: onnx.ModelProto) -> int:
    """Multiplications and additions of Conv, Gemm and MatMul; shapes have to be static."""
    shapes = _shapes(model)
    total = 0
    for node in model.graph.node:
        if node.op_type in ("Conv", "Gemm", "MatMul"):
            total += 2 * math.prod(shapes[node.output[0]]) * _depth(node, shapes)
    return total


def floor_us(model: onnx.ModelProto, arch: Arch) -> float:
    """The larger of both lower bounds for `arch`'s reference GPU in fp16, in microseconds."""
    size = sum(math.prod(tensor.dims) for tensor in model.graph.initializer)
    size += sum(_elements(value) for value in (*model.graph.input, *model.graph.output))
    by_flops = flops(model) / (arch.flops[DType.F16] * _TENSOR_EFFICIENCY)
    by_bytes = size * DType.F16.bytes / (arch.bandwidth * _MEMORY_EFFICIENCY)
    return float(max(by_flops, by_bytes)) * 1e6


def _depth(node: onnx.NodeProto, shapes: dict[str, list[int]]) -> int:
    """Products per output value."""
    if node.op_type == "Conv":
        return math.prod(shapes[node.input[1]][1:])
    transposed = any(a.name == "transA" and helper.get_attribute_value(a) for a in node.attribute)
    return shapes[node.input[0]][0 if transposed else -1]


def _shapes(model: onnx.ModelProto) -> dict[str, list[int]]:
    graph = shape_inference.infer_shapes(model, data_prop=True).graph
    shapes = {
        v.name: [d.dim_value for d in v.type.tensor_type.shape.dim]
        for v in (*graph.input, *graph.value_info, *graph.output)
    }
    return shapes | {tensor.name: list(tensor.dims) for tensor in graph.initializer}


def _elements(value: onnx.ValueInfoProto) -> int:
    return math.prod(d.dim_value for d in value.type.tensor_type.shape.dim)
