"""What it costs that a tensor changes its layout, and where the convolution before writes it as it is wanted."""
from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import onnx_graphsurgeon as gs

from onnxbolt.archs import ARCHS
from onnxbolt.dtypes import DType
from onnxbolt.kernels.config import ConvProblem
from onnxbolt.layout.assign import Assignment
from onnxbolt.layout.convert import appended
from onnxbolt.layout.form import PLAIN, Form
from onnxbolt.match.types import Candidate
from onnxbolt.plan.cost import layout_us, predict, supports, transpose_us
from onnxbolt.plan.problems import problem_of
from onnxbolt.plan.ranges import Point
from onnxbolt.plan.regions import Region


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


def written_plain(assignment: Assignment, archs: Sequence[int], at: Point) -> frozenset[str]:
    """Names of what convolutions write as ONNX has it, where nobody reads it with its channels last: if all of `archs` have kernels for
    that, and the first one's is predicted to be faster than a kernel and a change of layout."""
    return frozenset(c.output.name for c in assignment.leaving if _pays(c, assignment, archs, at))


def _pays(candidate: Candidate, assignment: Assignment, archs: Sequence[int], at: Point) -> bool:
    last = problem_of(candidate, assignment, at)
    if not isinstance(last, ConvProblem) or last.inner or last.nchw:
        return False
    first = replace(last, k=candidate.widths[-1], y_nchw=True)
    if not all(supports(first, number) for number in archs):
        return False
    change = conversion_us(candidate.output, PLAIN, Region(assignment, archs[0], at))
    return not supports(last, archs[0]) or predict(first, archs[0])[1] < predict(last, archs[0])[1] + change
