"""ONNX Runtime's own group normalizations, which read and write NHWC, as operators of ONNX that
group_norm_form.py recognizes:

    GroupNorm(x, gamma, beta)                      = Silu(normalized x), or without activation
    SkipGroupNorm(x, gamma, beta, skip, bias), s   = the same of s = x + skip + bias

onnxruntime.transformers writes them for diffusion models, with Transposes around; those of images
that kernels store as NHWC cancel. ONNX Runtime has kernels for GPUs alone, so that the result runs
on more machines.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs

from onnxbolt.domains import CONTRIB
from onnxbolt.dtypes import DType
from onnxbolt.forms import FIRST_TO_LAST, LAST_TO_FIRST
from onnxbolt.graph.edit import (
    add_constant,
    constant_values,
    insert,
    optional,
    remove,
    stand_alone,
)
from onnxbolt.graph.names import fresh

OPERATORS = ("GroupNorm", "SkipGroupNorm")
_RANK = 4
_EPSILON = 1e-5  # the operators' default
_NONE, _SILU = 0, 1  # their activations


def run(graph: gs.Graph) -> int:
    """Write all whose channels and factors are known as operators of ONNX; returns how many."""
    found = [node for node in graph.nodes if _is_known(node)]
    for node in found:
        _Written(graph, node).replace()
    return len(found)


def _is_known(node: gs.Node) -> bool:
    if node.domain != CONTRIB or node.op not in OPERATORS:
        return False
    x, factors, groups = node.inputs[0], node.inputs[1:3], int(node.attrs.get("groups", 0))
    if DType.of(x.dtype) is None or x.shape is None or len(x.shape) != _RANK:
        return False
    channels = x.shape[-1 if _is_last(node) else 1]
    if not isinstance(channels, int) or groups < 1 or channels % groups:
        return False
    if any((values := constant_values(t)) is None or values.shape != (channels,) for t in factors):
        return False
    known = node.attrs.get("activation", _NONE) in (_NONE, _SILU)
    return known and (node.op == "GroupNorm" or _has_skip(node))


def _is_last(node: gs.Node) -> bool:
    return bool(node.attrs.get("channels_last", 1))


def _has_skip(node: gs.Node) -> bool:
    """True if what is added before the normalization has known ranks."""
    x, skip, bias = node.inputs[0], optional(node.inputs, 3), optional(node.inputs, 4)
    if not _is_last(node) or skip is None or skip.shape is None or skip.dtype != x.dtype:
        return False
    of_bias = bias is None or (bias.dtype == x.dtype and bias.shape == (x.shape[-1],))
    return len(skip.shape) in (2, _RANK) and of_bias


class _Written:
    """The nodes that take a node's place."""

    def __init__(self, graph: gs.Graph, node: gs.Node) -> None:
        self.graph, self.node = graph, node
        self.x, self.y = node.inputs[0], node.outputs[0]

    def replace(self) -> None:
        """Write them, and remove the node."""
        attrs, last = self.node.attrs, _is_last(self.node)
        total = self._total()
        image = self._add("Transpose", [total], {"perm": LAST_TO_FIRST[_RANK]}) if last else total
        result = self._normalized(image, int(attrs["groups"]))
        if attrs.get("activation", _NONE) == _SILU:
            result = self._add("Mul", [result, self._add("Sigmoid", [result])])
        if last:
            result = self._add("Transpose", [result], {"perm": FIRST_TO_LAST[_RANK]})
        remove(self.graph, [self.node])
        (made,) = result.inputs
        made.outputs = [self.y]

    def _total(self) -> gs.Tensor:
        """The tensor that is normalized, which is output 1 of SkipGroupNorm."""
        total, addends = self.x, [optional(self.node.inputs, place) for place in (3, 4)]
        for addend in addends:
            if addend is not None:
                wide = addend
                if len(addend.shape) == 2:  # a vector for each image
                    wide = self._add("Unsqueeze", [addend, self._constant(np.array([1, 2]))])
                total = self._add("Add", [total, wide])
        stored = optional(self.node.outputs, 1)
        if stored is None or total is self.x:
            return total
        (made,) = total.inputs
        self.node.outputs.remove(stored)
        made.outputs = [stored]
        return stored

    def _normalized(self, image: gs.Tensor, groups: int) -> gs.Tensor:
        """`image` [N, C, H, W], normalized, times gamma plus beta."""
        units = [self._constant(f(groups, self.x.dtype)) for f in (np.ones, np.zeros)]
        grouped = self._add("Reshape", [image, self._constant(np.array([0, groups, -1]))])
        epsilon = {"epsilon": float(self.node.attrs.get("epsilon", _EPSILON))}
        grouped = self._add("InstanceNormalization", [grouped, *units], epsilon)
        shape = self._add("Shape", [image])
        shape.dtype = np.dtype(np.int64)
        result = self._add("Reshape", [grouped, shape])
        for op, tensor in zip(("Mul", "Add"), self.node.inputs[1:3], strict=True):
            values = tensor.values.astype(self.x.dtype).reshape(-1, 1, 1)
            result = self._add(op, [result, self._constant(values)])
        return result

    def _constant(self, values: np.ndarray) -> gs.Constant:
        return add_constant(self.graph, f"{self.y.name}/constant", values)

    def _add(
        self, op: str, inputs: Sequence[gs.Tensor], attrs: dict[str, Any] | None = None
    ) -> gs.Variable:
        result = gs.Variable(fresh(self.graph, f"{self.y.name}/{op}"), self.x.dtype)
        stand_alone(result)
        insert(self.graph, op, inputs, [result], [self.node], attrs, at=self.node)
        return result
