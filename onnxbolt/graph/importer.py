"""ONNX file -> ModelProto -> gs.Graph, without loss: data that onnxbolt does not understand stays
in its protobuf messages."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

from onnxbolt.errors import InputError, OpsetError
from onnxbolt.files import check_regular
from onnxbolt.graph import stale, weights, wire
from onnxbolt.graph.edit import Constant, Node
from onnxbolt.graph.element_types import numpy_dtype
from onnxbolt.graph.lift import Lifted, default_opset, lifted
from onnxbolt.graph.scopes import captured, names, subgraphs
from onnxbolt.graph.sizes import open_unknown, size_of

WORKING_OPSET = (
    13  # the opset that the stages work on; operators of older opsets are converted to it
)
_PROBED = 11  # every supported ONNX Runtime knows this opset
_CONSTANT_VALUES = ("value", "value_float", "value_floats", "value_int", "value_ints")


def load_model(path: Path | str) -> ModelProto:
    """Read an ONNX file with its external data; the data of large initializers stay in their files
    (weights.py).

    Raises InputError where the file or its data is missing, damaged, not regular or not ONNX,
    OpsetError where its versions are out of range.
    """
    path = Path(path)
    check_regular(path)
    try:
        model = wire.read_model(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error
    except DecodeError as error:
        raise InputError(
            f"{path}: not an ONNX model, or truncated; export or download it again"
        ) from error
    if not model.ir_version or not model.HasField("graph") or not model.graph.output:
        raise InputError(
            f"{path}: not an ONNX model, or truncated: it has no graph with outputs; export"
            " or download it again"
        )
    check_versions(model, str(path))
    initializers = len(model.graph.initializer)  # these are the first tensors
    for place, tensor in enumerate(all_tensors(model)):
        if any(size < 0 for size in tensor.dims):
            raise InputError(
                f"{path}: tensor {tensor.name!r} has the shape {list(tensor.dims)}; export the"
                " model again"
            )
        if onnx.external_data_helper.uses_external_data(tensor):
            apart = place < initializers and weights.stored_bytes(tensor) >= weights.LARGE
            (_find_data if apart else _load_data)(tensor, path)
    open_unknown(model)
    return model


def external_files(path: Path) -> set[Path]:
    """The files beside a model that hold its data; none if the model cannot be read."""
    try:
        check_regular(path)
        model = wire.read_model(path)
    except (InputError, OSError, DecodeError):
        return set()
    outside = (
        tensor
        for tensor in all_tensors(model)
        if onnx.external_data_helper.uses_external_data(tensor)
    )
    return {
        path.parent / entry.value
        for tensor in outside
        for entry in tensor.external_data
        if entry.key == "location"
    }


def check_versions(model: ModelProto, where: str = "the model") -> None:
    """Raise OpsetError if onnx or the installed ONNX Runtime does not support the model's opset or
    IR version.

    A model that imports no opset of the default domain passes: it is written as it is.
    """
    opset, (newest, newest_ir) = default_opset(model), newest_versions()
    if not model.opset_import:
        raise OpsetError(f"{where}: it imports no opset, which ONNX requires; export it again")
    if opset is not None and not 1 <= opset <= newest:
        raise OpsetError(
            f"{where}: opset {opset} is not supported; onnx {onnx.__version__} and the"
            f" installed ONNX Runtime support 1 to {newest}. Convert the model with"
            " onnx.version_converter or export it again"
        )
    if not 3 <= model.ir_version <= newest_ir:
        raise OpsetError(
            f"{where}: IR version {model.ir_version} is not supported, only 3 to"
            f" {newest_ir}; export the model again"
        )


@functools.cache
def newest_versions() -> tuple[int, int]:
    """The newest opset and IR version that both onnx and ONNX Runtime support; ONNX Runtime has no
    query for them, so small models are tried."""
    opset, ir = onnx.defs.onnx_opset_version(), int(onnx.IR_VERSION)
    while ir > 3 and not _runtime_takes(_PROBED, ir):
        ir -= 1
    while opset > _PROBED and not _runtime_takes(opset, ir):
        opset -= 1
    return opset, ir


def _runtime_takes(opset: int, ir: int) -> bool:
    try:
        import onnxruntime
    except ImportError:  # onnxruntime is an extra: without it, onnx alone decides
        return True
    x, y = (onnx.helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy")
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Identity", ["x"], ["y"])], "probe", [x], [y]
    )
    model = onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=ir
    )
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:  # the base class of ONNX Runtime's exceptions
        if type(error).__module__.startswith("onnxruntime"):
            return False
        raise
    return True


def all_tensors(model: ModelProto) -> Iterator[TensorProto]:
    """Every tensor that may hold external data, the main graph's initializers first."""
    yield from _graph_tensors(model.graph)
    for function in model.functions:
        for node in function.node:
            yield from _node_tensors(node)


