"""From a candidate and the assigned forms to the problem that a kernel solves."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import onnx_graphsurgeon as gs

from onnxbolt.candidates import Candidate
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import STORE
from onnxbolt.layout.assignment import Assignment
from onnxbolt.measurements.keys import Problem, canonical, plain
from onnxbolt.plan.ranges import AS_IS, Point
from onnxbolt.problems import ConvProblem, SqueezeExciteProblem


def problem_of(candidate: Candidate, assignment: Assignment | None, at: Point = AS_IS) -> Problem:
    """The problem as stored, for the sizes of `at`; without an assignment, as ONNX has it (what
    ONNX Runtime solves)."""
    stored = assignment.stored(candidate) if assignment is not None else None
    return cast(Problem, candidate.anchor.op.problem(candidate, at.sizes, stored))


def in_both_forms(problem: ConvProblem, candidate: Candidate, plain: gs.Tensor) -> ConvProblem:
    """`problem`, whose result lies with its channels last, when its kernel writes `plain` as
    well: the result as ONNX has it."""
    out, padding = DType.of(plain.dtype), problem.k - candidate.widths[-1]
    assert out is not None  # the plan has looked
    return replace(problem, chain=(*problem.chain, STORE), out=out, y_nchw=True, padding=padding)


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
