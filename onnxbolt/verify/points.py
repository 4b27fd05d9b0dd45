"""The sizes at which a model with symbolic dimensions is compared.

On a GPU these are the sizes that kernels were chosen for: the least, the opt and the largest ones,
odd ones in between, and further ones until every row of the nodes' tables of kernels is used. On
the CPU, where one function body serves all sizes, they are the least and odd ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx_graphsurgeon as gs
from onnx import NodeProto

from onnxbolt import archs, gpu
from onnxbolt.errors import InputError
from onnxbolt.graph.exporter import FUSED_DOMAIN
from onnxbolt.graph.importer import import_model, tensor_type
from onnxbolt.graph.shapes import Shape, infer, infer_at, is_known
from onnxbolt.graph.sizes import Sizes
from onnxbolt.library import weighted_ops
from onnxbolt.opspec import OpSpec, configs_of_node
from onnxbolt.options import Options, Shapes
from onnxbolt.plan.ranges import Extent, asked_for, usual
from onnxbolt.verify.feeds import (
    Feeds,
    drawn,
    graph_inputs,
    physical_memory,
    require_loads,
    shapes_for,
    working_feeds,
)
from onnxbolt.verify.models import Models
from onnxbolt.verify.session import CPU, RUNTIME_ERRORS

# on the CPU, where the user names no shapes: of each point the first sizes that the model takes
_SMALL = (
    (Sizes(1, (64, 96), 16), Sizes(1, (64, 64), 16), Sizes(1, (224, 224), 128)),
    (
        Sizes(3, (96, 64), 17),
        Sizes(3, (96, 64), 16),
        Sizes(3, (64, 64), 16),
        Sizes(2, (64, 64), 16),
        Sizes(3, (224, 224), 128),
    ),
)
_STEP = 32
# bytes of an element in a comparison: both models' results in fp32, and a difference in fp64
_COPY_BYTES = 16
_SHARE = 4  # such a tensor may have a quarter of the memory, since a comparison holds others, too
# shapes of all inputs; the first that the model takes
Alternatives = list[dict[str, tuple[int, ...]]]


@dataclass(frozen=True)
class Point:
    """Random inputs, and their sizes as rows name them: "x:3x3x64x64", or "" for a model of fixed
    sizes."""

    name: str
    feeds: Feeds


def points(models: Models, seed: int, options: Options) -> Iterator[Point]:
    """The points at which the reference runs; notes name the points at which it does not.

    `options` may name shapes. Raises InputError where they do not fit, and where the reference runs
    at none.
    """
    inputs = {value.name: tensor_type(value.type)[1] for value in graph_inputs(models.original)}
    asked = asked_for(options, inputs)
    found = False
    if asked or any(not isinstance(size, int) for dims in inputs.values() for size in dims or ()):
        require_loads(models.reference)
        large = asked is not None or models.provider != CPU  # other sizes are small
        graph = import_model(models.original) if large else None
        for alternatives in _wanted(models, inputs, asked):
            why = [_too_large(graph, shapes) if graph else "" for shapes in alternatives]
            tried = (
                _running(models, shapes, seed)
                for shapes, reason in zip(alternatives, why, strict=True)
                if not reason
            )
            feeds = next(filter(None, tried), None)
            if feeds is None:
                models.notes[
                    f"{models.where}: not compared at {_name(alternatives[0], inputs)},"
                    f" because {why[0] or 'the original does not run there'}"
                ] = None
                continue
            found = True
            yield Point(
                _name({name: values.shape for name, values in feeds.items()}, inputs), feeds
            )
    if not found:
        yield Point("", working_feeds(models.original, models.reference, seed))


def _too_large(graph: gs.Graph, shapes: Shapes) -> str:
    """Why the machine's memory does not hold the copies of a tensor that a comparison has, if
    inputs have these shapes; "" if it does, or if sizes are unknown."""
    memory = physical_memory()
    try:
        (known,) = infer_at(graph, [shapes])
    except InputError:
        return ""
    elements = {name: math.prod(shape) for name, shape in known.items() if is_known(shape)}
    name = max(elements, key=elements.__getitem__, default="")
    if memory is None or not name or _SHARE * _COPY_BYTES * elements[name] <= memory:
        return ""
    return (
        f"{name} has {elements[name]:.1e} elements there, too many for this machine's"
        f" {memory / 2**30:,.1f} GiB of memory"
    )


def _running(models: Models, shapes: Shapes, seed: int) -> Feeds | None:
    feeds = drawn(models.original, shapes, seed)
    try:
        models.reference.run(feeds, [])
    except RUNTIME_ERRORS:
        return None
    return feeds


def _name(shapes: Mapping[str, Sequence[int]], inputs: Mapping[str, Shape | None]) -> str:
    """The sizes of the inputs that have open dimensions, as text."""
    return ",".join(
        f"{name}:{'x'.join(map(str, shape))}"
        for name, shape in shapes.items()
        if list(shape) != inputs[name]
    )


def _wanted(
    models: Models, inputs: Mapping[str, Shape | None], asked: Extent | None
) -> list[Alternatives]:
    """The points to try, without repetition."""
    if models.provider == CPU and asked is None:
        wanted = [
            [shapes_for(models.original, sizes) for sizes in alternatives]
            for alternatives in _SMALL
        ]
    else:
        extent = asked or _usual(models, inputs)
        wanted = [[dict(extent.least)], between(extent.least, extent.most)]
        if models.provider != CPU:
            wanted += [[dict(shapes)] for shapes in (extent.opt, extent.most, *extent.others)]
            met = [first for first, *_ in wanted]
            wanted += [[shapes] for shapes in unmet(models, met, extent.points)]
    return [
        alternatives
        for place, alternatives in enumerate(wanted)
        if alternatives[0] not in [first for first, *_ in wanted[:place]]
    ]


def _usual(models: Models, inputs: Mapping[str, Shape | None]) -> Extent:
    graph = import_model(models.original)
    infer(graph)
    return usual(graph, inputs)


def between(least: Shapes, most: Shapes) -> Alternatives:
    """Odd sizes near the geometric mean in all dimensions that vary; as a second choice, multiples
    of _STEP, which networks expect of an image; as a third one, in the batch only."""

    def middle(low: int, high: int) -> int:
        found = math.isqrt(low * high) | 1
        return found if low < found < high else high

    def whole(low: int, high: int) -> int:
        found = math.isqrt(low * high) // _STEP * _STEP
        return found if low < found < high else middle(low, high)

    def everywhere(
        first: Callable[[int, int], int], rest: Callable[[int, int], int]
    ) -> dict[str, tuple[int, ...]]:
        return {
            name: tuple(
                (rest if axis else first)(low, high)
                for axis, (low, high) in enumerate(zip(shape, most[name], strict=True))
            )
            for name, shape in least.items()
        }

    return [
        everywhere(middle, middle),
        everywhere(middle, whole),
        everywhere(middle, lambda low, high: low),
    ]


def unmet(
    models: Models, at: Sequence[Shapes], points: Sequence[Shapes]
) -> list[dict[str, tuple[int, ...]]]:
    """Those of `points` that run every kernel for this GPU's architecture that no point of `at`
    runs."""
    others = [dict(shapes) for shapes in points]
    try:
        shapes = infer_at(import_model(models.optimized), [*at, *others])
    except InputError:
        return []
    found = [set(_rows_met(models, known)) for known in shapes]
    met = set().union(*found[: len(at)])
    more = []
    for point, rows in zip(others, found[len(at) :], strict=True):
        if not rows <= met:
            more.append(point)
            met |= rows
    return more


def _rows_met(models: Models, shapes: Mapping[str, Shape]) -> Iterator[tuple[str, int]]:
    """The row of its table that each fused node uses for tensors of these shapes: the node's name,
    and the least m of the row."""
    local, weighted = gpu.local_arch(), weighted_ops(models.optimized)
    if local is None:
        return
    own = archs.by_name(local).compute_capability
    known: dict[str, Sequence[int | str | None]] = {
        tensor.name: list(tensor.dims) for tensor in models.optimized.graph.initializer
    }
    known |= shapes
    for node in models.optimized.graph.node:
        if node.domain == FUSED_DOMAIN:
            held = [
                config for config in configs_of_node(node) if archs.get(config.arch).runs_on(own)
            ]
            m = _m(node, weighted.get(node.op_type), known)
            best = archs.nearest(archs.get(config.arch) for config in held)
            yield from (
                (node.name, c.min_m)
                for c in held
                if m is not None
                and best is not None
                and c.arch == best.number
                and c.min_m <= m <= c.max_m
            )


def _m(
    node: NodeProto, op: OpSpec | None, shapes: Mapping[str, Sequence[int | str | None]]
) -> int | None:
    """The number of rows of the node's (implicit) GEMM; None if a size is unknown."""
    if op is None or not all(
        isinstance(size, int)
        for name in (node.input[0], node.output[0])
        for size in shapes.get(name, (None,))
    ):
        return None
    attributes = {
        attribute.name: list(attribute.ints) for attribute in node.attribute if attribute.ints
    }
    positions, _ = op.products(
        shapes[node.output[0]], [shapes.get(name, ()) for name in node.input], attributes
    )
    return math.prod(size for size in positions if isinstance(size, int))
