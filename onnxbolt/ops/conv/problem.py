"""From a convolution's candidate to the problem that a kernel solves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from onnxbolt.candidates import Candidate
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import CASTS
from onnxbolt.forms import PLAIN
from onnxbolt.graph.edit import conv_attributes
from onnxbolt.ops.base import Stored
from onnxbolt.problems import ConvProblem


def problem_of(candidate: Candidate, x: Sequence[int], stored: Stored | None) -> ConvProblem:
    """The problem for an x of these sizes; without `stored` for tensors as ONNX has them."""
    anchor, alignment = candidate.anchor, candidate.anchor.dtype.alignment
    c, k = int(anchor.weight.shape[1]) * anchor.groups, candidate.widths[-1]
    chain = tuple(name for name in candidate.steps if name not in CASTS.values())
    inner = tuple(-(-n // alignment) * alignment for n in candidate.widths[:-1])
    if stored is None:
        groups = c if anchor.depthwise else anchor.groups
        return _problem(candidate, x, c, k, groups, chain, inner)
    c, k = stored.reads.count(c), stored.writes.count(k)
    groups = c if anchor.depthwise else anchor.kernel_groups
    problem = _problem(candidate, x, c, k, groups, chain, inner)
    problem = replace(problem, nchw=stored.reads == PLAIN, y_nchw=not stored.writes.last)
    if stored.both is None:
        return problem
    out = DType.of(stored.both.dtype)
    assert out is not None  # the plan has looked
    both = problem.with_both_outputs(candidate.widths[-1], out)
    assert both is not None  # likewise
    return both


def _problem(
    candidate: Candidate,
    x: Sequence[int],
    c: int,
    k: int,
    groups: int,
    chain: tuple[str, ...],
    inner: tuple[int, ...],
) -> ConvProblem:
    """The problem with x and y in NHWC."""
    attributes = conv_attributes(candidate.anchor.node)
    strides, pads, dilations = (list(attributes[name]) for name in ("strides", "pads", "dilations"))  # type: ignore[call-overload]
    spatial, filters = list(x[2:]), [int(d) for d in candidate.anchor.weight.shape[2:]]
    if len(spatial) == 1:  # one-dimensional: height 1
        spatial, filters, strides, dilations, pads = (
            [1, *spatial],
            [1, *filters],
            [1, *strides],
            [1, *dilations],
            [0, pads[0], 0, pads[1]],
        )
    p, q = (
        (size + pads[i] + pads[i + 2] - dilations[i] * (filters[i] - 1) - 1) // strides[i] + 1
        for i, size in enumerate(spatial)
    )
    return ConvProblem(
        x[0],
        spatial[0],
        spatial[1],
        c,
        k,
        filters[0],
        filters[1],
        max(p, 1),
        max(q, 1),
        (pads[0], pads[1], pads[2], pads[3]),
        (strides[0], strides[1]),
        (dilations[0], dilations[1]),
        groups,
        candidate.anchor.dtype,
        candidate.out,
        chain,
        inner=inner,
    )
