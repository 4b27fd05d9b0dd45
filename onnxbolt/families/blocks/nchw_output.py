"""Convolutions that write y as NCHW."""

from __future__ import annotations

from dataclasses import replace

from onnxbolt.integers import round_up
from onnxbolt.problems import ConvProblem


def in_rows(problem: ConvProblem) -> ConvProblem:
    """The problem as kernels for NHWC see it: its channels are padded as TMA's stores of rows
    require, while NCHW output is stored channel by channel."""
    padded = round_up(problem.k, problem.dtype.alignment)
    k = problem.k if problem.both_forms else padded
    return replace(problem, k=k, y_nchw=False, padding=0)
