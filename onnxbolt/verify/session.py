"""Run a model and look at any of its tensors, without copying its weights for each look."""
from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import ModelProto, TensorProto, ValueInfoProto
from onnxruntime.capi import onnxruntime_pybind11_state as state

from onnxbolt import extra_ops
from onnxbolt.graph.weights import Weights
from onnxbolt.runtime import cuda_failure, keep_channels, session_options
from onnxbolt.verify.shared import SharedWeights

# ONNX Runtime's own exception classes derive from Exception alone
RUNTIME_ERRORS: tuple[type[Exception], ...] = (
    *(kind for kind in vars(state).values() if isinstance(kind, type) and issubclass(kind, Exception)), RuntimeError, ValueError,
)
CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"


class Runner:
    """A model on one execution provider. Each `run` may expose other tensors as outputs; all its sessions share the weights.

    `large` has the data that initializers of the model lack.
    """

    def __init__(self, model: ModelProto, provider: str, library: Path | None = None, tf32: bool = False,
                 large: Weights | None = None) -> None:
        self.provider, self.library, self.tf32 = provider, library, tf32
        self.weights = SharedWeights(model, large or {})
        self.skeleton = self.weights.skeleton
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
        values = session.run(exposed, fitting)
        if self.weights.are_large:
            self._last = None  # two sessions of a large model need not fit into memory
        return {name: _array(value) for name, value in zip(wanted, values, strict=True)}

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
        self.weights.give(options)
        if self.weights.are_large and self.provider == CPU:
            _save_memory(options)
        extra_ops.register(options)
        if self.library is not None:
            session_options(self.identity, library=self.library, options=options, strict=True)
        providers: list[object] = [CPU] if self.provider == CPU else [(self.provider, {"use_tf32": str(int(self.tf32))}), CPU]
        return ort.InferenceSession(model.SerializeToString(), options, providers=providers)


def _save_memory(options: ort.SessionOptions) -> None:
    """Let a session on the CPU hold little beside the mapped weights.

    Else ONNX Runtime copies them three times: packed for its products, widened to fp32 where it has no kernels for fp16, and in arenas.
    """
    options.add_session_config_entry("session.disable_prepacking", "1")
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL  # constant folding widens all weights in advance
    options.execution_order = ort.ExecutionOrder.PRIORITY_BASED  # by default Casts of weights run first, all of them
    options.enable_cpu_mem_arena = options.enable_mem_pattern = False


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


def available_providers() -> tuple[str, ...]:
    """The CPU provider, and CUDA where it is installed and a GPU works."""
    return (CPU, CUDA) if CUDA in ort.get_available_providers() and not cuda_failure() else (CPU,)
