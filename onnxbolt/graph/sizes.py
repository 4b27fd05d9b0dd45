"""Sizes that a model leaves open: unknown ones, and names that stand for one size wherever they are
written; and numbers for them, where some are needed.

Exporters write an unknown size in several ways, and two unknown sizes need not be equal. A name is
a promise that the model's author may have made by mistake; shapes that the user gives count more.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from onnx import GraphProto, ModelProto, TensorShapeProto

from onnxbolt.graph.fields import copy_fields
from onnxbolt.graph.scopes import subgraphs

Size: TypeAlias = "int | str | None"
Dimension: TypeAlias = TensorShapeProto.Dimension
Given: TypeAlias = Mapping[str, Sequence[int]]  # the shapes of graph inputs, by name
Declared: TypeAlias = Mapping[str, "Sequence[Size] | None"]  # likewise; None: of unknown rank

# written for an unknown size; two dimensions with such a "name" need not be equal
_NAMELESS = frozenset({"", "?", "*", "-1", "None"})


# channels of a picture: where they are last, an input of rank 4 is NHWC
_CHANNELS = (1, 3, 4)
# how torch names the last size of scores [S, S] behind a Reshape to [.., S, -1] (BLOOM)
_DIVIDED_SQUARE = re.compile(r"\(\((\w+)\*\*2\)//\1\)")


@dataclass(frozen=True)
class Sizes:
    """Numbers for open dimensions."""

    batch: int  # the first dimension, and others of its name
    image: tuple[int, int]  # height and width of an image
    other: int


def size_of(dimension: Dimension) -> Size:
    """A declared size: a number, a name, or None if it is unknown."""
    if dimension.HasField("dim_value"):
        # older exporters write -1 for an unknown size, and ONNX Runtime reads it so
        return int(dimension.dim_value) if dimension.dim_value >= 0 else None
    name: str = dimension.dim_param
    square = _DIVIDED_SQUARE.fullmatch(name)
    return None if name.strip() in _NAMELESS else square[1] if square else name


def open_unknown(model: ModelProto) -> None:
    """Remove what is written for unknown sizes, which onnx's inference and numpy would take for
    numbers or for names."""
    for dimension in _dimensions(model.graph, _is_unknown):
        dimension.ClearField(dimension.WhichOneof("value"))


def without_unknown(model: ModelProto) -> ModelProto:
    """The model as `open_unknown` leaves it; `model` itself, which belongs to the caller, if that
    changes nothing."""
    return _opened(model, _is_unknown)


def without_names(model: ModelProto, names: Collection[str]) -> ModelProto:
    """The model without these names of sizes, and without expressions of them ("2*height")."""
    if not names:
        return model
    wanted = re.compile(rf"(?<![\w.])(?:{'|'.join(map(re.escape, sorted(names)))})(?![\w.])")
    return _opened(model, lambda dimension: wanted.search(dimension.dim_param) is not None)


def contradicted(declared: Declared, given: Iterable[Given]) -> dict[str, str]:
    """The names to which one of `given` gives several sizes, with these as text: "8 in x, 7 in
    y"."""
    found: dict[str, str] = {}
    for shapes in given:
        sizes: dict[str, dict[int, str]] = {}
        for name, shape in shapes.items():
            dims = declared.get(name) or ()
            if len(dims) == len(shape):
                for dim, size in zip(dims, shape, strict=True):
                    if isinstance(dim, str):
                        sizes.setdefault(dim, {}).setdefault(size, name)
        for dim, inputs in sizes.items():
            if len(inputs) > 1:
                found.setdefault(dim, ", ".join(f"{size} in {x}" for size, x in inputs.items()))
    return found


def filled(declared: Declared, sizes: Sizes) -> dict[str, tuple[int, ...]]:
    """The shapes of inputs, except those of unknown rank, with `sizes` for open dimensions;
    dimensions of one name are equal."""
    ranked = {name: shape for name, shape in declared.items() if shape is not None}
    named = {
        shape[0]: sizes.batch for shape in ranked.values() if shape and isinstance(shape[0], str)
    }
    axes = _image_axes(ranked)

    def size(name: str, axis: int, known: Size) -> int:
        if isinstance(known, int):
            return known
        number = sizes.batch if axis == 0 else sizes.other
        if axis in axes.get(name, ()):
            number = sizes.image[axes[name].index(axis)]
        return number if known is None else named.setdefault(known, number)

    return {
        name: tuple(size(name, axis, known) for axis, known in enumerate(shape))
        for name, shape in ranked.items()
    }


def open_images(declared: Declared) -> dict[str, tuple[int, int]]:
    """The axes of height and width of inputs, both of which are open. There is none where another
    dimension than these and the first is open, too, as in a model of images and texts."""
    ranked = {name: shape for name, shape in declared.items() if shape is not None}
    found = {
        name: axes
        for name, axes in _image_axes(ranked).items()
        if not any(isinstance(ranked[name][axis], int) for axis in axes)
    }
    others = (
        isinstance(size, int) or axis == 0 or axis in found.get(name, ())
        for name, shape in ranked.items()
        for axis, size in enumerate(shape)
    )
    return found if all(others) else {}


def _image_axes(ranked: Mapping[str, Sequence[Size]]) -> dict[str, tuple[int, int]]:
    """The axes of height and width of inputs that may be images: those of rank 4 but for masks,
    whose sizes are those of sequences."""
    sequences = {
        size for shape in ranked.values() if len(shape) != 4 for size in shape if size is not None
    }
    found = {}
    for name, shape in ranked.items():
        if len(shape) == 4:
            last = shape[3] in _CHANNELS and not any(isinstance(size, int) for size in shape[1:3])
            axes = (1, 2) if last else (2, 3)
            if not any(isinstance(shape[a], str) and shape[a] in sequences for a in axes):
                found[name] = axes
    return found


def _is_unknown(dimension: Dimension) -> bool:
    return size_of(dimension) is None


def _opened(model: ModelProto, is_open: Callable[[Dimension], bool]) -> ModelProto:
    """The model without the declared sizes for which `is_open` holds."""
    if not _dimensions(model.graph, is_open):
        return model
    result = ModelProto()
    copy_fields(model, result, skip=("graph",))
    copy_fields(model.graph, result.graph, skip=())
    for dimension in _dimensions(result.graph, is_open):
        dimension.ClearField(dimension.WhichOneof("value"))
    return result


def _dimensions(graph: GraphProto, wanted: Callable[[Dimension], bool]) -> list[Dimension]:
    """The dimensions that declare a size or a name, and for which `wanted` holds."""
    return [
        dimension
        for dimension in _declared(graph)
        if dimension.WhichOneof("value") is not None and wanted(dimension)
    ]


def _declared(graph: GraphProto) -> Iterator[Dimension]:
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.HasField("tensor_type"):
            yield from value.type.tensor_type.shape.dim
    for node in graph.node:
        for attribute in node.attribute:
            for inner in subgraphs(attribute):
                yield from _declared(inner)