def _graph_tensors(graph: GraphProto) -> Iterator[TensorProto]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield sparse.values
        yield sparse.indices
    for node in graph.node:
        yield from _node_tensors(node)


def _node_tensors(node: NodeProto) -> Iterator[TensorProto]:
    for attribute in node.attribute:
        if attribute.HasField("t"):
            yield attribute.t
        yield from attribute.tensors
        for graph in subgraphs(attribute):
            yield from _graph_tensors(graph)


def _find_data(tensor: TensorProto, path: Path) -> None:
    """Point a large initializer to the place of its data."""
    weights.put_apart(tensor, *_place(tensor, path), weights.stored_bytes(tensor))


def _load_data(tensor: TensorProto, path: Path) -> None:
    """Load external data into the tensor."""
    file, offset = _place(tensor, path)
    try:
        with file.open("rb") as stream:
            stream.seek(offset)
            data = stream.read(weights.stored_bytes(tensor))
    except OSError as error:
        raise _no_data(tensor, path) from error
    tensor.ClearField("data_location")
    tensor.ClearField("external_data")
    tensor.raw_data = data


def _place(tensor: TensorProto, path: Path) -> tuple[Path, int]:
    """The file of the tensor's external data, and the offset in it; the file has all bytes."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location, size = entries.get("location", ""), weights.stored_bytes(tensor)
    try:
        file = _file_beside(path, location)
        offset, length = int(entries.get("offset", 0)), int(entries.get("length", size))
    # a loop of links, a name that is too long or has a NUL, an offset that is no number
    except (OSError, RuntimeError, ValueError) as error:
        raise _no_data(tensor, path) from error
    if file is None:
        raise _no_data(tensor, path)
    if offset < 0 or length < size or offset + length > file.stat().st_size:
        raise InputError(
            f"{path}: tensor {tensor.name!r}: its data file {location} is truncated; copy it again"
        )
    return file, offset


def _file_beside(path: Path, location: str) -> Path | None:
    """The file of a model's external data, links resolved: the model's own, or one below its
    directory or below that of the file that the model's link leads to; else None. Caches of models
    link both files to one directory of contents."""
    if location == path.name:
        return path.resolve()
    file = (path.parent / location).resolve()
    allowed = (path.parent.resolve(), path.resolve().parent)
    beside = not Path(location).is_absolute() and any(map(file.is_relative_to, allowed))
    return file if beside and file.is_file() else None


def _no_data(tensor: TensorProto, path: Path) -> InputError:
    location = next((entry.value for entry in tensor.external_data if entry.key == "location"), "")
    return InputError(
        f"{path}: tensor {tensor.name!r} has its data in {path.parent / location}, which is"
        " missing, cannot be read or leads out of the model's directory; put the data file beside"
        " the model"
    )


def import_model(model: ModelProto) -> gs.Graph:
    """The model's main graph; subgraphs and functions stay protos.

    Operators of opsets before WORKING_OPSET are lifted to it. Stored types and shapes are left out
    where inference contradicts them. Beside graphsurgeon's fields the graph has `source` (the
    model), `captured` (names that must still be produced because subgraphs, training information or
    quantization annotations read them), `skipped` (source nodes that stay: none yet), `archs`
    (those that the model is written for: any), `constants` (by name, all of the source),
    `source_tensors` (names), `taken_names`, `stored_types` (value_info that is believed) and
    `notes` (lines for the report); see docs/architecture.md for the fields of nodes and constants.
    Raises InputError where a node reads what nothing produces, LiftError where an old operator has
    no newer form.
    """
    proto, notes = model.graph, list[str]()
    new = lifted(model, WORKING_OPSET)
    outputs, inner = _believed(model, notes)
    overridable = {value.name for value in proto.input} if model.ir_version >= 4 else set()
    constants = {
        t.name: Constant(t.name, t) for t in proto.initializer if t.name not in overridable
    }
    constants |= {
        name: constant
        for i, node in enumerate(new.nodes)
        for name, constant in _constant_node(node, i)
    }
    tensors: dict[str, gs.Tensor] = dict(constants)
    # no stage computes with these: variables that no node produces
    for sparse in proto.sparse_initializer:
        tensors[sparse.values.name] = gs.Variable(
            sparse.values.name, numpy_dtype(sparse.values.data_type), list(sparse.dims)
        )
    for value in (*proto.input, *outputs, *inner):
        if value.name not in tensors:
            tensors[value.name] = _variable(value)
    nodes = [
        _import_node(node, i, tensors, new)
        for i, node in enumerate(new.nodes)
        if not (node.output and node.output[0] in constants)
    ]
    graph = gs.Graph(
        nodes,
        [tensors[v.name] for v in proto.input if v.name not in constants],
        [tensors[v.name] for v in proto.output],
        name=proto.name,
        doc_string=proto.doc_string,
        opset=new.opset,
        import_domains=new.opset_import,
        producer_name=model.producer_name,
        producer_version=model.producer_version,
        ir_version=model.ir_version,
    )
    graph.source, graph.constants, graph.captured = model, constants, frozenset(captured(model))
    graph.skipped = frozenset[str]()
    graph.archs = ()
    _check_produced(
        graph, overridable | {sparse.values.name for sparse in proto.sparse_initializer}
    )
    graph.source_tensors = frozenset(tensors) - new.made
    graph.taken_names = set(tensors) | set(names(proto)) | set(new.stands_for)
    graph.stored_types, graph.notes = inner, notes
    return graph


def _believed(
    model: ModelProto, notes: list[str]
) -> tuple[Sequence[ValueInfoProto], Sequence[ValueInfoProto]]:
    """The types that the model stores for its outputs and for inner tensors. If inference
    contradicts any of them: only the outputs' types, without shapes."""
    outputs, inner = model.graph.output, model.graph.value_info
    wrong = stale.contradictions(model)
    if not wrong:
        return outputs, inner
    notes.append(
        f"value_info: {len(wrong)} of {len(outputs) + len(inner)} stored types and shapes"
        f" contradict shape inference, so none of them is used; e.g. {wrong[0]}"
    )
    return [_without_shape(value) for value in outputs], []


