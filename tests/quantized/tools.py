"""The forms in which tools write a quantized model.

Those of onnxruntime.quantization are written by it, which Olive calls as well. ModelOpt and
Brevitas need PyTorch, and are written here as they document it; their scales are the largest
magnitudes of the same random inputs. What these tools and others write themselves is in `exports`.

- ModelOpt, int8: Q and DQ in front of each product, symmetric, weights of fp32 through Q and DQ for
  each channel, biases of fp32.
- ModelOpt, fp8: opset 19, E4M3FN, weights stored in fp8 with DequantizeLinear alone, scales of
  fp16 for a tensor, so that the model is one of fp16.
- Brevitas (QCDQ): QuantizeLinear, Clip to [-127, 127], DequantizeLinear for weights of fp32 and
  activations, biases of int32 behind DequantizeLinear.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

_PRODUCTS = ("Conv", "Gemm", "MatMul")
_SAMPLES = 8
_FP8_OPSET, _FP8_IR, _FP8_LARGEST = 19, 9, 448.0


class _Samples(CalibrationDataReader):  # type: ignore[misc]
    """Random inputs of a model, the same ones each time."""

    def __init__(self, model: onnx.ModelProto) -> None:
        rng, (x,) = np.random.default_rng(0), model.graph.input
        shape = [dim.dim_value for dim in x.type.tensor_type.shape.dim]
        self._left = iter(
            [{x.name: rng.standard_normal(shape).astype(np.float32)} for _ in range(_SAMPLES)]
        )

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._left, None)


@dataclass(frozen=True)
class OnnxRuntime:
    """Choices of onnxruntime.quantization."""

    format: str  # "QDQ" or "QOperator"
    activation: str  # "QInt8" or "QUInt8"
    weight: str
    per_channel: bool
    symmetric: bool

    def __call__(self, model: onnx.ModelProto) -> onnx.ModelProto:
        with tempfile.TemporaryDirectory() as folder:
            before, after = Path(folder, "float.onnx"), Path(folder, "quantized.onnx")
            onnx.save(model, before)
            quantize_static(
                before,
                after,
                _Samples(model),
                quant_format=QuantFormat[self.format],
                activation_type=QuantType[self.activation],
                weight_type=QuantType[self.weight],
                per_channel=self.per_channel,
                # weights of 7 bits: sums of two products fit int16, in which processors without
                # VNNI add them, so that the answers are the same everywhere
                reduce_range=True,
                extra_options={
                    "ActivationSymmetric": self.symmetric,
                    "WeightSymmetric": self.weight == "QInt8",
                },
            )
            return onnx.load(after)


# --- forms that are written by hand ---------------------------------------------------------------


class _Edit:
    """A model in the making, with the largest magnitudes of its tensors."""

    def __init__(self, model: onnx.ModelProto, largest: Mapping[str, float]) -> None:
        self.model = onnx.ModelProto()
        self.model.CopyFrom(model)
        self.graph = self.model.graph
        self.constants = {t.name: numpy_helper.to_array(t) for t in self.graph.initializer}
        self.largest = largest
        self.made = dict[tuple[str, ...], str]()
        self.nodes = list[onnx.NodeProto]()

    def constant(self, name: str, values: Any, dtype: Any) -> str:
        if name not in {t.name for t in self.graph.initializer}:
            array = np.asarray(values).astype(dtype)
            self.graph.initializer.append(numpy_helper.from_array(array, name))
        return name

    def node(self, op: str, inputs: list[str], name: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(op, inputs, [name], name, **attributes))
        return name

    def products(self) -> Iterator[onnx.NodeProto]:
        """Append all nodes in order, and yield each product before."""
        for node in self.graph.node:
            if node.op_type in _PRODUCTS:
                yield node
            self.nodes.append(node)

    def finished(self) -> onnx.ModelProto:
        del self.graph.node[:]
        self.graph.node.extend(self.nodes)
        read = {name for node in self.nodes for name in node.input}
        kept = [t for t in self.graph.initializer if t.name in read]
        del self.graph.initializer[:]
        self.graph.initializer.extend(kept)
        onnx.checker.check_model(self.model)
        return self.model


def _largest(model: onnx.ModelProto) -> Mapping[str, float]:
    """The largest magnitude of each tensor of values that nodes compute, and of the input."""
    exposed = onnx.ModelProto()
    exposed.CopyFrom(model)
    names = [name for node in model.graph.node for name in node.output]
    del exposed.graph.output[:]
    exposed.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    session = ort.InferenceSession(exposed.SerializeToString(), providers=["CPUExecutionProvider"])
    found, samples = dict[str, float](), _Samples(model)
    while (feeds := samples.get_next()) is not None:
        tensors = {**feeds, **dict(zip(names, session.run(None, feeds), strict=True))}
        for name, values in tensors.items():
            found[name] = max(found.get(name, 0.0), float(np.abs(values).max()))
    return found


def _channels(node: onnx.NodeProto) -> int:
    """The axis of a weight's output channels."""
    transposed = any(a.name == "transB" and a.i for a in node.attribute)
    return 0 if node.op_type == "Conv" or transposed else 1


def _weight_scales(values: np.ndarray, axis: int) -> np.ndarray:
    others = tuple(i for i in range(values.ndim) if i != axis)
    return np.abs(values).max(axis=others) / 127


