"""From a convolution's candidate to the problem that a kernel solves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from onnxbolt.candidates import Candidate
from onnxbolt.dtypes import DType
from onnxbolt.forms import PLAIN
from onnxbolt.graph.volumes import Axis, as_images, axes_of, is_of_images
from onnxbolt.integers import round_up
from onnxbolt.ops.base import Stored
from onnxbolt.problems import Conv3dProblem, ConvProblem


def problem_of(
    candidate: Candidate, x: Sequence[int], stored: Stored | None
) -> ConvProblem | Conv3dProblem:
    """The problem for an x of these sizes; without `stored` for tensors as ONNX has them, but for
    volumes, whose x kernels read padded in any case."""
    anchor, alignment = candidate.anchor, candidate.anchor.dtype.alignment
    c, k = int(anchor.weight.shape[1]) * anchor.groups, candidate.widths[-1]
    groups = c if anchor.depthwise else anchor.groups
    if stored is not None:
        c, k = stored.reads.count(c), stored.writes.count(k)
        groups = c if anchor.depthwise else anchor.kernel_groups
    axes = axes_of(anchor.node)
    if not is_of_images(axes):
        c = c if anchor.grouped else round_up(c, alignment)
        return _volumes(candidate, x, axes, c, k, groups)
    inner = tuple(-(-n // alignment) * alignment for n in candidate.widths[:-1])
    problem = _images(candidate, x, axes, c, k, groups, inner)
    if stored is None:
        return problem
    problem = replace(problem, nchw=stored.reads == PLAIN, y_nchw=not stored.writes.last)
    if stored.both is None:
        return problem
    out = DType.of(stored.both.dtype)
    assert out is not None  # the plan has looked
    both = problem.with_both_outputs(candidate.widths[-1], out)
    assert both is not None  # likewise
    return both


def _images(
    candidate: Candidate,
    x: Sequence[int],
    axes: Sequence[Axis],
    c: int,
    k: int,
    groups: int,
    inner: tuple[int, ...],
) -> ConvProblem:
    """The problem with x and y in NHWC."""
    n, (h, w), (rows, columns) = as_images(x[0], x[2:], axes)
    return ConvProblem(
        n,
        h,
        w,
        c,
        k,
        rows.filter,
        columns.filter,
        rows.output(h),
        columns.output(w),
        (rows.pads[0], columns.pads[0], rows.pads[1], columns.pads[1]),
        (rows.stride, columns.stride),
        (rows.dilation, columns.dilation),
        groups,
        candidate.anchor.dtype,
        candidate.out,
        candidate.chain,
        inner=inner,
    )


def _volumes(
    candidate: Candidate, x: Sequence[int], axes: Sequence[Axis], c: int, k: int, groups: int
) -> Conv3dProblem:
    """The problem with x and y in NDHWC."""
    d, h, w = axes
    return Conv3dProblem(
        x[0],
        (x[2], x[3], x[4]),
        c,
        k,
        (d.filter, h.filter, w.filter),
        (d.output(x[2]), h.output(x[3]), w.output(x[4])),
        (d.pads[0], h.pads[0], w.pads[0], d.pads[1], h.pads[1], w.pads[1]),
        (d.stride, h.stride, w.stride),
        (d.dilation, h.dilation, w.dilation),
        groups,
        candidate.anchor.dtype,
        candidate.out,
        candidate.chain,
    )
