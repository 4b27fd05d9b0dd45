"""Inputs for a model: from a file, or random, depending on their types and on what they index."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, numpy_helper

from onnxbolt.errors import InputError
from onnxbolt.files import check_regular
from onnxbolt.graph.edit import SELECTING
from onnxbolt.graph.element_types import numpy_dtype
from onnxbolt.graph.importer import tensor_type
from onnxbolt.graph.sizes import Sizes, filled
from onnxbolt.spelling import option
from onnxbolt.verify.draws import NORMAL, Draw
from onnxbolt.verify.session import RUNTIME_ERRORS, Runner

Feeds: TypeAlias = dict[str, np.ndarray]

# operators that pass an index on unchanged: the operators that read their result bound it
_PASSING = SELECTING | {"Cast"}
# input 1 selects along an axis of input 0
_INDEXING = ("Gather", "GatherElements", "ScatterElements")


# bytes of all arrays of an .npz, whose compressed file may be only a few kilobytes
_LARGEST_INPUTS = 2**34
# first bytes of .npz, of one without arrays, and of .npy
_MAGIC = (b"PK\x03\x04", b"PK\x05\x06", b"\x93NUMPY")
# a batch of two and images that are no squares show faults that others hide; the rest is for models
# that work only with the usual sizes
ATTEMPTS = (
    Sizes(2, (64, 96), 16),
    Sizes(2, (64, 64), 16),
    Sizes(1, (64, 64), 16),
    Sizes(1, (224, 224), 128),
)


def graph_inputs(model: ModelProto) -> list[ValueInfoProto]:
    """The graph inputs that a caller has to feed: those without an initializer."""
    given = {tensor.name for tensor in model.graph.initializer} | {
        s.values.name for s in model.graph.sparse_initializer
    }
    return [value for value in model.graph.input if value.name not in given]


def read_feeds(
    path: Path, model: ModelProto, argument: str = "inputs", labelled: bool = False
) -> Feeds:
    """The arrays of an .npz, which the option `argument` names: one per graph input, of the input's
    type; where they are `labelled`, others as well."""
    _require_tensors(model)
    arrays = _arrays(path, argument)
    wanted = {
        value.name: numpy_dtype(value.type.tensor_type.elem_type) for value in graph_inputs(model)
    }
    if set(arrays) != set(wanted) and not (labelled and set(wanted) <= set(arrays)):
        raise InputError(
            f"{option(argument, path)}: holds {', '.join(sorted(arrays)) or 'no arrays'}; the"
            f" model's inputs are {', '.join(wanted)}: save an array for each, under its name"
        )
    for name in wanted:
        array = arrays[name]
        if array.dtype.kind == "V" and array.dtype.itemsize == getattr(wanted[name], "itemsize", 0):
            # .npz keeps the bits of bfloat16, but not its name
            arrays[name] = array = array.view(wanted[name])
        if array.dtype.kind == "U" and wanted[name] == np.dtype(object):
            # strings, which .npz holds without pickling in this form alone
            arrays[name] = array = array.astype(object)
        if array.dtype != wanted[name]:
            raise InputError(
                f"{option(argument, path)}: {name} is {array.dtype}, the model takes"
                f" {wanted[name]}; convert the array"
            )
    return arrays


def _arrays(path: Path, argument: str) -> dict[str, Any]:
    """All arrays of an .npz. Raises InputError for any other file."""
    try:
        check_regular(path)
        with open(path, "rb") as file:  # numpy leaves a damaged one open
            if not file.peek(6).startswith(_MAGIC):  # else numpy advises to load it "unsafely"
                raise ValueError("it is not a zip archive")
            archive = np.load(file, allow_pickle=False)
            if isinstance(archive, np.ndarray):
                raise ValueError("it is an .npy file, one array without a name")
            declared = sum(member.file_size for member in archive.zip.infolist())
            if declared > _LARGEST_INPUTS:
                raise ValueError(
                    f"its arrays take {declared} bytes, more than the limit of {_LARGEST_INPUTS}"
                )
            arrays = {name: archive[name] for name in archive.files}
        if strange := [name for name, array in arrays.items() if not isinstance(array, np.ndarray)]:
            raise ValueError(f"its entry {strange[0]} is not an array")
    except Exception as error:
        # zipfile, zlib and numpy's parser of headers have a dozen kinds for damaged files
        raise InputError(
            f"{option(argument, path)}: not a readable .npz file"
            f" ({error or type(error).__name__}); give a file as numpy.savez writes it: one"
            " array per graph input, under the input's name"
        ) from error
    return arrays


def _require_tensors(model: ModelProto) -> None:
    """Raises InputError if an input is not a tensor: neither an .npz nor a random generator has
    values for it."""
    for value in graph_inputs(model):
        kind = value.type.WhichOneof("value")
        if kind not in (None, "tensor_type"):
            raise InputError(
                f"input {value.name} is not a tensor ({str(kind).removesuffix('_type')}),"
                " and only models whose inputs are tensors can be compared; to skip the"
                f" comparison, `optimize` has {option('verify', False)}"
            )


def working_feeds(model: ModelProto, runner: Runner, seed: int) -> Feeds:
    """Random inputs on which `runner` can run the model; for symbolic dimensions, several sizes are
    tried.

    Raises InputError where ONNX Runtime does not load the model, and where none of the inputs will
    do.
    """
    require_loads(runner)
    cause = ""
    symbolic = any(
        not isinstance(size, int)
        for value in graph_inputs(model)
        for size in tensor_type(value.type)[1] or ()
    )
    for sizes in ATTEMPTS if symbolic else ATTEMPTS[:1]:
        feeds = random_feeds(model, seed, sizes)
        try:
            runner.run(feeds, [])
        except RUNTIME_ERRORS as error:
            cause = cause or str(error)
        else:
            return feeds
    raise InputError(
        "the original model does not run on random inputs; give inputs with"
        f" {option('inputs', 'x.npz')}. ONNX Runtime says: {cause}"
    )


def require_loads(runner: Runner) -> None:
    """Raises InputError if ONNX Runtime does not load the model."""
    try:
        runner.load()
    except RUNTIME_ERRORS as error:
        raise InputError(
            "ONNX Runtime cannot load the original model, so there is nothing to compare"
            f" with; to skip the comparison, `optimize` has {option('verify', False)}. ONNX"
            f" Runtime says: {error}"
        ) from error


def random_feeds(model: ModelProto, seed: int = 0, sizes: Sizes = ATTEMPTS[0]) -> Feeds:
    """Random inputs: floats standard normal, others as `drawn` describes."""
    return drawn(model, shapes_for(model, sizes), seed)


def shapes_for(model: ModelProto, sizes: Sizes) -> dict[str, tuple[int, ...]]:
    """The shapes of all graph inputs, with `sizes` for symbolic dimensions; dimensions of the same
    name get the same size."""
    _require_tensors(model)
    declared = {value.name: tensor_type(value.type)[1] for value in graph_inputs(model)}
    for name, shape in declared.items():
        if shape is None:
            raise _no_rank(name)
    return filled(declared, sizes)


def _no_rank(name: str) -> InputError:
    return InputError(f"input {name} has no rank; give inputs with {option('inputs', 'x.npz')}")


def drawn(
    model: ModelProto, shapes: Mapping[str, Sequence[int]], seed: int, draw: Draw = NORMAL
) -> Feeds:
    """Random inputs: floats by `draw`, indices below the number of entries they select from, other
    integers one (masks, sizes), bytes of any value.

    Raises InputError for inputs without a shape, of a size beyond this machine's memory, or of a
    type that has no random values.
    """
    _require_tensors(model)
    for value in graph_inputs(model):
        if value.name not in shapes:
            raise _no_rank(value.name)
        _require_memory(value.name, shapes[value.name])
    rng, bounds = np.random.default_rng(seed), Bounds(model)
    return {
        value.name: _draw(value, tuple(shapes[value.name]), rng, bounds, draw)
        for value in graph_inputs(model)
    }


def physical_memory() -> int | None:
    """Bytes of this machine's memory; None where the system does not tell (Windows)."""
    if not hasattr(os, "sysconf"):
        return None
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _require_memory(name: str, shape: Sequence[int]) -> None:
    """Raises InputError if random values of this shape, which are drawn in float64, exceed the
    machine's memory."""
    size, memory = 8 * math.prod(shape), physical_memory()
    if memory is not None and size > memory:
        raise InputError(
            f"input {name} has the shape {list(shape)}: {size / 2**30:,.0f} GiB of random"
            f" values, and this machine has {memory / 2**30:,.0f} GiB of memory; correct the"
            f" model's shape, or skip the comparison with {option('verify', False)}"
        )