def _without_shape(value: ValueInfoProto) -> ValueInfoProto:
    bare = ValueInfoProto()
    bare.CopyFrom(value)
    if bare.type.HasField("tensor_type"):
        bare.type.tensor_type.ClearField("shape")
    return bare


def _check_produced(graph: gs.Graph, given: set[str]) -> None:
    given = given | {tensor.name for tensor in graph.inputs}
    readers = [
        (f"node {node.name or node.op}", tensor) for node in graph.nodes for tensor in node.inputs
    ]
    for reader, tensor in [*readers, *(("the graph", tensor) for tensor in graph.outputs)]:
        if (
            isinstance(tensor, gs.Variable)
            and tensor.name
            and not tensor.inputs
            and tensor.name not in given
        ):
            raise InputError(
                f"{reader} needs the tensor {tensor.name!r}, which no node produces: the model is"
                " damaged; export it again"
            )


def _variable(value: ValueInfoProto) -> gs.Variable:
    kind = value.type.WhichOneof("value")
    if kind != "tensor_type":
        return gs.Variable(value.name, type=kind or "tensor_type")
    dtype, shape = tensor_type(value.type)
    return gs.Variable(value.name, dtype=dtype, shape=shape)


def tensor_type(kind: onnx.TypeProto) -> tuple[Any, list[int | str | None] | None]:
    """(dtype, shape) of a tensor's type. A symbolic dimension is a string, an unknown dimension is
    None, and the shape of unknown rank is None."""
    if not kind.HasField("tensor_type"):
        return None, None
    tensor = kind.tensor_type
    if not tensor.HasField("shape"):
        return numpy_dtype(tensor.elem_type), None
    return numpy_dtype(tensor.elem_type), [size_of(dim) for dim in tensor.shape.dim]


