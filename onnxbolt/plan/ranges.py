"""The points of a plan: sizes of the graph's inputs, several if dimensions are symbolic.

What is fused is decided at one of them, the opt point. Kernels are chosen at each point, and a node
carries a table of them by m, the rows of its (implicit) GEMM: a kernel serves every m above that of
the point before, up to that of its own. The first and the last kernel also serve smaller and larger
m.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import onnx_graphsurgeon as gs
from onnx import ModelProto

from onnxbolt.errors import InputError
from onnxbolt.graph.bodies import Value
from onnxbolt.graph.importer import tensor_type
from onnxbolt.graph.shapes import Shape, infer_at
from onnxbolt.graph.sizes import Sizes, contradicted, filled, open_images, without_names
from onnxbolt.measurements.timings import Choice
from onnxbolt.options import Options, Shapes
from onnxbolt.problems import UNBOUNDED
from onnxbolt.spelling import option

# Batches if no option says otherwise: a single sample, a batch that fills a GPU, and the geometric
# mean of both.
LEAST, OPT, MOST = 1, 8, 64
IMAGE = 224  # height and width of an input of rank 4
# height and width where both are open, of a single image. These have 1, 8 and 64 times the pixels
# of IMAGE, as the batches have.
LEAST_IMAGE, OPT_IMAGE, MOST_IMAGE = (224, 224), (448, 896), (1792, 1792)
UNKNOWN = 8  # any other unknown dimension; multiplied by 8 while a tensor would be empty
_LONGEST = UNKNOWN * 8**5  # 6 s of sound


@dataclass(frozen=True)
class Point:
    """Shapes by tensor's name, if they are not those of the graph."""

    shapes: Mapping[str, Shape] = field(default_factory=dict)

    def shape(self, tensor: gs.Tensor) -> Sequence[int | str | None] | None:
        """The shape, as far as it is known."""
        found: Sequence[int | str | None] | None = self.shapes.get(tensor.name, tensor.shape)
        return found

    def sizes(self, tensor: gs.Tensor) -> list[int]:
        """The shape with UNKNOWN for unknown dimensions, and 1 for empty ones."""
        return [
            max(size, 1) if isinstance(size, int) else UNKNOWN for size in self.shape(tensor) or ()
        ]


AS_IS = Point()


@dataclass(frozen=True)
class Ranges:
    """The points of a plan; a model of fixed sizes has one, with the graph's shapes."""

    opt: Point = AS_IS
    others: tuple[Point, ...] = ()

    @property
    def points(self) -> tuple[Point, ...]:
        return (self.opt, *self.others)


FIXED = Ranges()


def ranges_of(graph: gs.Graph, options: Options) -> Ranges:
    """The points that `options` ask for, otherwise batches of powers of two from LEAST to MOST;
    FIXED if no input is symbolic.

    Raises InputError if the options' shapes do not fit the inputs, or each other.
    """
    inputs: dict[str, Shape | None] = {tensor.name: tensor.shape for tensor in graph.inputs}
    extent = asked_for(options, inputs) or usual(graph, inputs)
    if all(list(shape) == inputs[name] for name, shape in extent.opt.items()):
        return FIXED
    first, *rest = (Point(shapes) for shapes in infer_at(graph, extent.points))
    return Ranges(first, tuple(rest))


def ranges_within(graph: gs.Graph, around: Ranges, values: Mapping[str, Value]) -> Ranges:
    """The points of a body's graph, whose inputs are `values` of the graph around it: those of that
    graph, and the usual batches where neither graph knows a size.

    Raises InputError as `infer_at` does.
    """
    inputs: dict[str, Shape | None] = {tensor.name: tensor.shape for tensor in graph.inputs}
    if around == FIXED or all(map(_is_fixed, inputs.values())):
        return ranges_of(graph, Options())
    usually = usual(graph, inputs).opt
    found = [
        {
            tensor.name: _sizes_of(tensor, usually[tensor.name], point, values[tensor.name])
            for tensor in graph.inputs
            if tensor.shape is not None
        }
        for point in around.points
    ]
    distinct = [shapes for i, shapes in enumerate(found) if shapes not in found[:i]]
    first, *rest = (Point(shapes) for shapes in infer_at(graph, distinct))
    return Ranges(first, tuple(rest))


def _is_fixed(shape: Shape | None) -> bool:
    return all(isinstance(size, int) for size in shape or ())


