"""From a transposed convolution's candidate to the problem that a kernel solves."""

from __future__ import annotations

from collections.abc import Sequence

from onnxbolt.candidates import Candidate
from onnxbolt.dtypes import DType
from onnxbolt.integers import round_up
from onnxbolt.ops.base import Stored
from onnxbolt.ops.conv_transpose.geometry import Axis, as_in_onnx, axes_of, lies_in_rows
from onnxbolt.problems import ConvTranspose3dProblem, ConvTransposeProblem

_FLAT = Axis(1, 1, 1, (0, 0), 0)  # the height of one dimension


def problem_of(
    candidate: Candidate, x: Sequence[int], stored: Stored | None
) -> ConvTransposeProblem | ConvTranspose3dProblem:
    """The problem for an x of these sizes. Without `stored`, what ONNX Runtime solves: filters
    without zeros in front. Kernels that store pixel by pixel have x padded in any case. The slices
    of volumes are images."""
    anchor = candidate.anchor
    c, k, groups = int(anchor.weight.shape[0]), candidate.widths[-1], anchor.groups
    if stored is not None:
        c, k, groups = stored.reads.count(c), stored.writes.count(k), anchor.kernel_groups
    elif not lies_in_rows(anchor.node):
        c, groups = round_up(c, anchor.dtype.alignment), anchor.kernel_groups
    axes, spatial = as_in_onnx(anchor.node) if stored is None else axes_of(anchor.node), x[2:]
    images, slices = x[0], 1
    if len(axes) == 1:
        axes, spatial = (_FLAT, *axes), (1, *spatial)
    if len(axes) == 3:
        images, slices = x[0] * spatial[0], axes[0].stride
        axes, spatial = axes[1:], spatial[1:]
    sizes = (images, spatial[0], spatial[1], c, k)
    problem = by_axes(sizes, axes, groups, anchor.dtype, candidate.out, candidate.chain)
    return problem if slices == 1 else problem.of_volumes(slices)


def by_axes(
    sizes: tuple[int, int, int, int, int],
    axes: tuple[Axis, ...],
    groups: int,
    dtype: DType,
    out: DType,
    chain: tuple[str, ...],
) -> ConvTransposeProblem:
    """The problem with these axes for x [n, h, w, c] and k channels of y; `sizes` are n, h, w, c
    and k."""
    n, *spatial, c, k = sizes
    (top, bottom), (left, right) = (
        axis.convolution_pads(size) for axis, size in zip(axes, spatial, strict=True)
    )
    p, q = (max(axis.output(size), 1) for axis, size in zip(axes, spatial, strict=True))
    rows, columns = axes
    return ConvTransposeProblem(
        n,
        spatial[0],
        spatial[1],
        c,
        k,
        (rows.taps, columns.taps),
        p,
        q,
        (top, left, bottom, right),
        (rows.cut, columns.cut),
        (rows.stride, columns.stride),
        (rows.behind, columns.behind),
        groups,
        dtype,
        out,
        chain,
    )
