"""Layout conversions: their predicted times, and which of them a convolution saves by writing NCHW
itself."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from itertools import islice

import onnx_graphsurgeon as gs

from onnxbolt.archs import ARCHS
from onnxbolt.candidates import Candidate
from onnxbolt.dtypes import DType
from onnxbolt.forms import PLAIN, Form
from onnxbolt.layout.assign import assign, x_form
from onnxbolt.layout.assignment import Assignment, Premises
from onnxbolt.layout.convert import appended
from onnxbolt.onnxruntime_time import elementwise_us, transpose_us
from onnxbolt.plan.cost import layout_us, predict, supports
from onnxbolt.plan.problems import problem_of
from onnxbolt.plan.ranges import Point
from onnxbolt.plan.regions import Region
from onnxbolt.problems import Problem


def laid_out(
    graph: gs.Graph, candidates: Sequence[Candidate], archs: Sequence[int], at: Point
) -> Assignment:
    """The forms of all tensors for these candidates, with results written as NCHW where that is
    predicted to be faster than a layout conversion."""
    premises = Premises(archs=tuple(ARCHS[number] for number in archs))
    assignment = assign(graph, candidates, premises)
    to_nchw = nchw_outputs(assignment, archs, at)
    both = outputs_in_both_layouts(assignment, archs, at)
    if not (to_nchw or both):
        return assignment
    return assign(graph, candidates, dataclasses.replace(premises, to_nchw=to_nchw, both=both))


def conversion_us(tensor: gs.Tensor, form: Form, region: Region) -> float:
    """Microseconds of bringing `tensor` into `form`: a layout conversion or padding; 0 for one
    pixel per channel and for one channel, where the bytes stay as they are."""
    arch = ARCHS[region.arch]
    shape, have = region.at.sizes(tensor), region.assignment.form(tensor)
    elements, dtype = math.prod(shape), DType.stored(tensor.dtype) or DType.F32
    single = shape[1] == 1 or all(size == 1 for size in shape[2:])
    if form.channels is have.channels is None and single:
        return 0.0
    padding = appended(tensor, have, form) if form.last != have.last else None
    if padding is None:
        return transpose_us(elements, dtype, arch)
    return layout_us((2 * elements + padding * elements // shape[1]) * dtype.bytes, arch)


def padding_us(candidate: Candidate, forms: Assignment, archs: Sequence[int], at: Point) -> float:
    """Microseconds, summed over `archs`, of a copy of a GEMM's rows with zeros behind each; 0 if
    its kernel reads them as they are, or others read x as well."""
    anchor, x = candidate.anchor, candidate.anchor.x
    if anchor.op.channels_last or len(x.outputs) > 1:
        return 0.0
    reads = (
        x_form(forms, candidate)
        if len(candidate.widths) > 1
        else forms.fused_reads.get(anchor.node)
    )
    if reads is None or reads == forms.form(x):
        return 0.0
    rows, columns = math.prod(at.sizes(x)[:-1]), int(x.shape[-1]) + len(reads.channels or ())
    return sum(
        elementwise_us(rows * columns * anchor.dtype.bytes, ARCHS[number]) for number in archs
    )


def nchw_outputs(assignment: Assignment, archs: Sequence[int], at: Point) -> frozenset[str]:
    """Names of the convolutions' results that their kernels write as NCHW, and that no NHWC
    consumer reads.

    All of `archs` need kernels for that, and these must be predicted to be faster than a kernel for
    NHWC and a layout conversion, in the geometric mean over `archs`.
    """
    return frozenset(c.output.name for c in assignment.leaving if _pays(c, assignment, archs, at))


def outputs_in_both_layouts(
    assignment: Assignment, archs: Sequence[int], at: Point
) -> dict[str, gs.Tensor]:
    """The tensors that convolutions write as NCHW beside their result in NHWC, by the result's
    name; decided by the same rule."""
    return {
        c.output.name: plain
        for c, plain in _read_in_both_layouts(assignment)
        if _both_pay(c, plain, assignment, archs, at)
    }


def _read_in_both_layouts(assignment: Assignment) -> Iterator[tuple[Candidate, gs.Tensor]]:
    """Convolutions whose result has NHWC and NCHW consumers, each with the tensor that the latter
    read: the result or a Cast of it."""
    for c in assignment.candidates:
        if (
            c.anchor.op.writes_nchw(c.anchor)
            and c.out is c.anchor.dtype
            and c.output.name in assignment.read_as_stored
        ):
            yield from ((c, plain) for plain in islice(_read_as_nchw(c.output, assignment), 1))


def _read_as_nchw(result: gs.Tensor, assignment: Assignment) -> Iterator[gs.Tensor]:
    """Those of the result and its Casts that one layout conversion makes NCHW."""
    casts = [
        node.outputs[0]
        for node in result.outputs
        if node.op == "Cast" and node in assignment.carries
    ]
    for tensor in (result, *(casts if len(result.outputs) > 1 else ())):
        wanted = (tensor.name, PLAIN) in assignment.conversions
        if wanted and appended(tensor, assignment.form(tensor), PLAIN) is not None:
            yield tensor


def _pays(candidate: Candidate, assignment: Assignment, archs: Sequence[int], at: Point) -> bool:
    rows = problem_of(candidate, assignment, at)
    nchw = rows.with_nchw_output(candidate.widths[-1])
    return nchw is not None and _is_faster(
        nchw,
        rows,
        [
            conversion_us(candidate.output, PLAIN, Region(assignment, number, at))
            for number in archs
        ],
        archs,
    )


def _both_pay(
    candidate: Candidate, plain: gs.Tensor, assignment: Assignment, archs: Sequence[int], at: Point
) -> bool:
    rows, channels = problem_of(candidate, assignment, at), candidate.widths[-1]
    out = DType.of(plain.dtype)
    both = rows.with_both_outputs(channels, out) if out is not None else None
    # NCHW and NHWC of one pixel are the same bytes
    one_pixel = all(size == 1 for size in at.sizes(candidate.output)[2:])
    if both is None or one_pixel:
        return False
    moved = rows.rows * (rows.columns * rows.dtype.bytes + channels * both.out.bytes)
    return _is_faster(both, rows, [layout_us(moved, ARCHS[number]) for number in archs], archs)


def _is_faster(
    one: Problem, other: Problem, changes: Sequence[float], archs: Sequence[int]
) -> bool:
    """True if all of `archs` have kernels for `one` that are predicted to be faster, in the
    geometric mean, than those for the `other` and a layout conversion; `changes` has the
    microseconds of that conversion for each architecture."""
    if not all(supports(one, number) for number in archs):
        return False
    if not all(supports(other, number) for number in archs):
        return True
    ratios = (
        (predict(other, number)[1] + change) / predict(one, number)[1]
        for number, change in zip(archs, changes, strict=True)
    )
    return math.prod(ratios) > 1