def _pair(edit: _Edit, x: str, scale: Any, axis: int | None, narrow: bool) -> str:
    """Q, Clip if `narrow`, and DQ of x; one for all who read x."""
    if (x,) in edit.made:
        return edit.made[(x,)]
    attributes = {} if axis is None else {"axis": axis}
    numbers = [
        edit.constant(f"{x}_scale", scale, np.float32),
        edit.constant(f"{x}_zero_point", np.zeros(np.shape(scale)), np.int8),
    ]
    codes = edit.node("QuantizeLinear", [x, *numbers], f"{x}_quantized", **attributes)
    if narrow:
        bounds = [edit.constant("lowest", -127, np.int8), edit.constant("highest", 127, np.int8)]
        codes = edit.node("Clip", [codes, *bounds], f"{x}_clipped")
    edit.made[(x,)] = edit.node(
        "DequantizeLinear", [codes, *numbers], f"{x}_dequantized", **attributes
    )
    return edit.made[(x,)]


def modelopt_int8(model: onnx.ModelProto) -> onnx.ModelProto:
    """Pairs of int8 in front of products; weights stay in fp32 behind them."""
    return _with_pairs(model, narrow=False)


def brevitas_int8(model: onnx.ModelProto) -> onnx.ModelProto:
    """As QCDQ, with a narrow range, and biases of int32."""
    return _with_pairs(model, narrow=True)


def _with_pairs(model: onnx.ModelProto, narrow: bool) -> onnx.ModelProto:
    edit = _Edit(model, _largest(model))
    for node in edit.products():
        x, weight = node.input[:2]
        scale, axis = edit.largest[x] / 127, _channels(node)
        scales = _weight_scales(edit.constants[weight], axis)
        node.input[0] = _pair(edit, x, scale, None, narrow)
        node.input[1] = _pair(edit, weight, scales, axis, narrow)
        if narrow and len(node.input) > 2:
            node.input[2] = _bias(edit, node.input[2], scale * scales)
    return edit.finished()


def _bias(edit: _Edit, bias: str, unit: np.ndarray) -> str:
    codes = edit.constant(f"{bias}_int32", np.rint(edit.constants[bias] / unit), np.int32)
    numbers = [codes, edit.constant(f"{bias}_scale", unit, np.float32)]
    return edit.node("DequantizeLinear", numbers, f"{bias}_dequantized", axis=0)


def modelopt_fp8(model: onnx.ModelProto) -> onnx.ModelProto:
    """Pairs of E4M3FN, whose scales are of fp16, in a model of fp16."""
    edit = _Edit(_in_fp16(model), _largest(model))
    for node in edit.products():
        x, weight = node.input[:2]
        zero = edit.constant("zero_fp8", 0.0, ml_dtypes.float8_e4m3fn)
        if (x,) not in edit.made:
            scale = edit.constant(f"{x}_scale", edit.largest[x] / _FP8_LARGEST, np.float16)
            codes = edit.node("QuantizeLinear", [x, scale, zero], f"{x}_quantized")
            values = edit.node("DequantizeLinear", [codes, scale, zero], f"{x}_dequantized")
            edit.made[(x,)] = values
        node.input[0] = edit.made[(x,)]
        floats = edit.constants[weight].astype(np.float32)
        step = float(np.float16(np.abs(floats).max() / _FP8_LARGEST))
        stored = np.clip(floats / step, -_FP8_LARGEST, _FP8_LARGEST)
        fp8 = edit.constant(f"{weight}_fp8", stored, ml_dtypes.float8_e4m3fn)
        scale = edit.constant(f"{weight}_scale", step, np.float16)
        node.input[1] = edit.node("DequantizeLinear", [fp8, scale], f"{weight}_dequantized")
    return edit.finished()


def _in_fp16(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model of opset 19 whose tensors are of fp16."""
    half = onnx.version_converter.convert_version(model, _FP8_OPSET)
    half.ir_version = _FP8_IR
    for tensor in half.graph.initializer:
        values = numpy_helper.to_array(tensor)
        if values.dtype == np.float32 and not tensor.name.startswith("scales"):
            tensor.CopyFrom(numpy_helper.from_array(values.astype(np.float16), tensor.name))
    for resize in (node for node in half.graph.node if node.op_type == "Resize"):
        _keep_scales(half.graph, resize.input[2])
    for value in (*half.graph.input, *half.graph.output):
        value.type.tensor_type.elem_type = TensorProto.FLOAT16
    del half.graph.value_info[:]
    return half


def _keep_scales(graph: onnx.GraphProto, name: str) -> None:
    """Scales of Resize are of fp32 whatever it resizes."""
    for tensor in graph.initializer:
        if tensor.name == name:
            values = numpy_helper.to_array(tensor).astype(np.float32)
            tensor.CopyFrom(numpy_helper.from_array(values, name))


TOOLS: dict[str, Callable[[onnx.ModelProto], onnx.ModelProto]] = {
    "ort.qdq.s8s8.channel": OnnxRuntime("QDQ", "QInt8", "QInt8", True, True),
    "ort.qdq.s8s8.tensor": OnnxRuntime("QDQ", "QInt8", "QInt8", False, False),
    "ort.qdq.u8s8.channel": OnnxRuntime("QDQ", "QUInt8", "QInt8", True, False),
    "ort.qdq.u8u8.tensor": OnnxRuntime("QDQ", "QUInt8", "QUInt8", False, False),
    "ort.qoperator.s8s8.tensor": OnnxRuntime("QOperator", "QInt8", "QInt8", False, True),
    "ort.qoperator.u8s8.channel": OnnxRuntime("QOperator", "QUInt8", "QInt8", True, False),
    "ort.qoperator.u8u8.tensor": OnnxRuntime("QOperator", "QUInt8", "QUInt8", False, False),
    "modelopt.int8": modelopt_int8,
    "modelopt.fp8": modelopt_fp8,
    "brevitas.int8": brevitas_int8,
}
