"""From a candidate and the assigned forms to the problem that a kernel solves."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

import onnx_graphsurgeon as gs

from onnxbolt.candidates import Candidate
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import CASTS, STORE
from onnxbolt.graph.edit import conv_attributes
from onnxbolt.layout.assignment import Assignment
from onnxbolt.layout.form import PLAIN
from onnxbolt.measurements.keys import Problem, canonical, plain
from onnxbolt.plan.ranges import AS_IS, Point
from onnxbolt.problems import ConvProblem, GemmProblem, SqueezeExciteProblem


def problem_of(candidate: Candidate, assignment: Assignment | None, at: Point = AS_IS) -> Problem:
    """The problem as stored, for the sizes of `at`; without an assignment, as ONNX has it (what
    ONNX Runtime solves)."""
    anchor = candidate.anchor
    weight = [int(d) for d in anchor.weight.shape]
    c, k = weight[1] if anchor.kind == "conv" else weight[0], candidate.widths[-1]
    if anchor.kind == "conv":
        c *= anchor.groups
    if anchor.kind == "squeeze_excite":
        return _squeeze_excite(candidate, assignment, at.sizes(anchor.x))
    if assignment is not None:
        reads, writes = assignment.fused_reads[anchor.node], assignment.form(candidate.output)
        c = len(reads.channels) if reads.channels is not None else c
        k = len(writes.channels) if writes.channels is not None else k
    groups = (
        c if anchor.depthwise else anchor.groups if assignment is None else anchor.kernel_groups
    )
    nchw = assignment is not None and assignment.reads_nchw(candidate)
    chain = tuple(name for name in candidate.chain if name not in CASTS.values())
    inner = tuple(
        -(-n // anchor.dtype.alignment) * anchor.dtype.alignment for n in candidate.widths[:-1]
    )
    x = at.sizes(anchor.x)
    if anchor.kind == "gemm":
        rows = 1
        for d in x[:-1]:
            rows *= d
        return GemmProblem(rows, k, c, anchor.dtype, candidate.out, chain, inner)
    to_nchw = assignment is not None and assignment.writes_nchw(candidate)
    problem = replace(
        _conv(candidate, x, weight, c, k, groups, chain), nchw=nchw, inner=inner, y_nchw=to_nchw
    )
    plain = assignment.both.get(candidate.output.name) if assignment is not None else None
    return problem if plain is None else in_both_forms(problem, candidate, plain)


def in_both_forms(problem: ConvProblem, candidate: Candidate, plain: gs.Tensor) -> ConvProblem:
    """`problem`, whose result lies with its channels last, when its kernel writes `plain` as
    well: the result as ONNX has it."""
    out, padding = DType.of(plain.dtype), problem.k - candidate.widths[-1]
    assert out is not None  # the plan has looked
    return replace(problem, chain=(*problem.chain, STORE), out=out, y_nchw=True, padding=padding)


def _conv(
    candidate: Candidate,
    x: list[int],
    weight: list[int],
    c: int,
    k: int,
    groups: int,
    chain: tuple[str, ...],
) -> ConvProblem:
    attributes = conv_attributes(candidate.anchor.node)
    strides, pads, dilations = (list(attributes[name]) for name in ("strides", "pads", "dilations"))  # type: ignore[call-overload]
    spatial, filters = x[2:], weight[2:]
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
    )


def _squeeze_excite(
    candidate: Candidate, assignment: Assignment | None, x: list[int]
) -> SqueezeExciteProblem:
    anchor = candidate.anchor
    form = assignment.form(candidate.output) if assignment is not None else PLAIN
    channels = x[1] if form.channels is None else len(form.channels)
    return SqueezeExciteProblem(
        x[0],
        x[2],
        x[3],
        channels,
        int(anchor.weight.shape[0]),
        anchor.dtype,
        candidate.out,
        candidate.chain,
    )


def chain_key(problem: Problem, archs: Sequence[int], behind: str = "") -> str:
    """A digest of what a chain's kernels solve, names left out: the same chain in another model has
    the same key. `behind` is the key of what the chain goes on with, so that the keys of all the
    ends of a long chain take no longer than the chain's.
    """
    text = canonical([list(archs), type(problem).__name__, plain(problem), behind])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def describe_problem(problem: Problem) -> str:
    """A problem in one line: 'conv 32x56x56x64 to 64, 3x3, f16, Bias+Relu', 'gemm 128x768x3072,
    f16' (m, n, k); n or channels of each of several layers."""
    if isinstance(problem, ConvProblem):
        kind = (
            "conv"
            if problem.groups == 1
            else "depthwise conv"
            if problem.depthwise
            else f"conv in {problem.groups} groups"
        )
        channels = "-".join(str(n) for n in (*problem.inner, problem.k))
        parts = [
            f"{kind} {problem.n}x{problem.h}x{problem.w}x{problem.c} to {channels}",
            f"{problem.r}x{problem.s}",
        ]
        parts += [f"stride {_pair(problem.strides)}"] if problem.strides != (1, 1) else []
        parts += [f"dilation {_pair(problem.dilations)}"] if problem.dilations != (1, 1) else []
    elif isinstance(problem, SqueezeExciteProblem):
        parts = [f"squeeze-excite {problem.n}x{problem.h}x{problem.w}x{problem.c} by {problem.s}"]
    else:
        parts = [
            f"gemm {problem.m}x{'-'.join(str(n) for n in (*problem.inner, problem.n))}x{problem.k}"
        ]
    types = (
        problem.dtype.value
        if problem.out == problem.dtype
        else f"{problem.dtype.value} to {problem.out.value}"
    )
    if isinstance(problem, ConvProblem) and problem.y_nchw:
        parts.append(
            f"to NHWC and NCHW of {problem.k - problem.padding}"
            if problem.both_forms
            else "to NCHW"
        )
    return ", ".join([*parts, types, *(["+".join(problem.chain)] if problem.chain else [])])


def _pair(sizes: tuple[int, int]) -> str:
    return str(sizes[0]) if sizes[0] == sizes[1] else f"{sizes[0]}x{sizes[1]}"