def _sizes_of(
    tensor: gs.Tensor, usually: Sequence[int], at: Point, value: Value
) -> tuple[int, ...]:
    """The sizes of a body's input at a point of the graph around it."""
    known = list(at.shapes.get(value.name, ()))
    if known and value.axis is not None:
        del known[value.axis]
    if len(known) != len(tensor.shape):
        known = [None] * len(tensor.shape)
    return tuple(
        next(size for size in sizes if isinstance(size, int))
        for sizes in zip(tensor.shape, known, usually, strict=True)
    )


@dataclass(frozen=True)
class Extent:
    """The shapes of all inputs from the least to the largest ones, which need not fit into memory
    together: `others` are beside the way from one to the other."""

    least: Shapes
    opt: Shapes
    most: Shapes
    images: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # axes of height and width
    others: tuple[Shapes, ...] = ()

    @property
    def points(self) -> list[Shapes]:
        """The points without repetition, the opt one first."""
        found: list[Shapes] = []
        for point in (self.opt, *self._doubling(), *self.others):
            if point not in found:
                found.append(point)
        return found

    def _doubling(self) -> Iterator[Shapes]:
        """Points from `least` to `most`: all dimensions double at once, but the width and the
        height of images in turn, each up to its largest size."""
        point, held = self.least, 0
        yield point
        while point != self.most:
            point = {name: self._doubled(name, shape, held) for name, shape in point.items()}
            held = 1 - held
            yield point

    def _doubled(self, name: str, shape: tuple[int, ...], held: int) -> tuple[int, ...]:
        """The doubled shape of an input; of height and width (0 and 1) the one that is `held` stays
        unless the other has reached its end."""
        ends, axes = self.most[name], self.images.get(name)
        grows = axes is not None and all(shape[axis] < ends[axis] for axis in axes)
        return tuple(
            size if grows and axes and axis == axes[held] else min(2 * size, ends[axis])
            for axis, size in enumerate(shape)
        )


def usual(graph: gs.Graph, inputs: Mapping[str, Shape | None]) -> Extent:
    """Batches from LEAST to MOST; where height and width are open, single images of several sizes,
    and the larger batches beside them. Other unknown dimensions are long enough for no tensor to be
    empty: eight samples of sound, for example, are less than one window of a spectrogram."""

    def at(batch: int, image: tuple[int, int] = (IMAGE, IMAGE), other: int = UNKNOWN) -> Shapes:
        return filled(inputs, Sizes(batch, image, other))

    length = UNKNOWN
    if at(OPT) != at(OPT, other=_LONGEST):
        while length < _LONGEST and _empty(graph, at(OPT, other=length)):
            length *= 8
    least, opt, most = batches = tuple(at(n, other=length) for n in (LEAST, OPT, MOST))
    if not open_images(inputs):
        return Extent(least, opt, most)
    least, opt, most = (at(LEAST, image) for image in (LEAST_IMAGE, OPT_IMAGE, MOST_IMAGE))
    return Extent(least, opt, most, _in_turn(inputs), batches)


def _in_turn(inputs: Mapping[str, Shape | None]) -> dict[str, tuple[int, int]]:
    """The axes of height and width of images that need not be squares."""
    return {
        name: axes
        for name, axes in open_images(inputs).items()
        if (shape := inputs[name]) and len({shape[axis] or axis for axis in axes}) == 2
    }


def _empty(graph: gs.Graph, at: Shapes) -> bool:
    """True if some tensor of unknown size is empty with inputs of these shapes."""
    tensors, shapes = (
        [tensor for node in graph.nodes for tensor in node.outputs],
        infer_at(graph, [at])[0],
    )
    sizes = [
        pair
        for tensor in tensors
        for pair in zip(tensor.shape or (), shapes.get(tensor.name, ()), strict=False)
    ]
    return any(
        isinstance(size, int) and size < 1 and not isinstance(known, int) for known, size in sizes
    )


# --- the user's request ---------------------------------------------------------------------------


# the first one that is given replaces the others that are not given
_MEANT = ("opt_shapes", "max_shapes", "min_shapes")


