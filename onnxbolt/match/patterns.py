"""All patterns by domain and operator: those of ops, and those of epilogue steps.

If several patterns accept a node, the first in the order of the registries wins; tests ensure that
no two patterns of the package accept the same node.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from onnxbolt.ops import OPS
from onnxbolt.patterns.epilogue import step_patterns
from onnxbolt.patterns.types import AnchorPattern, StepPattern
from onnxbolt.registry import cached

Anchors = Mapping[tuple[str, str], Sequence[AnchorPattern]]
Steps = Mapping[tuple[str, str], Sequence[StepPattern]]


def steps(domain: str, op: str) -> Sequence[StepPattern]:
    """Patterns by which a node can continue an epilogue: epilogue steps, then further products."""
    own = step_patterns().get((domain, op), ())
    return (*own, *_continuations().get((domain, op), ()))


@cached(1)
def anchors() -> Anchors:
    """Patterns by which a node can begin an op."""
    found: dict[tuple[str, str], list[AnchorPattern]] = defaultdict(list)
    for pattern in (pattern for op in OPS.values() for pattern in op.anchors()):
        for operator in pattern.ops:
            found[pattern.domain, operator].append(pattern)
    return dict(found)


@cached(1)
def _continuations() -> Steps:
    found: dict[tuple[str, str], list[StepPattern]] = defaultdict(list)
    for pattern in (pattern for op in OPS.values() for pattern in op.continuations()):
        for operator in pattern.ops:
            found[pattern.domain, operator].append(pattern)
    return dict(found)
