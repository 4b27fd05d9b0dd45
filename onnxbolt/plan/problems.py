"""The problem that a candidate's kernel solves, and its key."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from onnxbolt.candidates import Candidate
from onnxbolt.layout.assignment import Assignment
from onnxbolt.measurements.keys import canonical, plain
from onnxbolt.plan.ranges import AS_IS, Point
from onnxbolt.problems import Problem


def problem_of(candidate: Candidate, assignment: Assignment | None, at: Point = AS_IS) -> Problem:
    """The problem for the sizes of `at`, with tensors as `assignment` stores them; without one, as
    ONNX has them, which is the problem that ONNX Runtime solves."""
    stored = assignment.stored(candidate) if assignment is not None else None
    return candidate.anchor.op.problem(candidate, at.sizes, stored)


def chain_key(problem: Problem, archs: Sequence[int], behind: str = "") -> str:
    """A digest of the problems in a chain of layers, without names: the same chain in another model
    has the same key.

    `problem` is the first one, and `behind` the key of the rest of the chain, so that the keys of
    all ends of a chain are made in one pass.
    """
    text = canonical([list(archs), type(problem).__name__, plain(problem), behind])
    return hashlib.sha256(text.encode()).hexdigest()[:32]
