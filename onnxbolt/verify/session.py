"""Run a model and look at any of its tensors, without copying its weights for each look."""
from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import GraphProto, ModelProto, TensorProto, ValueInfoProto
from onnxruntime.capi import onnxruntime_pybind11_state as state

from onnxbolt.graph.scopes import captured
from onnxbolt.runtime import keep_channels, session_options

# ONNX Runtime's own exception classes derive from Exception alone
RUNTIME_ERRORS: tuple[type[Exception], ...] = (
    *(kind for kind in vars(state).values() if isinstance(kind, type) and issubclass(kind, Exception)), RuntimeError, ValueError,
)
_SHARED_FROM = 1024  # bytes; smaller initializers stay in the model, since shapes are computed from them
CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"


class Runner:
    """A model on one execution provider. Each `run` may expose other tensors as outputs; all its sessions share the weights."""

    def __init__(self, model: ModelProto, provider: str, library: Path | None = None, tf32: bool = False) -> None:
        self.provider, self.library, self.tf32 = provider, library, tf32
        self.skeleton, self.weights = without_weights(model)
        self.identity = identity(model)
        self.outputs = [value.name for value in model.graph.output]
        self.bfloat16, self.float16 = uses(model, [TensorProto.BFLOAT16]), uses(model, [TensorProto.FLOAT16])
        self._last: tuple[tuple[str, ...], list[str], ort.InferenceSession] | None = None

    def run(self, feeds: dict[str, np.ndarray], names: Sequence[str]) -> dict[str, np.ndarray]:
        """The values of `names`, any tensors of the main graph (none: the model just runs); bfloat16 comes as float32.

        Raises one of RUNTIME_ERRORS where ONNX Runtime cannot load or run the model, LibraryError where the library does not fit.
        """
        wanted, exposed, session = self.load(names)
        types = {value.name: value.type for value in session.get_inputs()}
        # an input that was widened takes float32
        fitting = {name: a.astype(np.float32, copy=False) if types[name] == "tensor(float)" else a for name, a in feeds.items()}
        return {name: _array(value) for name, value in zip(wanted, session.run(exposed, fitting), strict=True)}

    def load(self, names: Sequence[str] = ()) -> tuple[tuple[str, ...], list[str], ort.InferenceSession]:
        """What `run` needs for `names`: them without repetition, as the session calls them, and the session.

        Raises as `run` does, where ONNX Runtime cannot load the model.
        """
        wanted = tuple(dict.fromkeys(names or self.outputs))
        if self._last is None or self._last[0] != wanted:
            self._last = None  # its memory goes before the next session takes some
            model = ModelProto()
            model.CopyFrom(self.skeleton)
            exposed = _expose(model, wanted, as_float=self.bfloat16)
            self._last = wanted, exposed, self._session(model)
        return self._last

    def _session(self, model: ModelProto) -> ort.InferenceSession:
        options = ort.SessionOptions()
        options.log_severity_level = 4
        if self.float16:
            keep_channels(options)
        if self.weights:
            options.add_external_initializers(list(self.weights), list(self.weights.values()))
        if self.library is not None:
            session_options(self.identity, library=self.library, options=options, strict=True)
        providers: list[object] = [CPU] if self.provider == CPU else [(self.provider, {"use_tf32": str(int(self.tf32))}), CPU]
        return ort.InferenceSession(model.SerializeToString(), options, providers=providers)


def _array(value: object) -> np.ndarray:
    """A tensor as it is; the parts of a sequence, or of a map by its keys, one after the other; an empty optional as nothing."""
    if isinstance(value, dict):
        value = [value[key] for key in sorted(value)]
    if isinstance(value, list):
        return np.concatenate([_array(part).ravel() for part in value]) if value else np.zeros(0)
    return np.zeros(0) if value is None else np.asarray(value)


def identity(model: ModelProto) -> bytes:
    """A model of nothing but the metadata, by which a library is known to belong to it."""
    return bytes(ModelProto(metadata_props=model.metadata_props).SerializeToString())


