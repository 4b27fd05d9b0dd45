"""A small graph builder: layers of PyTorch's vocabulary, emitted as the nodes that its exporters
write.

Weights are drawn from one seeded generator in the order of the calls, so a model's bytes depend on
its arguments alone. They are scaled (He et al. 2015) so that activations keep about unit variance,
which keeps fp16 away from its limits.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray[Any, Any]

PRECISIONS: dict[str, np.dtype[Any]] = {"fp32": np.dtype(np.float32), "fp16": np.dtype(np.float16)}
# below 13 several operators here have another form; the upper end is what has been run
OPSETS = (13, 23)

# factor on a layer's weights that undoes its activation's loss of variance
GAIN = {"": 1.0, "relu": math.sqrt(2.0), "gelu": 1.53, "hard_swish": 1.67, "softplus": 1.04}


class Builder:
    """Collects one graph. Values are handled by name; `batch` is a number or the name of a symbolic
    dimension.

    `precision` is the type of weights and arithmetic, `io` the type of floating graph inputs and
    outputs.
    """

    def __init__(self, batch: int | str, precision: str, seed: int, opset: int, io: str) -> None:
        for option, value in (("precision", precision), ("io", io)):
            if value not in PRECISIONS:
                raise ValueError(f"{option} {value!r}: choose one of {', '.join(PRECISIONS)}")
        if not OPSETS[0] <= opset <= OPSETS[1]:
            raise ValueError(f"opset {opset}: choose one from {OPSETS[0]} to {OPSETS[1]}")
        if isinstance(batch, int) and batch < 1:
            raise ValueError(
                f"batch {batch}: give a positive number, or a name for a symbolic batch"
            )
        self.batch, self.opset = batch, opset
        self.dtype, self.io_dtype = PRECISIONS[precision], PRECISIONS[io]
        self.random = np.random.default_rng(seed)
        self._nodes: list[onnx.NodeProto] = []
        self._weights: list[onnx.TensorProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []
        self._names: Counter[str] = Counter()

    # --- graph ------------------------------------------------------------------------------------

    def input(self, name: str, *shape: int, integer: bool = False) -> str:
        """A graph input [batch, *shape] of the io type, or int64; returns the value in the
        compute type."""
        kind = TensorProto.INT64 if integer else helper.np_dtype_to_tensor_dtype(self.io_dtype)
        self._inputs.append(helper.make_tensor_value_info(name, kind, [self.batch, *shape]))
        return name if integer or self.io_dtype == self.dtype else self.cast(name, self.dtype)

    def output(self, name: str, value: str, *shape: int) -> None:
        """Declares `value` a graph output [batch, *shape] of the io type."""
        kind = helper.np_dtype_to_tensor_dtype(self.io_dtype)
        self._rename(
            value if self.io_dtype == self.dtype else self.cast(value, self.io_dtype), name
        )
        self._outputs.append(helper.make_tensor_value_info(name, kind, [self.batch, *shape]))

    def node(self, op: str, inputs: list[str], scope: str = "", **attributes: Any) -> str:
        """One node with one output, named after its scope as PyTorch's exporters do."""
        name = self._fresh("/" + "/".join(part for part in (scope.replace(".", "/"), op) if part))
        self._nodes.append(
            helper.make_node(op, inputs, [f"{name}_output_0"], name=name, **attributes)
        )
        return f"{name}_output_0"

    def weight(self, name: str, values: Array) -> str:
        """An initializer in the compute type."""
        return self._initializer(name, values.astype(self.dtype))

    def integers(self, name: str, values: list[int]) -> str:
        """An int64 initializer: a shape, indices, axes."""
        return self._initializer(self._fresh(name), np.array(values, np.int64))

    def index(self, value: int) -> str:
        """A scalar int64: Gather with it drops the axis."""
        return self._initializer(self._fresh("index"), np.array(value, np.int64))

    def scalar(self, value: float) -> str:
        return self._initializer(self._fresh("scalar"), np.array(value, self.dtype))

    def normal(self, shape: tuple[int, ...], scale: float) -> Array:
        return self.random.standard_normal(shape, np.float32) * np.float32(scale)

    def model(self, name: str) -> onnx.ModelProto:
        """The finished model, in the oldest IR version of its opset."""
        graph = helper.make_graph(self._nodes, name, self._inputs, self._outputs, self._weights)
        opsets = [helper.make_opsetid("", self.opset)]
        version = helper.find_min_ir_version_for(opsets)
        return helper.make_model(
            graph, opset_imports=opsets, ir_version=version, producer_name="onnxbolt models"
        )

    # --- layers -----------------------------------------------------------------------------------

    def conv(
        self,
        x: str,
        scope: str,
        c: int,
        k: int,
        r: int,
        stride: int = 1,
        pad: int | None = None,
        groups: int = 1,
        bias: bool = True,
        gain: float = 1.0,
    ) -> str:
        """A 2-D convolution c -> k with an r x r filter, "same" padding unless given."""
        weight = self.normal((k, c // groups, r, r), gain / math.sqrt(c // groups * r * r))
        shift = self.normal((k,), 0.1) if bias else None
        return self.conv_with(
            x, scope, weight, shift, stride, r // 2 if pad is None else pad, groups
        )

    def conv_with(
        self,
        x: str,
        scope: str,
        weight: Array,
        bias: Array | None,
        stride: int = 1,
        pad: int = 0,
        groups: int = 1,
    ) -> str:
        """A convolution with given weights [K, C/groups, R, S]."""
        inputs = [x, self.weight(f"{scope}.weight", weight)]
        if bias is not None:
            inputs.append(self.weight(f"{scope}.bias", bias))
        return self.node(
            "Conv",
            inputs,
            scope,
            kernel_shape=list(weight.shape[2:]),
            strides=[stride] * 2,
            pads=[pad] * 4,
            dilations=[1, 1],
            group=groups,
        )

    def gemm(self, x: str, scope: str, k: int, n: int, gain: float = 1.0) -> str:
        """nn.Linear on [M, K]: Gemm with the weight as [N, K]."""
        weight = self.weight(f"{scope}.weight", self.normal((n, k), gain / math.sqrt(k)))
        return self.node(
            "Gemm",
            [x, weight, self.weight(f"{scope}.bias", self.normal((n,), 0.1))],
            scope,
            alpha=1.0,
            beta=1.0,
            transB=1,
        )

    def linear(self, x: str, scope: str, k: int, n: int, gain: float = 1.0) -> str:
        """nn.Linear on [B, S, K]: MatMul by [K, N], then Add."""
        product = self.node(
            "MatMul",
            [x, self.weight(f"{scope}.weight", self.normal((k, n), gain / math.sqrt(k)))],
            scope,
        )
        return self.node(
            "Add", [self.weight(f"{scope}.bias", self.normal((n,), 0.1)), product], scope
        )

    def layer_norm(self, x: str, scope: str, width: int, epsilon: float) -> str:
        """LayerNormalization over the last axis, decomposed below opset 17."""
        scale = self.weight(f"{scope}.weight", 1 + self.normal((width,), 0.1))
        shift = self.weight(f"{scope}.bias", self.normal((width,), 0.1))
        if self.opset >= 17:
            return self.node(
                "LayerNormalization", [x, scale, shift], scope, axis=-1, epsilon=epsilon
            )
        centered = self.node("Sub", [x, self.node("ReduceMean", [x], scope, axes=[-1])], scope)
        variance = self.node(
            "ReduceMean", [self.node("Pow", [centered, self.scalar(2.0)], scope)], scope, axes=[-1]
        )
        deviation = self.node(
            "Sqrt", [self.node("Add", [variance, self.scalar(epsilon)], scope)], scope
        )
        normal = self.node("Div", [centered, deviation], scope)
        return self.node("Add", [self.node("Mul", [normal, scale], scope), shift], scope)

    def gelu(self, x: str, scope: str) -> str:
        """The erf form, as written below opset 20."""
        inner = self.node("Erf", [self.node("Div", [x, self.scalar(math.sqrt(2.0))], scope)], scope)
        product = self.node("Mul", [x, self.node("Add", [inner, self.scalar(1.0)], scope)], scope)
        return self.node("Mul", [product, self.scalar(0.5)], scope)

    def relu(self, x: str, scope: str = "") -> str:
        return self.node("Relu", [x], scope)

    def hard_swish(self, x: str, scope: str) -> str:
        """HardSwish, decomposed below opset 14."""
        if self.opset >= 14:
            return self.node("HardSwish", [x], scope)
        return self.node(
            "Mul", [x, self.node("HardSigmoid", [x], scope, alpha=1 / 6, beta=0.5)], scope
        )

    def softplus(self, x: str, scope: str) -> str:
        return self.node("Softplus", [x], scope)

    def activation(self, x: str, scope: str, kind: str) -> str:
        """One of GAIN's by name."""
        layers = {
            "relu": self.relu,
            "gelu": self.gelu,
            "hard_swish": self.hard_swish,
            "softplus": self.softplus,
        }
        return layers[kind](x, scope)

    def cast(self, x: str, dtype: np.dtype[Any]) -> str:
        return self.node("Cast", [x], to=helper.np_dtype_to_tensor_dtype(dtype))

    def reshape(self, x: str, shape: list[int], scope: str = "") -> str:
        return self.node("Reshape", [x, self.integers("shape", shape)], scope)

    def _rename(self, value: str, name: str) -> None:
        for node in self._nodes:
            for names in (node.input, node.output):
                names[:] = [name if each == value else each for each in names]

    def _initializer(self, name: str, values: Array) -> str:
        self._weights.append(numpy_helper.from_array(values, name))
        return name

    def _fresh(self, name: str) -> str:
        """`name`, then name_1, name_2, .."""
        self._names[name] += 1
        return name if self._names[name] == 1 else f"{name}_{self._names[name] - 1}"
