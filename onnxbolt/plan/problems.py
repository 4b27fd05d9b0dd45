"""From a candidate and the assigned forms to the problem that a kernel solves."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from onnxbolt.candidates import Candidate
from onnxbolt.layout.assignment import Assignment
from onnxbolt.measurements.keys import canonical, plain
from onnxbolt.plan.ranges import AS_IS, Point
from onnxbolt.problems import Problem


def problem_of(candidate: Candidate, assignment: Assignment | None, at: Point = AS_IS) -> Problem:
    """The problem as stored, for the sizes of `at`; without an assignment, as ONNX has it (what
    ONNX Runtime solves)."""
    stored = assignment.stored(candidate) if assignment is not None else None
    return candidate.anchor.op.problem(candidate, at.sizes, stored)


def chain_key(problem: Problem, archs: Sequence[int], behind: str = "") -> str:
    """A digest of what a chain's kernels solve, names left out: the same chain in another model has
    the same key. `behind` is the key of what the chain goes on with, so that the keys of all the
    ends of a long chain take no longer than the chain's.
    """
    text = canonical([list(archs), type(problem).__name__, plain(problem), behind])
    return hashlib.sha256(text.encode()).hexdigest()[:32]
