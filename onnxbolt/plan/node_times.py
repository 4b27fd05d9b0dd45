"""The predicted time of a node that ONNX Runtime runs as it is."""

from __future__ import annotations

import math

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.archs import Arch
from onnxbolt.dtypes import DType
from onnxbolt.kernel_time import US
from onnxbolt.onnxruntime_time import elementwise_us
from onnxbolt.plan.ranges import Point

# operators without a kernel, or with one for a few numbers
_FREE = frozenset(
    {"Constant", "Flatten", "Identity", "Reshape", "Shape", "Size", "Squeeze", "Unsqueeze"}
)


def node_us(node: gs.Node, arch: Arch, at: Point) -> float:
    """Microseconds of a node's kernel, bound by memory or by the rate of products."""
    if node.op in _FREE:
        return 0.0
    moved = elementwise_us(
        sum(_bytes(tensor, at) for tensor in (*node.inputs, *node.outputs) if tensor.name), arch
    )
    if node.domain or node.op not in ("Conv", "Gemm", "MatMul"):
        return moved
    weight = at.sizes(node.inputs[1])
    depth = (
        math.prod(weight[1:])
        if node.op == "Conv"
        else weight[-1 if node.attrs.get("transB") else -2]
        if len(weight) > 1
        else 1
    )
    rate = arch.flops.get(DType.of(node.inputs[1].dtype) or DType.F32) or arch.fp32_flops
    return max(moved, arch.launch_us + 2 * math.prod(at.sizes(node.outputs[0])) * depth / rate * US)


def _bytes(tensor: gs.Tensor, at: Point) -> int:
    return math.prod(at.sizes(tensor)) * (
        tensor.dtype.itemsize if isinstance(tensor.dtype, np.dtype) else 4
    )