def _draw(
    value: ValueInfoProto,
    shape: tuple[int, ...],
    rng: np.random.Generator,
    bounds: Bounds,
    draw: Draw,
) -> np.ndarray:
    dtype = numpy_dtype(value.type.tensor_type.elem_type)
    if not isinstance(dtype, np.dtype) or dtype.kind in "OSUc":
        raise InputError(
            f"input {value.name}: no random values for its type; give inputs with"
            f" {option('inputs', 'x.npz')}"
        )
    if dtype.kind in "fV":  # ml_dtypes' types are of kind V
        return draw.values(rng, shape).astype(dtype)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    bound = bounds.of(value.name)
    if bound is None and dtype.itemsize == 1:
        limits = np.iinfo(dtype)
        return rng.integers(limits.min, limits.max + 1, shape).astype(dtype)
    return (
        np.ones(shape, dtype)
        if bound is None
        else rng.integers(0, max(bound, 1), shape).astype(dtype)
    )


class Bounds:
    """Upper bounds of integer inputs, found at the nodes that use them as indices."""

    def __init__(self, model: ModelProto) -> None:
        self.readers: dict[str, list[NodeProto]] = {}
        for node in model.graph.node:
            for name in dict.fromkeys(node.input):
                self.readers.setdefault(name, []).append(node)
        self.shapes: dict[str, tuple[int, ...]] = {
            t.name: tuple(t.dims) for t in model.graph.initializer
        }
        for node in model.graph.node:
            if (
                node.op_type == "Constant"
                and node.attribute
                and node.attribute[0].type == node.attribute[0].TENSOR
            ):
                self.shapes[node.output[0]] = tuple(node.attribute[0].t.dims)
        self.depths = {
            t.name: int(numpy_helper.to_array(t).reshape(()))
            for t in model.graph.initializer
            if _is_integer(t)
        }

    def of(self, name: str) -> int | None:
        """The smallest number of entries that the input selects from, directly or after operators
        that only move it."""
        return min(self._found({name}), default=None)

    def _found(self, names: set[str]) -> Iterator[int]:
        pending = sorted(names)
        while pending:
            name = pending.pop()
            for node in self.readers.get(name, ()):
                if (bound := self._bound(node, name)) is not None:
                    yield bound
                if (
                    node.op_type in _PASSING
                    and node.input[0] == name
                    and node.output[0] not in names
                ):
                    names.add(node.output[0])
                    pending.append(node.output[0])

    def _bound(self, node: NodeProto, name: str) -> int | None:
        if node.op_type == "OneHot" and node.input[0] == name:
            return self.depths.get(node.input[1])
        if node.op_type == "EmbedLayerNormalization":  # com.microsoft: ids and their tables
            table = {0: 2, 1: 4, 8: 3}.get(list(node.input).index(name))
            shape = self.shapes.get(node.input[table]) if table is not None else None
            return shape[0] if shape else None
        if (
            node.op_type not in _INDEXING
            or node.input[1] != name
            or node.input[0] not in self.shapes
        ):
            return None
        axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 0)
        return self.shapes[node.input[0]][axis]


def _is_integer(tensor: TensorProto) -> bool:
    return (
        tensor.data_type in (TensorProto.INT64, TensorProto.INT32) and math.prod(tensor.dims) == 1
    )
