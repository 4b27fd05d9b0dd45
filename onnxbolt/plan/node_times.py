"""The predicted time of a node that ONNX Runtime runs as it is."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.archs import Arch
from onnxbolt.dtypes import DType
from onnxbolt.integers import ceil_divide
from onnxbolt.onnxruntime_time import (
    attention_operator_us,
    elementwise_us,
    library_us,
    line_pool_us,
    pool_us,
)
from onnxbolt.plan.ranges import Point

# operators without a kernel, or with one for a few numbers
_FREE = frozenset(
    {"Constant", "Flatten", "Identity", "Reshape", "Shape", "Size", "Squeeze", "Unsqueeze"}
)
_POOLINGS = frozenset(
    {"AveragePool", "GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool", "LpPool", "MaxPool"}
)
_SHAPES = frozenset({"Shape", "Size"})
_FEW = 64  # numbers, and nodes; a list of sizes has as many numbers as a tensor has axes


def node_us(node: gs.Node, arch: Arch, at: Point) -> float:
    """Microseconds of a node's kernel: a library's for products, else bound by memory. None for
    calculations with sizes, which ONNX Runtime leaves to the CPU."""
    if node.op in _FREE or _of_sizes(node, at):
        return 0.0
    moved = elementwise_us(
        sum(_bytes(tensor, at) for tensor in (*node.inputs, *node.outputs) if tensor.name), arch
    )
    if node.domain:
        return moved
    if node.op in _POOLINGS:
        return _pooling_us(node, arch, at)
    if node.op == "Attention" and all(len(at.sizes(tensor)) > 2 for tensor in node.inputs[:3]):
        return _attention_us(node, arch, at)
    product = (*node.inputs[:2], *node.outputs[:1]) if node.op in ("Conv", "Gemm", "MatMul") else ()
    if product and all(at.shape(tensor) is not None for tensor in product):
        return max(moved, library_us(_Left.of(node, at), arch))
    return moved


def _of_sizes(node: gs.Node, at: Point) -> bool:
    """True if the node reads nothing but constants and what a few nodes compute from shapes, in
    tensors of a few numbers. False for nodes with subgraphs, which may run anything."""
    left, seen, shapes = [node], {node}, False
    while left and len(seen) <= _FEW:
        each = left.pop()
        if any(isinstance(value, gs.Graph) for value in each.attrs.values()):
            return False
        for tensor in each.inputs:
            if not tensor.name and not isinstance(tensor, gs.Constant):
                continue
            if not _is_few(tensor, at):
                return False
            if isinstance(tensor, gs.Constant):
                continue
            if not tensor.inputs:
                return False
            producer = tensor.inputs[0]
            if producer.op in _SHAPES:
                shapes = True
            elif producer not in seen:
                seen.add(producer)
                left.append(producer)
    return shapes and not left and all(_is_few(tensor, at) for tensor in node.outputs)


def _is_few(tensor: gs.Tensor, at: Point) -> bool:
    return at.shape(tensor) is not None and math.prod(at.sizes(tensor)) <= _FEW


@dataclass(frozen=True)
class _Left:
    """A product that is left to a library, as onnxruntime_time.Product."""

    rows: int
    columns: int
    depth: int
    taps: int
    groups: int
    x_elements: int
    weights: int
    dtype: DType

    @classmethod
    def of(cls, node: gs.Node, at: Point) -> _Left:
        """That of a Conv, a Gemm or a MatMul."""
        x, weight, y = (at.sizes(tensor) for tensor in (*node.inputs[:2], node.outputs[0]))
        if node.op == "Conv":
            batch, columns, *pixels = y
            rows, depth, taps = batch * math.prod(pixels), weight[1], math.prod(weight[2:])
        else:
            axis = -1 if node.attrs.get("transB") else -2
            columns, taps, depth = y[-1] if y else 1, 1, weight[axis] if len(weight) > 1 else x[-1]
            rows = math.prod(y) // columns
        return cls(
            rows,
            columns,
            depth,
            taps,
            int(node.attrs.get("group", 1)),
            math.prod(x),
            math.prod(weight),
            DType.of(node.inputs[1].dtype) or DType.F32,
        )

    @property
    def depthwise(self) -> bool:
        return self.groups > 1 and self.depth == 1 and self.columns == self.groups

    @property
    def flops(self) -> int:
        return 2 * self.rows * self.columns * self.taps * self.depth

    @property
    def input_elements(self) -> int:
        return self.x_elements + self.weights

    def row_tiles(self, height: int) -> int:
        return ceil_divide(self.rows, height)


def _pooling_us(node: gs.Node, arch: Arch, at: Point) -> float:
    x, y = at.sizes(node.inputs[0]), at.sizes(node.outputs[0])
    window = x[2:] if node.op.startswith("Global") else node.attrs["kernel_shape"]
    dtype = DType.stored(node.inputs[0].dtype) or DType.F32
    read, written = math.prod(x), math.prod(y)
    if len(x) != 3:
        return pool_us(read, written, dtype, arch)
    return line_pool_us(read, written, math.prod(window), dtype, arch)


def _attention_us(node: gs.Node, arch: Arch, at: Point) -> float:
    """ONNX's Attention: q, k and v are [N, heads, length, size], or have heads side by side."""
    q, k, v = (at.sizes(tensor) for tensor in node.inputs[:3])
    batch, rows, keys = q[0], q[-2], k[-2]
    heads = q[1] if len(q) == 4 else int(node.attrs.get("q_num_heads", 1))
    key_heads = k[1] if len(k) == 4 else int(node.attrs.get("kv_num_heads", 1))
    size, value_size = (sizes[-1] // (1 if len(sizes) == 4 else key_heads) for sizes in (k, v))
    scores = batch * heads * rows * keys
    flops = 2 * scores * (size + value_size)
    dtype = DType.of(node.inputs[0].dtype) or DType.F32
    masked = len(node.inputs) > 3 and bool(node.inputs[3].name)
    operands = sum(_bytes(tensor, at) for tensor in (*node.inputs[:3], node.outputs[0]))
    return attention_operator_us(operands, scores, flops, masked, dtype, arch)


def _bytes(tensor: gs.Tensor, at: Point) -> int:
    return math.prod(at.sizes(tensor)) * (
        tensor.dtype.itemsize if isinstance(tensor.dtype, np.dtype) else 4
    )
