"""What it costs that a tensor changes its layout, and where the convolution before writes it as
it is wanted."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import islice

import onnx_graphsurgeon as gs

from onnxbolt.archs import ARCHS
from onnxbolt.candidates import Candidate
from onnxbolt.dtypes import DType
from onnxbolt.forms import PLAIN, Form
from onnxbolt.layout.assign import x_form
from onnxbolt.layout.assignment import Assignment
from onnxbolt.layout.convert import appended
from onnxbolt.onnxruntime_time import elementwise_us, transpose_us
from onnxbolt.plan.cost import layout_us, predict, supports
from onnxbolt.plan.problems import problem_of
from onnxbolt.plan.ranges import Point
from onnxbolt.plan.regions import Region
from onnxbolt.problems import Problem


def conversion_us(tensor: gs.Tensor, form: Form, region: Region) -> float:
    """A layout change or padding; a tensor of one pixel per channel is only relabelled."""
    arch = ARCHS[region.arch]
    shape, have = region.at.sizes(tensor), region.assignment.form(tensor)
    elements, dtype = math.prod(shape), DType.of(tensor.dtype) or DType.F32
    if form.channels is have.channels is None and all(d == 1 for d in shape[2:]):
        return 0.0
    padding = appended(tensor, have, form) if form.last != have.last else None
    if padding is None:
        return transpose_us(elements, dtype, arch)
    return layout_us((2 * elements + padding * elements // shape[1]) * dtype.bytes, arch)


def padding_us(candidate: Candidate, forms: Assignment, archs: Sequence[int], at: Point) -> float:
    """On all `archs` together: a copy of a product's rows with zeros behind each, where its
    kernel reads them so, and nobody else does."""
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


def written_plain(assignment: Assignment, archs: Sequence[int], at: Point) -> frozenset[str]:
    """Names of what convolutions write as ONNX has it, where nobody reads it with its channels
    last: if all of `archs` have kernels for that, and it is predicted to be faster than a kernel
    and a change of layout, in the geometric mean over them.
    """
    return frozenset(c.output.name for c in assignment.leaving if _pays(c, assignment, archs, at))


def written_in_both_forms(
    assignment: Assignment, archs: Sequence[int], at: Point
) -> dict[str, gs.Tensor]:
    """What convolutions write as ONNX has it, too, by name of the result that others read with
    its channels last: by the same rule."""
    return {
        c.output.name: plain
        for c, plain in _parting(assignment)
        if _both_pay(c, plain, assignment, archs, at)
    }


def _parting(assignment: Assignment) -> Iterator[tuple[Candidate, gs.Tensor]]:
    """Convolutions whose result is read in both forms, each with what is read as ONNX has it."""
    for c in assignment.candidates:
        if (
            c.anchor.op.writes_nchw
            and c.out is c.anchor.dtype
            and c.output.name in assignment.read_as_stored
        ):
            yield from ((c, plain) for plain in islice(_read_plain(c.output, assignment), 1))


def _read_plain(result: gs.Tensor, assignment: Assignment) -> Iterator[gs.Tensor]:
    """The result, and what Casts make of it, where one change of layout brings that into ONNX's
    form."""
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
    one_pixel = all(size == 1 for size in at.sizes(candidate.output)[2:])  # only relabelled
    if both is None or one_pixel:
        return False
    moved = rows.rows * (rows.columns * rows.dtype.bytes + channels * both.out.bytes)
    return _is_faster(both, rows, [layout_us(moved, ARCHS[number]) for number in archs], archs)


def _is_faster(
    one: Problem, other: Problem, changes: Sequence[float], archs: Sequence[int]
) -> bool:
    """True if all of `archs` have kernels for `one`, and these are predicted to be faster than
    those for the `other` and a change of layout, which takes `changes` microseconds, in the
    geometric mean."""
    if not all(supports(one, number) for number in archs):
        return False
    if not all(supports(other, number) for number in archs):
        return True
    ratios = (
        (predict(other, number)[1] + change) / predict(one, number)[1]
        for number, change in zip(archs, changes, strict=True)
    )
    return math.prod(ratios) > 1
