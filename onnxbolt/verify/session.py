"""Runs a model and returns any of its tensors, without copying the weights for each run."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto
from onnxruntime.capi import onnxruntime_pybind11_state as state

from onnxbolt import extra_ops
from onnxbolt.graph.bodies import has_bodies
from onnxbolt.graph.exporter import FUSED_DOMAIN
from onnxbolt.graph.fields import copy_fields
from onnxbolt.graph.inlining import with_inner
from onnxbolt.graph.scopes import captured
from onnxbolt.graph.weights import Weights
from onnxbolt.runtime import cuda_failure, keep_channels, session_options
from onnxbolt.verify.shared import SharedWeights

# ONNX Runtime's own exception classes derive from Exception alone
RUNTIME_ERRORS: tuple[type[Exception], ...] = (
    *(
        kind
        for kind in vars(state).values()
        if isinstance(kind, type) and issubclass(kind, Exception)
    ),
    RuntimeError,
    ValueError,
)
_GIVEN = "//given"  # suffix of inputs that are fed in another type
CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"


class Runner:
    """A model on one execution provider. Each `run` may ask for other tensors; all its sessions
    share the weights.

    `large` has the data that initializers of the model lack.
    """

    def __init__(
        self,
        model: ModelProto,
        provider: str,
        library: Path | None = None,
        tf32: bool = False,
        large: Weights | None = None,
    ) -> None:
        self.provider, self.library, self.tf32 = provider, library, tf32
        self.weights = SharedWeights(model, large or {})
        self.skeleton = self.weights.skeleton
        self.identity = identity(model)
        self.outputs = [value.name for value in model.graph.output]
        self.bfloat16, self.float16 = (
            uses(model, [TensorProto.BFLOAT16]),
            uses(model, [TensorProto.FLOAT16]),
        )
        self._last: tuple[tuple[str, ...], list[str], ort.InferenceSession] | None = None

    def run(self, feeds: dict[str, np.ndarray], names: Sequence[str]) -> dict[str, np.ndarray]:
        """The values of `names`, which may be any tensors of the main graph (none: the model just
        runs); bfloat16 is returned as float32.

        Raises one of RUNTIME_ERRORS where ONNX Runtime cannot load or run the model, LibraryError
        where the library does not fit.
        """
        wanted, exposed, session = self.load(names)
        types = {value.name: value.type for value in session.get_inputs()}
        # an input that was widened takes float32
        fitting = {
            name: a.astype(np.float32, copy=False) if types[name] == "tensor(float)" else a
            for name, a in feeds.items()
        }
        values = session.run(exposed, fitting)
        if self.weights.are_large:
            self._last = None  # two sessions of a large model need not fit into memory
        return {name: _array(value) for name, value in zip(wanted, values, strict=True)}

    def load(
        self, names: Sequence[str] = ()
    ) -> tuple[tuple[str, ...], list[str], ort.InferenceSession]:
        """The session for `names`, and the names without repetition, as the session calls them.

        Raises as `run` does, where ONNX Runtime cannot load the model.
        """
        wanted = tuple(dict.fromkeys(names or self.outputs))
        if self._last is None or self._last[0] != wanted:
            self._last = None  # frees the memory of the last session before the next one needs it
            model = ModelProto()
            model.CopyFrom(self.skeleton)
            exposed = _expose(model, wanted, as_float=self.bfloat16)
            self._last = wanted, exposed, self._session(model)
        return self._last

    def part(
        self, nodes: Sequence[NodeProto], feeds: Mapping[str, np.ndarray], names: Sequence[str]
    ) -> dict[str, np.ndarray]:
        """The values of `names`, which `nodes` compute from `feeds` and the model's initializers;
        the rest of the model is not loaded.

        bfloat16 comes as float32. Raises as `run` does.
        """
        model, read = self._part(nodes, feeds)
        exposed = _expose(model, names, as_float=self.bfloat16)
        given = {
            f"{name}{_GIVEN}" if a.dtype == ml_dtypes.bfloat16 else name: _as_given(a)
            for name, a in feeds.items()
        }
        return {
            name: _array(value)
            for name, value in zip(
                names, self._session(model, read).run(exposed, given), strict=True
            )
        }

    def _part(
        self, nodes: Sequence[NodeProto], feeds: Mapping[str, np.ndarray]
    ) -> tuple[ModelProto, set[str]]:
        """A model of some nodes whose inputs are `feeds`, and the names that it reads besides
        them."""
        model, graph = ModelProto(), self.skeleton.graph
        copy_fields(self.skeleton, model, skip=("graph", "functions"))
        called = {node.op_type for node in with_inner(nodes)}
        model.functions.extend(
            f for f in self.skeleton.functions if f.name in called or f.domain != FUSED_DOMAIN
        )
        model.graph.name = "part"
        # with fixed sizes ONNX Runtime 1.32 takes Ifs for decided and then refuses their results
        is_open = any(has_bodies(node) for node in nodes)
        for name, array in feeds.items():
            kind = (
                TensorProto.STRING
                if array.dtype == object
                else onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
            )
            if kind == TensorProto.BFLOAT16:  # numpy has no such type
                model.graph.node.append(
                    onnx.helper.make_node("Cast", [f"{name}{_GIVEN}"], [name], to=kind)
                )
                name, kind = f"{name}{_GIVEN}", TensorProto.FLOAT
            shape = [None] * array.ndim if is_open else array.shape
            model.graph.input.append(onnx.helper.make_tensor_value_info(name, kind, shape))
        model.graph.node.extend(nodes)
        read = (
            {name for node in nodes for name in node.input} | set(captured(model))
        ) - feeds.keys()
        made = {name for node in nodes for name in node.output}
        model.graph.initializer.extend(
            tensor for tensor in graph.initializer if tensor.name in read
        )
        model.graph.sparse_initializer.extend(
            sparse for sparse in graph.sparse_initializer if sparse.values.name in read
        )
        for value in (*graph.value_info, *graph.output):
            # shapes are those of other inputs
            if value.name in made and (kind := value.type.tensor_type.elem_type):
                model.graph.value_info.append(
                    onnx.helper.make_tensor_value_info(value.name, kind, None)
                )
        return model, read

    def _session(
        self, model: ModelProto, read: Collection[str] | None = None
    ) -> ort.InferenceSession:
        """A session of `model`; `read` has the names of the weights that it reads (None: all)."""
        options = ort.SessionOptions()
        options.log_severity_level = 4
        if self.float16:
            keep_channels(options)
        self.weights.give(options, read)
        if self.weights.are_large and self.provider == CPU:
            _save_memory(options)
        extra_ops.register(options)
        if self.library is not None:
            session_options(self.identity, library=self.library, options=options, strict=True)
        providers: list[object] = (
            [CPU]
            if self.provider == CPU
            else [(self.provider, {"use_tf32": str(int(self.tf32))}), CPU]
        )
        return ort.InferenceSession(model.SerializeToString(), options, providers=providers)


def _as_given(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float32) if values.dtype == ml_dtypes.bfloat16 else values


def _save_memory(options: ort.SessionOptions) -> None:
    """Reduce the memory of a session on the CPU, which should hold little beside the mapped
    weights.

    Else ONNX Runtime copies them three times: packed for its products, widened to fp32 where it has
    no kernels for fp16, and in arenas.
    """
    options.add_session_config_entry("session.disable_prepacking", "1")
    # constant folding widens all weights in advance
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    # ONNX Runtime's default order runs all Casts of weights first
    options.execution_order = ort.ExecutionOrder.PRIORITY_BASED
    options.enable_cpu_mem_arena = options.enable_mem_pattern = False


def _array(value: object) -> np.ndarray:
    """A tensor as an array. A sequence's elements, or a map's values in the order of its keys, are
    concatenated; an empty optional has no elements."""
    if isinstance(value, dict):
        value = [value[key] for key in sorted(value)]
    if isinstance(value, list):
        return np.concatenate([_array(part).ravel() for part in value]) if value else np.zeros(0)
    return np.zeros(0) if value is None else np.asarray(value)


def identity(model: ModelProto) -> bytes:
    """A model that consists of metadata only, by which the library checks that it belongs to the
    model."""
    return bytes(ModelProto(metadata_props=model.metadata_props).SerializeToString())


def _expose(model: ModelProto, names: Iterable[str], as_float: bool) -> list[str]:
    """Make `names` the only outputs of the model, and return the names under which they appear."""
    graph = model.graph
    types = {value.name: value for value in (*graph.output, *graph.input, *graph.value_info)}
    outputs = []
    for name in dict.fromkeys(names):
        if as_float and _may_be_float(types.get(name)):
            graph.node.append(
                onnx.helper.make_node("Cast", [name], [f"{name}//float"], to=TensorProto.FLOAT)
            )
            outputs.append(ValueInfoProto(name=f"{name}//float"))
        else:
            outputs.append(types.get(name) or ValueInfoProto(name=name))
    kept = [ValueInfoProto.FromString(value.SerializeToString()) for value in outputs]
    del graph.output[:]
    graph.output.extend(kept)
    return [value.name for value in kept]


def _may_be_float(value: ValueInfoProto | None) -> bool:
    """True if a value may be a bfloat16 tensor: its type is bfloat16 or unknown."""
    if value is not None and value.type.WhichOneof("value") not in (None, "tensor_type"):
        return False
    return value is None or value.type.tensor_type.elem_type in (
        TensorProto.UNDEFINED,
        TensorProto.BFLOAT16,
    )


def uses(model: ModelProto, types: Collection[int]) -> bool:
    """True if an initializer or a declared value of the main graph, or a Cast, has one of the
    element types."""
    graph = model.graph
    return (
        any(tensor.data_type in types for tensor in graph.initializer)
        or any(
            value.type.tensor_type.elem_type in types
            for value in (*graph.input, *graph.value_info, *graph.output)
        )
        or any(
            node.op_type == "Cast" and node.attribute and node.attribute[0].i in types
            for node in with_inner(graph.node)
        )
    )


def available_providers() -> tuple[str, ...]:
    """The CPU provider, and the CUDA provider if it is installed and a GPU works."""
    return (CPU, CUDA) if CUDA in ort.get_available_providers() and not cuda_failure() else (CPU,)
