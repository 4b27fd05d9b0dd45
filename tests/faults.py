"""Planted faults: a fused node whose bias (or, without one, weight) is wrong in one output
channel of eight."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import onnx
import onnxruntime
from onnx import FunctionProto, ModelProto, NodeProto, helper, numpy_helper

from onnxbolt.epilogues import EPILOGUES, Step
from onnxbolt.graph.lift import default_opset
from onnxbolt.library import manifest_of_model
from onnxbolt.ops.base import Signature
from onnxbolt.ops.functions import DOMAIN, build
from onnxbolt.opspec import OpSpec

CHANNELS = 8  # one in so many is shifted
LINEAR = ("Bias", "Scale", "Add", "Mul")  # steps that are no activation
_RANKS = {"conv": 4, "conv1d": 3, "gemm": 0}  # by what computes the first layer


@dataclass(frozen=True)
class Fault:
    """`changed` is what the node computes with the fault, `right` what it computes without, on
    the same inputs."""

    node: str
    shifted: str  # name of the initializer
    right: np.ndarray
    changed: np.ndarray

    def error(self) -> float:
        """Relative L2 error of the node's own output: zero where an activation hides the fault."""
        right, changed = self.right.astype(np.float64), self.changed.astype(np.float64)
        return float(np.linalg.norm(changed - right) / (np.linalg.norm(right) or 1.0))


def fused_nodes(model: ModelProto) -> list[NodeProto]:
    """Fused Conv and Gemm nodes that read and write whole tensors, in order: what is part of a
    joined one is compared with it."""
    fused = [
        node
        for node in model.graph.node
        if node.domain == DOMAIN and node.op_type.startswith(("FusedConv", "FusedGemm"))
    ]
    return [node for node in fused if not node.op_type.endswith(("_sliced", "_into", "_part"))]


def plant(
    model: ModelProto, node: NodeProto, values: dict[str, np.ndarray]
) -> tuple[ModelProto, Fault]:
    """A copy of `model` with a fault in `node`. `values` holds what the node reads that is no
    initializer.

    The shift is the root mean square of the node's output before its first activation.
    """
    spec = next(op for op in manifest_of_model(model).ops if op.name == node.op_type)
    function = next(f for f in model.functions if f.name == node.op_type)
    inputs = [
        values[name] if name in values else numpy_helper.to_array(_initializer(model, name))
        for name in node.input
    ]
    before = _run(node, _without_activation(spec, node, default_opset(model)), inputs, model)
    position = _operand(spec.chain, "Bias") or 1
    shifted = [*inputs]
    shifted[position] = _shift(
        inputs[position], float(np.sqrt(np.mean(np.square(before.astype(np.float64)))))
    )
    name = f"{node.input[position]}__shifted"
    fault = Fault(
        node.name, name, _run(node, function, inputs, model), _run(node, function, shifted, model)
    )
    return _replaced(model, node, position, numpy_helper.from_array(shifted[position], name)), fault


def _shift(values: np.ndarray, amount: float) -> np.ndarray:
    """Every eighth row, which is an output channel; of a weight only the first number."""
    shifted = values.copy()
    shifted.reshape(len(values), -1)[::CHANNELS, 0] += amount
    return shifted


def _operand(chain: tuple[str, ...], step: str) -> int:
    """The position of a step's operand among the node's inputs, 0 where there is none."""
    operands = [name for name in chain if EPILOGUES[name].operand]
    return 2 + operands.index(step) if step in operands else 0


def _without_activation(spec: OpSpec, node: NodeProto, opset: int | None) -> FunctionProto:
    """The function of the node's chain up to its first activation; such steps have no
    parameters."""
    steps = tuple(
        Step(name) for name in itertools.takewhile(lambda name: name in LINEAR, spec.chain)
    )
    first = spec.kind.removesuffix("_chain")
    return build(Signature(spec.op, spec.element, _RANKS[first], steps), opset or 0)


def _run(
    node: NodeProto, function: FunctionProto, inputs: list[np.ndarray], model: ModelProto
) -> np.ndarray:
    """The node's outputs with `function` as its body, on as many inputs as that has."""
    feeds = {f"i{i}": values for i, values in enumerate(inputs[: len(function.input)])}
    call = helper.make_node(function.name, list(feeds), ["y"], domain=DOMAIN)
    call.attribute.extend(
        attribute for attribute in node.attribute if attribute.name in function.attribute
    )
    types = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
        for name, v in feeds.items()
    ]
    graph = helper.make_graph([call], "node", types, [onnx.ValueInfoProto(name="y")])
    single = helper.make_model(
        graph, functions=[function], opset_imports=model.opset_import, ir_version=model.ir_version
    )
    session = onnxruntime.InferenceSession(
        single.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return session.run(["y"], feeds)[0]


def _initializer(model: ModelProto, name: str) -> onnx.TensorProto:
    return next(tensor for tensor in model.graph.initializer if tensor.name == name)


def _replaced(
    model: ModelProto, node: NodeProto, position: int, tensor: onnx.TensorProto
) -> ModelProto:
    copy = ModelProto()
    copy.CopyFrom(model)
    copy.graph.initializer.append(tensor)
    next(other for other in copy.graph.node if other.name == node.name).input[position] = (
        tensor.name
    )
    return copy