def _constant_node(node: NodeProto, position: int) -> Iterator[tuple[str, Constant]]:
    """The Constant of a Constant node; None for its sparse and string forms, which stay nodes."""
    if node.op_type != "Constant" or node.domain not in ("", "ai.onnx") or len(node.attribute) != 1:
        return
    attribute, name = node.attribute[0], node.output[0]
    if attribute.name not in _CONSTANT_VALUES or attribute.ref_attr_name:
        return
    tensor = attribute.t if attribute.name == "value" else _scalar_or_list(attribute, name)
    yield name, Constant(name, tensor, origin=node, position=position)


def _scalar_or_list(attribute: AttributeProto, name: str) -> TensorProto:
    dtype = np.float32 if "float" in attribute.name else np.int64
    return onnx.numpy_helper.from_array(
        np.array(onnx.helper.get_attribute_value(attribute), dtype), name
    )


def _import_node(
    proto: NodeProto, position: int, tensors: dict[str, gs.Tensor], new: Lifted
) -> Node:
    def tensor(name: str) -> gs.Tensor:
        return tensors.setdefault(name, gs.Variable(name)) if name else gs.Variable.empty()

    node = Node(
        proto.op_type,
        proto.name,
        attributes_of(proto),
        [tensor(n) for n in proto.input],
        [tensor(n) for n in proto.output],
        "" if proto.domain == "ai.onnx" else proto.domain,
        (new.stands_for.get(proto.name) or proto.name or next(iter(proto.output), ""),),
    )
    node.origin, node.position = proto, position
    return node


def attributes_of(node: NodeProto) -> dict[str, Any]:
    """A node's attributes by name, in the types that graphs in memory hold."""
    return {attribute.name: _value(attribute) for attribute in node.attribute}


def _value(attribute: AttributeProto) -> Any:
    """Numbers, lists, strings and tensors as Python and numpy types; other attributes as their
    protobuf message."""
    if attribute.ref_attr_name:
        return attribute
    decode: dict[int, Callable[[], Any]] = {
        AttributeProto.INT: lambda: attribute.i,
        AttributeProto.FLOAT: lambda: attribute.f,
        AttributeProto.STRING: lambda: _text(attribute.s),
        AttributeProto.INTS: lambda: list(attribute.ints),
        AttributeProto.FLOATS: lambda: list(attribute.floats),
        AttributeProto.STRINGS: lambda: [_text(s) for s in attribute.strings],
        AttributeProto.TENSOR: lambda: _array(attribute.t),
    }
    return decode.get(attribute.type, lambda: attribute)()


def _text(value: bytes) -> str | bytes:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def _array(tensor: TensorProto) -> np.ndarray | TensorProto:
    """A small tensor's values; large and external tensors stay messages, because no stage computes
    with them."""
    known = isinstance(
        numpy_dtype(tensor.data_type), np.dtype
    ) and not onnx.external_data_helper.uses_external_data(tensor)
    return (
        onnx.numpy_helper.to_array(tensor) if known and math.prod(tensor.dims) <= 4096 else tensor
    )
