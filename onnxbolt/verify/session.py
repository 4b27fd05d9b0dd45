"""Runs a model and returns any of its tensors, without copying the weights for each run."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping, Sequence
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
from onnxbolt.graph.skeleton import inferred_types
from onnxbolt.graph.weights import Weights
from onnxbolt.runtime import CPU_CHANNELS, cuda_failure, leave_out, session_options
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
# types of which ONNX Runtime takes and gives no arrays, and their types in numpy
_FP8: dict[int, np.dtype] = {
    kind: onnx.helper.tensor_dtype_to_np_dtype(kind)
    for kind in (
        TensorProto.FLOAT8E4M3FN,
        TensorProto.FLOAT8E4M3FNUZ,
        TensorProto.FLOAT8E5M2,
        TensorProto.FLOAT8E5M2FNUZ,
    )
}
# ONNX Runtime drops a Relu in front of QuantizeLinear whose zero point is the least code; its rule
# takes 0 for that in fp8, too, which has negative codes. Of two pairs of QuantizeLinear and
# DequantizeLinear in a row it leaves one, where nobody else reads what is between: a rounding less
_LEFT_OUT = ["ReluQuantRewrite", "DoubleQDQPairsRemover"]
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
        self._fp8 = _fp8_tensors(self.skeleton)
        self._last: tuple[tuple[str, ...], list[str], ort.InferenceSession] | None = None

    def run(self, feeds: dict[str, np.ndarray], names: Sequence[str]) -> dict[str, np.ndarray]:
        """The values of `names`, which may be any tensors of the main graph (none: the model just
        runs); bfloat16 is returned as float32.

        Raises one of RUNTIME_ERRORS where ONNX Runtime cannot load or run the model, LibraryError
        where the library does not fit.
        """
        wanted, exposed, session = self.load(names)
        types = {value.name: value.type for value in session.get_inputs()}
        feeds = _as_given(feeds, _FP8.values())
        # an input that was widened takes float32
        fitting = {
            name: a.astype(np.float32, copy=False) if types[name] == "tensor(float)" else a
            for name, a in feeds.items()
        }
        values = session.run(exposed, fitting)
        if self.weights.are_large:
            self._last = None  # two sessions of a large model need not fit into memory
        return self._arrays(wanted, values)

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
            _take_fp8(model)
            exposed = self._expose(model, wanted)
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
        exposed = self._expose(model, names)
        given = _as_given(feeds, (*_FP8.values(), np.dtype(ml_dtypes.bfloat16)))
        return self._arrays(names, self._session(model, read).run(exposed, given))

    def _expose(self, model: ModelProto, names: Iterable[str]) -> list[str]:
        return _expose(model, names, self._fp8.keys(), as_float=self.bfloat16)

    def _arrays(self, names: Iterable[str], values: Iterable[object]) -> dict[str, np.ndarray]:
        """The values of `names` that a session gave; fp8 values were cast, and get their type."""
        found = {name: _array(value) for name, value in zip(names, values, strict=True)}
        return {
            name: values.astype(self._fp8[name]) if name in self._fp8 else values
            for name, values in found.items()
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
            if kind == TensorProto.BFLOAT16 or kind in _FP8:  # numpy has no such type
                model.graph.node.append(_given(name, kind))
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
        leave_out(options, [*_LEFT_OUT, *([CPU_CHANNELS] if self.float16 else [])])
        self.weights.give(options, read)
        if self.weights.are_large and self.provider == CPU:
            _save_memory(options)
        # else ONNX Runtime makes operators on codes of QuantizeLinear, nodes and DequantizeLinear,
        # which round otherwise
        options.add_session_config_entry("session.disable_quant_qdq", "1")
        extra_ops.register(options)
        if self.library is not None:
            session_options(self.identity, library=self.library, options=options, strict=True)
        providers: list[object] = (
            [CPU]
            if self.provider == CPU
            else [(self.provider, {"use_tf32": str(int(self.tf32))}), CPU]
        )
        return ort.InferenceSession(model.SerializeToString(), options, providers=providers)


def _as_given(
    feeds: Mapping[str, np.ndarray], foreign: Collection[np.dtype]
) -> dict[str, np.ndarray]:
    """Feeds as a session takes them: float32, by the name of another input, for those in one of the
    types `foreign`."""
    given = {
        f"{name}{_GIVEN}": a.astype(np.float32) for name, a in feeds.items() if a.dtype in foreign
    }
    return given | {name: a for name, a in feeds.items() if a.dtype not in foreign}


def _given(name: str, kind: int) -> NodeProto:
    """The node that makes a tensor of the float32 that is fed for it."""
    cast = onnx.helper.make_node("Cast", [f"{name}{_GIVEN}"], [name], to=kind)
    if kind in _FP8:  # infinity stays infinity
        cast.attribute.append(onnx.helper.make_attribute("saturate", 0))
    return cast


def _take_fp8(model: ModelProto) -> None:
    """Let a model take float32 in place of inputs in fp8."""
    casts, given = list[NodeProto](), {tensor.name for tensor in model.graph.initializer}
    for value in model.graph.input:
        kind = value.type.tensor_type.elem_type
        if kind in _FP8 and value.name not in given:
            casts.append(_given(value.name, kind))
            value.name = f"{value.name}{_GIVEN}"
            value.type.tensor_type.elem_type = TensorProto.FLOAT
    nodes = [*casts, *model.graph.node]
    if casts:
        del model.graph.node[:]
        model.graph.node.extend(nodes)


def _fp8_tensors(model: ModelProto) -> dict[str, np.dtype]:
    """The types of the tensors in fp8, by name, as far as they are known."""
    if not uses(model, _FP8):
        return {}
    try:
        types = inferred_types(model)
    except (onnx.shape_inference.InferenceError, onnx.checker.ValidationError, ValueError):
        graph = model.graph
        types = {v.name: v.type for v in (*graph.input, *graph.value_info, *graph.output)}
    kinds = {name: kind.tensor_type.elem_type for name, kind in types.items()}
    return {name: _FP8[kind] for name, kind in kinds.items() if kind in _FP8}


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


def _expose(
    model: ModelProto, names: Iterable[str], cast: Container[str], as_float: bool
) -> list[str]:
    """Make `names` the only outputs of the model, and return the names under which they appear.
    Those in `cast` are cast to float32; with `as_float`, those that may be bfloat16, too."""
    graph = model.graph
    types = {value.name: value for value in (*graph.output, *graph.input, *graph.value_info)}
    outputs = []
    for name in dict.fromkeys(names):
        if name in cast or (as_float and _may_be_float(types.get(name))):
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
