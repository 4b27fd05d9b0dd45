"""Patterns: the operators that they apply to, and the function that recognizes a node."""

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
    """Recognizes the node at which a fused op begins: one of the operators `ops` of `domain` ("" is
    ONNX's).

    `match(node)` returns the anchor with the links that belong to it, or a refusal for a near miss;
    None for any other node.
    """

    ops: tuple[str, ...]
    match: Callable[[gs.Node], Match]
    domain: str = ""


@dataclass(frozen=True)
class StepPattern:
    """Recognizes a node that continues an epilogue: one of the operators `ops` of `domain` ("" is
    ONNX's).

    `match(node, tensor, anchor)` returns the link for the step that `node` computes of `tensor`, or
    several links if it computes several steps; for a near miss the reason; None for any other node.
    """

    ops: tuple[str, ...]
    match: Callable[[gs.Node, gs.Tensor, Anchor], Link | tuple[Link, ...] | str | None]
    domain: str = ""
