"""The registry of anchor patterns: one line for each module that holds `ANCHORS`."""

from __future__ import annotations

from functools import cache

from onnxbolt.patterns import conv, gemm, squeeze_excite
from onnxbolt.patterns.types import AnchorPattern

_PATTERNS: tuple[AnchorPattern, ...] = (
    *conv.ANCHORS,
    *gemm.ANCHORS,
    *squeeze_excite.ANCHORS,
)


@cache
def anchors() -> dict[str, AnchorPattern]:
    """Anchor patterns by op type."""
    return {op: pattern for pattern in _PATTERNS for op in pattern.ops}