def without_weights(model: ModelProto) -> tuple[ModelProto, dict[str, ort.OrtValue]]:
    """The model with its large initializers taken out, and these as values to be shared by sessions.

    Those that nothing reads are left out: ONNX Runtime drops them, and then refuses a value for what it does not know.
    """
    skeleton, weights = ModelProto(), {}
    read = {name for node in model.graph.node for name in node.input} | {v.name for v in model.graph.output} | set(captured(model))
    for field, value in model.ListFields():
        if field.name != "graph":
            _copy_field(skeleton, field.name, value)
    for field, value in model.graph.ListFields():
        if field.name != "initializer":
            _copy_field(skeleton.graph, field.name, value)
    for tensor in model.graph.initializer:
        if len(tensor.raw_data) < _SHARED_FROM:
            skeleton.graph.initializer.append(tensor)
            continue
        if tensor.name not in read:
            continue
        outside = skeleton.graph.initializer.add(
            name=tensor.name, dims=tensor.dims, data_type=tensor.data_type, data_location=TensorProto.EXTERNAL
        )
        for key, value in (("location", "memory"), ("offset", "0"), ("length", str(len(tensor.raw_data)))):
            outside.external_data.add(key=key, value=value)
        weights[tensor.name] = _ort_value(tensor)
    return skeleton, weights


def _copy_field(message: ModelProto | GraphProto, name: str, value: object) -> None:
    target = getattr(message, name)
    if hasattr(target, "extend"):
        target.extend(value)
    elif hasattr(target, "CopyFrom"):
        target.CopyFrom(value)
    else:
        setattr(message, name, value)


def _ort_value(tensor: TensorProto) -> ort.OrtValue:
    values = onnx.numpy_helper.to_array(tensor)
    if tensor.data_type == TensorProto.BFLOAT16:  # numpy has no such type; ONNX Runtime takes the bits
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(values.view(np.uint16), TensorProto.BFLOAT16)
    return ort.OrtValue.ortvalue_from_numpy(values)


def _expose(model: ModelProto, names: Iterable[str], as_float: bool) -> list[str]:
    """Make `names` the only outputs of the model, and say under which names they come."""
    graph = model.graph
    types = {value.name: value for value in (*graph.output, *graph.input, *graph.value_info)}
    outputs = []
    for name in dict.fromkeys(names):
        if as_float and _may_be_float(types.get(name)):
            graph.node.append(onnx.helper.make_node("Cast", [name], [f"{name}//float"], to=TensorProto.FLOAT))
            outputs.append(ValueInfoProto(name=f"{name}//float"))
        else:
            outputs.append(types.get(name) or ValueInfoProto(name=name))
    kept = [ValueInfoProto.FromString(value.SerializeToString()) for value in outputs]
    del graph.output[:]
    graph.output.extend(kept)
    return [value.name for value in kept]


def _may_be_float(value: ValueInfoProto | None) -> bool:
    """Whether a value can be a bfloat16 tensor: known as that, or of unknown type."""
    if value is not None and value.type.WhichOneof("value") not in (None, "tensor_type"):
        return False
    return value is None or value.type.tensor_type.elem_type in (TensorProto.UNDEFINED, TensorProto.BFLOAT16)


def uses(model: ModelProto, types: Collection[int]) -> bool:
    """True if any initializer, declared value or Cast of the main graph is of one of the element types."""
    graph = model.graph
    return (
        any(tensor.data_type in types for tensor in graph.initializer)
        or any(value.type.tensor_type.elem_type in types for value in (*graph.input, *graph.value_info, *graph.output))
        or any(node.op_type == "Cast" and node.attribute and node.attribute[0].i in types for node in graph.node)
    )


@functools.cache
def available_providers() -> tuple[str, ...]:
    """The CPU provider, and CUDA where it is installed and a GPU works."""
    if CUDA not in ort.get_available_providers():
        return (CPU,)
    value = functools.partial(onnx.helper.make_tensor_value_info, elem_type=TensorProto.FLOAT, shape=[1])
    graph = onnx.helper.make_graph([onnx.helper.make_node("Abs", ["x"], ["y"])], "probe", [value("x")], [value("y")])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 13)], ir_version=8)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    try:
        session = ort.InferenceSession(model.SerializeToString(), options, providers=[CUDA, CPU])
        session.run(None, {"x": np.ones(1, np.float32)})
    except RUNTIME_ERRORS:
        return (CPU,)
    return (CPU, CUDA) if CUDA in session.get_providers() else (CPU,)
