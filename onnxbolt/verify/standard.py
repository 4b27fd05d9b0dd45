"""Runs one standard operator by itself in ONNX Runtime on the CPU: for operators that move values,
and for operators without a rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx
import onnxruntime as ort
from onnx import ModelProto, NodeProto, ValueInfoProto

from onnxbolt import extra_ops
from onnxbolt.graph.exporter import FUSED_DOMAIN
from onnxbolt.graph.scopes import outer_reads, subgraphs
from onnxbolt.verify.session import CPU

_BY_NUMPY: dict[str, Callable[[np.ndarray, NodeProto], np.ndarray]] = {
    "Transpose": lambda x, node: x.transpose(
        list(node.attribute[0].ints) if node.attribute else None
    ),
    "GlobalAveragePool": lambda x, node: x.mean(tuple(range(2, x.ndim)), keepdims=True),
}
# operators that ONNX Runtime has no float64 kernel for, among those that rules run here
WITHOUT_FLOAT64 = {"AveragePool", "GlobalMaxPool", "Resize"}


class Standard:
    """Runs nodes of one model, with its opsets and functions."""

    def __init__(self, model: ModelProto) -> None:
        functions = [function for function in model.functions if function.domain != FUSED_DOMAIN]
        self._model = ModelProto(
            ir_version=model.ir_version, opset_import=model.opset_import, functions=functions
        )

    def run(
        self,
        node: NodeProto,
        values: Sequence[np.ndarray | None],
        env: Mapping[str, np.ndarray],
        dtype: type | None = None,
    ) -> list[np.ndarray]:
        """The node's outputs for `values`, its inputs in order; float64 inputs are computed in
        float64, or in `dtype`.

        Raises one of RUNTIME_ERRORS where ONNX Runtime cannot.
        """
        if (
            (function := _BY_NUMPY.get(node.op_type)) is not None
            and not node.domain
            and values[0] is not None
        ):
            return [function(values[0], node)]
        if node.op_type == "Slice" and not node.domain and len(values) == 4:
            return [_slice(*(value for value in values if value is not None))]
        kind = np.dtype(
            np.float32 if dtype is np.float32 or node.op_type in WITHOUT_FLOAT64 else np.float64
        )
        feeds = {
            name: value
            for name, value in zip(node.input, values, strict=False)
            if name and value is not None
        }
        for attribute in node.attribute:
            for graph in subgraphs(attribute):
                feeds.update((name, env[name]) for name in outer_reads(graph) if name in env)
        return self._run(node, {name: _as(value, kind) for name, value in feeds.items()})

    def _run(self, node: NodeProto, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        model = ModelProto()
        model.CopyFrom(self._model)
        model.graph.name = "node"
        model.graph.node.append(node)
        for name, value in feeds.items():
            kind = (
                onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
                if value.dtype != object
                else onnx.TensorProto.STRING
            )
            model.graph.input.append(onnx.helper.make_tensor_value_info(name, kind, value.shape))
        outputs = [name for name in node.output if name]
        model.graph.output.extend(ValueInfoProto(name=name) for name in outputs)
        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        extra_ops.register(options)
        session = ort.InferenceSession(model.SerializeToString(), options, providers=[CPU])
        return [np.asarray(value) for value in session.run(outputs, dict(feeds))]


def _as(value: np.ndarray, kind: np.dtype) -> np.ndarray:
    """`value` in C order, with floats as `kind`. (np.ascontiguousarray would give a scalar an
    axis.)"""
    with np.errstate(over="ignore"):  # a sum of two masks may be below float32's lowest number
        return np.asarray(value, kind if value.dtype.kind in "fV" else None, order="C")


def _slice(x: np.ndarray, starts: np.ndarray, ends: np.ndarray, axes: np.ndarray) -> np.ndarray:
    """ONNX's Slice without steps, which has Python's meaning."""
    cuts = [slice(None)] * x.ndim
    for start, end, axis in zip(starts, ends, axes, strict=True):
        cuts[int(axis)] = slice(int(start), int(end))
    return x[tuple(cuts)]
