"""Convolutions that write y as NCHW."""

from __future__ import annotations

from dataclasses import replace

from onnxbolt.integers import round_up
from onnxbolt.problems import ConvProblem


def in_rows(problem: ConvProblem) -> ConvProblem:
    """The problem that kernels for NHWC solve: TMA stores rows, whose channels are padded;
    planes are stored one by one."""
    padded = round_up(problem.k, problem.dtype.alignment)
    k = problem.k if problem.both_forms else padded
    return replace(problem, k=k, y_nchw=False, padding=0)
