"""One declarative pattern per file, collected by themselves.

A module of this package holds `ANCHORS`, a tuple of `AnchorPattern`, or `STEPS`, a tuple of
`StepPattern`. Patterns name the ONNX ops that they begin at, so at most one anchor pattern and a
few step patterns look at a node; where several step patterns accept a node, the first by module
name wins, and tests keep them disjoint.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import onnx_graphsurgeon as gs

from onnxbolt.match.types import Anchor, Link, Refusal


@dataclass(frozen=True)
class AnchorPattern:
    """Where a chain may begin: `match(node)` gives the anchor and the links that belong to it,
    or says why not; None: nothing near."""

    ops: tuple[str, ...]
    match: Callable[[gs.Node], tuple[Anchor, tuple[Link, ...]] | Refusal | None]


@dataclass(frozen=True)
class StepPattern:
    """What one node adds: `match(node, tensor, anchor)` continues the chain from `tensor` over
    `node`, or answers None, or a reason.

    A node that is several steps gives as many links, all covering it. `domain` is the operators'
    own, "" ONNX's.
    """

    ops: tuple[str, ...]
    match: Callable[[gs.Node, gs.Tensor, Anchor], Link | tuple[Link, ...] | str | None]
    domain: str = ""


@cache
def anchors() -> dict[str, AnchorPattern]:
    """Anchor patterns by op type."""
    found: dict[str, AnchorPattern] = {}
    for module in _modules():
        for pattern in getattr(module, "ANCHORS", ()):
            found.update(dict.fromkeys(pattern.ops, pattern))
    return found


@cache
def steps() -> dict[tuple[str, str], list[StepPattern]]:
    """Step patterns by domain and op type."""
    found: dict[tuple[str, str], list[StepPattern]] = defaultdict(list)
    for module in _modules():
        for pattern in getattr(module, "STEPS", ()):
            for op in pattern.ops:
                found[pattern.domain, op].append(pattern)
    return dict(found)


def _modules() -> list[object]:
    names = sorted(info.name for info in pkgutil.iter_modules(__path__))
    return [importlib.import_module(f"{__name__}.{name}") for name in names]
