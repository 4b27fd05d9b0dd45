"""What matching hands on: candidates and refusals, as data."""
from __future__ import annotations

from dataclasses import dataclass, field

import onnx_graphsurgeon as gs

from onnxbolt.epilogues import Step


@dataclass(frozen=True)
class Operand:
    """What a step of the chain reads: a constant vector of the output channels, or another tensor of the output's shape."""

    tensor: gs.Tensor
    vector: bool


@dataclass(frozen=True)
class Anchor:
    """A Conv or a product with a constant weight, and the nodes that make it.

    `weight` is [K, C/groups, *spatial] for Conv and [N, K] for Gemm, already scaled by what matching folded in.
    """

    kind: str  # "conv" or "gemm"
    node: gs.Node
    x: gs.Tensor
    weight: gs.Constant
    transposed: bool  # Gemm: the stored constant is [K, N] and is transposed when packed


@dataclass(frozen=True)
class Candidate:
    """A chain that one kernel can compute: the anchor, then steps in order, covering `nodes`, producing `output`."""

    anchor: Anchor
    steps: tuple[Step, ...]
    operands: tuple[Operand, ...]
    nodes: tuple[gs.Node, ...]
    output: gs.Tensor
    rule: str


@dataclass(frozen=True)
class Refusal:
    """A near miss: which node stays as it was, the first condition that failed, and what it would take."""

    node: str
    op: str
    reason: str
    tensor: str = ""
    remedy: str = ""
    values: dict[str, float] = field(default_factory=dict)  # e.g. both predicted times, microseconds
