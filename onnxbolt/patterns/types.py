"""Patterns as data: which ONNX ops they begin at, and the function that recognizes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import onnx_graphsurgeon as gs

from onnxbolt.candidates import Anchor, Link, Refusal


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
