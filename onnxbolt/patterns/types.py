"""Patterns as data: which ONNX ops they begin at, and the function that recognizes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import onnx_graphsurgeon as gs

from onnxbolt.candidates import Anchor, Link, Refusal

# an anchor with the steps that belong to it, or why there is none
Match: TypeAlias = tuple[Anchor, tuple[Link, ...]] | Refusal | None


@dataclass(frozen=True)
class AnchorPattern:
    """Where a fused op may begin: at nodes of the operators `ops` of `domain`, "" ONNX's.

    `match(node)` gives the anchor and the steps that belong to it, or says why not; None: the node
    is nothing near.
    """

    ops: tuple[str, ...]
    match: Callable[[gs.Node], Match]
    domain: str = ""


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