def asked_for(options: Options, inputs: Mapping[str, Shape | None]) -> Extent | None:
    """Least, opt and largest shapes of all inputs; None if no option gives any. As in trtexec, the
    opt shapes stand for those that are not given, and the largest ones for missing opt shapes."""
    asked = options.asked_shapes
    if not asked:
        return None
    unequal = contradicted(inputs, asked.values())
    inputs = {
        name: dims and [None if dim in unequal else dim for dim in dims]
        for name, dims in inputs.items()
    }
    given = {name: _complete(name, shapes, inputs) for name, shapes in asked.items()}
    opt = next(given[name] for name in _MEANT if name in given)
    least, middle, most = (
        given.get(name, opt) for name in ("min_shapes", "opt_shapes", "max_shapes")
    )
    for name in {**least, **middle, **most}:
        # ranks may differ if the model does not declare the input's rank
        if len({len(shapes.get(name, ())) for shapes in (least, middle, most)}) > 1:
            raise InputError(
                f"input {name}: give as many dimensions with each of"
                f" {', '.join(option(argument) for argument in _MEANT if argument in given)}"
            )
        if not all(
            a <= b <= c for a, b, c in zip(least[name], middle[name], most[name], strict=True)
        ):
            raise InputError(
                f"input {name}: {option('min_shapes')} {_text(least[name])}, {option('opt_shapes')}"
                f" {_text(middle[name])} and {option('max_shapes')} {_text(most[name])} have to be"
                " in this order in every dimension"
            )
    return Extent(least, middle, most, _in_turn(inputs))


def unshared(model: ModelProto, options: Options) -> tuple[ModelProto, list[str]]:
    """The model without names of sizes that the options' shapes contradict, and a line for the
    report on each."""
    declared = {value.name: tensor_type(value.type)[1] for value in model.graph.input}
    names = contradicted(declared, options.asked_shapes.values())
    return without_names(model, names), [
        f"sizes: the name {name} is not shared, because the given shapes contradict it ({sizes})"
        for name, sizes in names.items()
    ]


def _complete(argument: str, given: Shapes, inputs: Mapping[str, Shape | None]) -> Shapes:
    """The shapes of all inputs: the given ones, and others that follow from dimensions of the same
    name."""
    known: dict[str, int] = {}
    for name, shape in given.items():
        if name not in inputs:
            raise InputError(
                f"{option(argument)} {name}:{_text(shape)}: the model has no such input; its inputs"
                f" are {', '.join(inputs)}"
            )
        declared = inputs[name]
        if declared is not None and not _fits(shape, declared):
            raise InputError(
                f"{option(argument)} {name}:{_text(shape)} does not fit: the model says"
                f" {_text(declared)}"
            )
        known |= {
            dim: size
            for size, dim in zip(shape, declared or (), strict=False)
            if isinstance(dim, str)
        }
    complete = {name: tuple(shape) for name, shape in given.items()}
    for name, dims in inputs.items():
        if name not in given and dims is not None:
            sizes = [known.get(dim) if isinstance(dim, str) else dim for dim in dims]
            if None in sizes:
                raise InputError(
                    f"{option(argument)}: the input {name} is {_text(dims)}; give its shape, too,"
                    " as in x:[1,3,224,224],y:[1,10]"
                )
            complete[name] = tuple(size for size in sizes if size is not None)
    return complete


def _fits(shape: Sequence[int], declared: Shape) -> bool:
    """True if the model allows the shape."""
    return len(shape) == len(declared) and all(
        dim == size for size, dim in zip(shape, declared, strict=True) if isinstance(dim, int)
    )


def _text(shape: Sequence[int | str | None]) -> str:
    return f"[{','.join('?' if size is None else str(size) for size in shape)}]"


# --- tables ---------------------------------------------------------------------------------------


def table(rows: Iterable[tuple[int, Choice]]) -> list[Choice]:
    """A node's table of kernels, whose rows together serve every m from 0 to UNBOUNDED.

    `rows` are choices with the m that each was made for; the first choice for an m counts.
    Neighbours with the same configuration become one row: its time is that of the largest m, and it
    counts as measured if all of them are.
    """
    chosen: dict[int, Choice] = {}
    for m, choice in rows:
        chosen.setdefault(min(m, UNBOUNDED), choice)
    runs = [
        list(run) for _, run in itertools.groupby(sorted(chosen), key=lambda m: chosen[m].config)
    ]
    found: list[Choice] = []
    for run in runs:
        least = found[-1].config.max_m + 1 if found else 0
        config = dataclasses.replace(
            chosen[run[-1]].config, min_m=least, max_m=UNBOUNDED if run is runs[-1] else run[-1]
        )
        found.append(
            dataclasses.replace(
                chosen[run[-1]], config=config, measured=all(chosen[m].measured for m in run)
            )
        )
    return found
