"""The predicted time of the whole model: fused nodes, and the other nodes, which ONNX Runtime runs
with and without fusing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.archs import Arch, get
from onnxbolt.dtypes import DType
from onnxbolt.onnxruntime_time import elementwise_us
from onnxbolt.ops.functions import DOMAIN
from onnxbolt.plan.choose import Prediction
from onnxbolt.plan.ranges import Point

# operators without a kernel, or with one for a few numbers
_FREE = frozenset(
    {"Constant", "Flatten", "Identity", "Reshape", "Shape", "Size", "Squeeze", "Unsqueeze"}
)
_US = 1e6


@dataclass(frozen=True)
class Estimate:
    """Microseconds of one run on an architecture, kernels one after the other: of the optimized
    model, and of the original one by ONNX Runtime's CUDA execution provider (`ort_us`)."""

    arch: int
    ours_us: float
    ort_us: float

    @property
    def gain(self) -> float:
        return self.ort_us / self.ours_us if self.ours_us else 1.0


def estimates(
    graph: gs.Graph,
    predictions: Mapping[str, Sequence[Prediction]],
    archs: Sequence[int],
    at: Point,
) -> tuple[Estimate, ...]:
    """An estimate of a rewritten graph for each of `archs`; `predictions` are those of fused nodes,
    by name."""
    found = []
    for number in archs:
        fused = [p for several in predictions.values() for p in several if p.arch == number]
        ours, theirs = sum(p.best_known_us for p in fused), sum(p.ort_us for p in fused)
        for node in graph.nodes:
            if node.name not in predictions:
                us = _node_us(node, get(number), at)
                ours += us
                theirs += 0 if _only_ours(node) else us
        found.append(Estimate(number, ours, theirs))
    return tuple(found)


def _only_ours(node: gs.Node) -> bool:
    """True for a layout conversion, which the original model does not have."""
    return node.domain == DOMAIN and not node.attrs.get("source_nodes")


def _node_us(node: gs.Node, arch: Arch, at: Point) -> float:
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
    return max(
        moved, arch.launch_us + 2 * math.prod(at.sizes(node.outputs[0])) * depth / rate * _US
    )


def _bytes(tensor: gs.Tensor, at: Point) -> int:
    return math.prod(at.sizes(tensor)) * (
        tensor.dtype.itemsize if isinstance(tensor.dtype, np.dtype) else 4
    )
