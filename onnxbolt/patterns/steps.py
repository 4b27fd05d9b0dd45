"""The registry of step patterns: one line for each module that holds `STEPS`.

Where several patterns accept a node, the first in this order wins; tests keep them disjoint.
"""

from __future__ import annotations

from collections import defaultdict
from functools import cache

from onnxbolt.patterns import activation, binary, cast, clip, contrib_gelu, conv, gemm
from onnxbolt.patterns.types import StepPattern

_PATTERNS: tuple[StepPattern, ...] = (
    *activation.STEPS,
    *binary.STEPS,
    *cast.STEPS,
    *clip.STEPS,
    *contrib_gelu.STEPS,
    *conv.STEPS,
    *gemm.STEPS,
)


@cache
def steps() -> dict[tuple[str, str], list[StepPattern]]:
    """Step patterns by domain and op type."""
    found: dict[tuple[str, str], list[StepPattern]] = defaultdict(list)
    for pattern in _PATTERNS:
        for op in pattern.ops:
            found[pattern.domain, op].append(pattern)
    return dict(found)
