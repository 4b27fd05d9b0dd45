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
from onnxbolt.graph.importer import tensor_type
from onnxbolt.graph.shapes import Shape, infer_at
from onnxbolt.graph.sizes import contradicted, without_names
from onnxbolt.measurements.timings import Choice
from onnxbolt.options import Options, Shapes
from onnxbolt.problems import UNBOUNDED
from onnxbolt.spelling import option

# Batches if no option says otherwise: a single sample, a batch that fills a GPU, and the geometric
# mean of both.
LEAST, OPT, MOST = 1, 8, 64
IMAGE = 224  # height and width of an input of rank 4
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
    least, opt, most = asked_for(options, inputs) or usual(graph, inputs)
    if all(list(shape) == inputs[name] for name, shape in opt.items()):
        return FIXED
    others = [point for point in doubling(least, most) if point != opt]
    first, *rest = (Point(shapes) for shapes in infer_at(graph, [opt, *others]))
    return Ranges(first, tuple(rest))


def doubling(least: Shapes, most: Shapes) -> Iterator[Shapes]:
    """Points from `least` to `most`: all dimensions double at once, each up to its largest size."""
    point = least
    yield point
    while point != most:
        point = {
            name: tuple(min(2 * size, end) for size, end in zip(shape, most[name], strict=True))
            for name, shape in point.items()
        }
        yield point


def usual(graph: gs.Graph, inputs: Mapping[str, Shape | None]) -> list[Shapes]:
    """Least, opt and largest batches. Other unknown dimensions are long enough for no tensor to be
    empty: eight samples of sound, for example, are less than one window of a spectrogram."""
    length = UNKNOWN
    if _batches(inputs, OPT) != _batches(inputs, OPT, _LONGEST):
        while length < _LONGEST and _empty(graph, _batches(inputs, OPT, length)):
            length *= 8
    return [_batches(inputs, batch, length) for batch in (LEAST, OPT, MOST)]


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


def _batches(inputs: Mapping[str, Shape | None], batch: int, length: int = UNKNOWN) -> Shapes:
    """Shapes with `batch` for the first dimension and others of its name, the size of an image for
    the last two dimensions of inputs of rank 4, and `length` for other unknown dimensions."""
    ranked = {name: shape for name, shape in inputs.items() if shape is not None}
    names = {shape[0] for shape in ranked.values() if shape and isinstance(shape[0], str)}

    # an input of rank 4 with these dimensions is a mask, and no image
    sequences = {dim for shape in ranked.values() if len(shape) != 4 for dim in shape}

    def size(axis: int, known: int | str | None, rank: int) -> int:
        other = (
            IMAGE
            if rank == 4 and axis > 1 and (known is None or known not in sequences)
            else length
        )
        return known if isinstance(known, int) else batch if axis == 0 or known in names else other

    return {
        name: tuple(size(axis, known, len(shape)) for axis, known in enumerate(shape))
        for name, shape in ranked.items()
    }


# --- the user's request ---------------------------------------------------------------------------


# the first one that is given replaces the others that are not given
_MEANT = ("opt_shapes", "max_shapes", "min_shapes")


def asked_for(options: Options, inputs: Mapping[str, Shape | None]) -> list[Shapes] | None:
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
    return [least, middle, most]


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
