"""The registry of step patterns: those of the epilogue steps' entries, and one line for each module
that holds `STEPS`.

Where several patterns accept a node, the first in this order wins; tests keep them disjoint.
"""

from __future__ import annotations

from collections import defaultdict
from functools import lru_cache

from onnxbolt.epilogues import EpilogueStep, registered
from onnxbolt.patterns import conv, gemm
from onnxbolt.patterns.epilogue import patterns_of
from onnxbolt.patterns.types import StepPattern

_PATTERNS: tuple[StepPattern, ...] = (
    *conv.STEPS,
    *gemm.STEPS,
)


def steps() -> dict[tuple[str, str], list[StepPattern]]:
    """Step patterns by domain and op type."""
    return _steps(registered())


@lru_cache(maxsize=1)
def _steps(entries: tuple[EpilogueStep, ...]) -> dict[tuple[str, str], list[StepPattern]]:
    found: dict[tuple[str, str], list[StepPattern]] = defaultdict(list)
    for pattern in (*(p for entry in entries for p in patterns_of(entry)), *_PATTERNS):
        for op in pattern.ops:
            found[pattern.domain, op].append(pattern)
    return dict(found)
