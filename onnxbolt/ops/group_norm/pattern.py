"""Which nodes are a normalization of groups of channels.

    GroupNormalization(x, gamma, beta)
    GroupNormalization(Add(x, vector of each image), gamma, beta)
    Add(Mul(GroupNormalization(..), Add(scale of each image, 1)), shift of each image)

GroupNormalization is the node that canonicalization writes for all forms
(canonicalize/group_norm_form.py); a vector of each image is [N, C, 1, 1], as diffusion models make
it of the time step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import onnx_graphsurgeon as gs

from onnxbolt import domains
from onnxbolt.candidates import Anchor, Link, Refusal
from onnxbolt.dtypes import DType
from onnxbolt.graph.edit import only_reader, other_input, producer, scalar
from onnxbolt.ops.base import FusedOp
from onnxbolt.patterns.types import AnchorPattern, Match

OPERATOR = "GroupNormalization"
_ORDINARY = (OPERATOR, "InstanceNormalization")
_CONTRIB = ("GroupNorm", "SkipGroupNorm")
_SOURCES = (*_ORDINARY, "LayerNormalization")
_UNKNOWN = "its input has no known channels, or its factors are no constants"


@dataclass(frozen=True, eq=False)
class GroupNormAnchor(Anchor):
    """The normalization, with the vectors of each image that are added before it, and by which its
    result is scaled and shifted; the constants are gamma and beta."""

    before: gs.Tensor | None = None
    modulation: tuple[gs.Tensor, ...] = ()  # scale and shift, or none

    @property
    def further(self) -> tuple[gs.Tensor, ...]:
        """The vectors of each image."""
        return (*(() if self.before is None else (self.before,)), *self.modulation)

    @property
    def normalization(self) -> gs.Node:
        """The node that has groups and epsilon."""
        return next(node for node in self.nodes if node.op == OPERATOR)


def anchors(op: FusedOp) -> tuple[AnchorPattern, ...]:
    """The nodes that `op` begins at; ONNX's own operators to say why they stay."""
    return (
        AnchorPattern((OPERATOR,), partial(_normalization, op), domains.INTERNAL),
        AnchorPattern(("Add",), partial(_addition, op)),
        AnchorPattern(_ORDINARY, _stays),
        AnchorPattern(_CONTRIB, _stays, domains.CONTRIB),
        AnchorPattern(("LRN",), _stays_in_nchw),
    )


def _stays(node: gs.Node) -> Match:
    return Refusal(node.name, node.op, _UNKNOWN, node.inputs[0].name)


def _stays_in_nchw(node: gs.Node) -> Match:
    """AlexNet's normalization (Krizhevsky et al. 2012), which later networks do not have."""
    reason = "its sums over neighbouring channels have no kernel, and ONNX Runtime's reads NCHW"
    remedy = "a network without it; VGG, ResNet and their successors have none"
    return Refusal(node.name, node.op, reason, node.inputs[0].name, remedy)


def _normalization(op: FusedOp, node: gs.Node) -> Match:
    return _matched(op, node, node.inputs[0], None, (node,))


def _addition(op: FusedOp, node: gs.Node) -> Match:
    """None where the sum is not normalized alone, or is no sum with a vector of each image."""
    total = node.outputs[0]
    reader = total.outputs[0] if len(total.outputs) == 1 else None
    if reader is None or reader.op != OPERATOR or reader.domain != domains.INTERNAL:
        return None
    for x, vector in (node.inputs, node.inputs[::-1]):
        if isinstance(x, gs.Variable) and x.shape == total.shape and _of_image(vector, total):
            return _matched(op, reader, x, vector, (node, reader))
    return None


def _matched(
    op: FusedOp,
    node: gs.Node,
    x: gs.Tensor,
    before: gs.Tensor | None,
    nodes: tuple[gs.Node, ...],
) -> Match:
    """The anchor of the normalization `node` and the `nodes` in front of it."""
    source = _source(node)
    dtype = DType.of(x.dtype)
    if dtype is None:
        return Refusal(source, node.op, f"no kernel for its element type: {x.dtype}", x.name)
    behind, modulation = _modulated(node.outputs[0])
    first, *others = (*nodes, *behind)
    constants = tuple(node.inputs[1:])
    links: tuple[Link, ...] = ()
    return (
        GroupNormAnchor(op, first, x, None, dtype, constants, tuple(others), before, modulation),
        links,
    )


def _source(node: gs.Node) -> str:
    """The name of the operator of the source that normalizes, rather than of the last node that
    was recognized with it: a Reshape, or the Add of factors."""
    names = (each.name for each in node.expansion if each.op_type in _SOURCES)
    return next(names, node.name)


def _modulated(y: gs.Tensor) -> tuple[Sequence[gs.Node], tuple[gs.Tensor, ...]]:
    """The nodes behind `y` that compute y (1 + scale) + shift, in their order, and scale and shift;
    none where there are none."""
    product = only_reader(y, "Mul")
    total = None if product is None else only_reader(product.outputs[0], "Add")
    if product is None or total is None:
        return (), ()
    factor, shift = other_input(product, y), other_input(total, product.outputs[0])
    raised = producer(factor)
    if raised is None or raised.op != "Add" or raised.domain or len(factor.outputs) != 1:
        return (), ()
    scale = next((t for t in raised.inputs if scalar(other_input(raised, t)) == 1), None)
    if scale is None or not _of_image(scale, y) or not _of_image(shift, y):
        return (), ()
    return (raised, product, total), (scale, shift)


def _of_image(vector: gs.Tensor, x: gs.Tensor) -> bool:
    """True for a tensor [N, C, 1, 1] that is computed, N and C being those of `x` [N, C, H, W]."""
    shape = vector.shape
    return (
        isinstance(vector, gs.Variable)
        and vector.dtype == x.dtype
        and shape is not None
        and x.shape is not None
        and len(shape) == len(x.shape)
        and list(shape[:2]) == list(x.shape[:2])
        and None not in shape[:2]
        and all(size == 1 for size in shape[2:])
    )
