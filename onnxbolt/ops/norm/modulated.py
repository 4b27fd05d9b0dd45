"""Which nodes are a normalization that vectors of each sequence modulate.

    Add(Mul(LayerNormalization(s, gamma, beta), Add(scale, 1)), shift)

and the same of RMSNormalization, where s is x, Add(x, residual) or Add(Mul(x, gate), residual), all
of them [B, S, C]. scale, shift and gate are [B, 1, C], as diffusion transformers make them of the
time step (Peebles and Xie 2023); scale may be [B, C] with an Unsqueeze behind the Add. The sum may
have further readers, as in pattern.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import onnx_graphsurgeon as gs

from onnxbolt.candidates import Anchor, Link, Refusal
from onnxbolt.graph.edit import only_reader, other_input, producer, scalar
from onnxbolt.ops.base import FusedOp
from onnxbolt.ops.norm import pattern
from onnxbolt.patterns.types import AnchorPattern, Match

_RANK = 3


@dataclass(frozen=True, eq=False, kw_only=True)
class ModulatedAnchor(Anchor):
    """An anchor of a normalization with the vectors of each sequence."""

    normalization: gs.Node
    scale: gs.Tensor
    shift: gs.Tensor
    gate: gs.Tensor | None = None

    @property
    def further(self) -> tuple[gs.Tensor, ...]:
        """The vectors of each sequence."""
        return (self.scale, self.shift, *(() if self.gate is None else (self.gate,)))


@dataclass(frozen=True, eq=False)
class _Modulation:
    """The nodes that scale and shift, in their order, and the vectors by which they do."""

    nodes: tuple[gs.Node, ...]
    scale: gs.Tensor
    shift: gs.Tensor


def anchors(op: FusedOp, centered: bool) -> tuple[AnchorPattern, ...]:
    """The nodes that `op` begins at: the gate's product, the sum, or the normalization."""
    return (
        AnchorPattern(("Mul",), partial(_gated, op, centered)),
        AnchorPattern(("Add",), partial(_added, op, centered)),
        *pattern.of_plain(partial(_alone, op), centered),
    )


def _alone(op: FusedOp, node: gs.Node) -> Match:
    return _modulated(op, pattern.normalization(op, node))


def _added(op: FusedOp, centered: bool, node: gs.Node) -> Match:
    x, residual = node.inputs
    variables = all(isinstance(tensor, gs.Variable) for tensor in (x, residual))
    if not variables or x.shape is None or x.shape != residual.shape:
        return None
    return _modulated(op, pattern.of_sum(op, centered, pattern.Sum(node, x, residual)))


def _gated(op: FusedOp, centered: bool, node: gs.Node) -> Match:
    product = node.outputs[0]
    total = only_reader(product, "Add")
    if total is None:
        return None
    residual = other_input(total, product)
    if not isinstance(residual, gs.Variable) or residual.shape != product.shape:
        return None
    for x, gate in (node.inputs, node.inputs[::-1]):
        if isinstance(x, gs.Variable) and x.shape == product.shape and _of_sequence(gate, x):
            found = pattern.of_sum(op, centered, pattern.Sum(total, x, residual))
            return _modulated(op, found, (node, gate))
    return None


def _modulated(op: FusedOp, found: Match, gated: tuple[gs.Node, gs.Tensor] | None = None) -> Match:
    """The normalization `found` with the nodes behind it that modulate it, and the gate's product
    in front of it; None where nothing modulates it."""
    if found is None or isinstance(found, Refusal):
        return None
    anchor, links = found
    normalization = anchor.nodes[-1]
    normalized = normalization.outputs[0]
    modulation = _behind(normalized)
    if modulation is None:
        return None
    gate = [] if gated is None else [gated[0]]
    first, *others = (*gate, *anchor.nodes, *modulation.nodes)
    own = ModulatedAnchor(
        op,
        first,
        anchor.x,
        anchor.weight,
        anchor.dtype,
        others=tuple(others),
        normalization=normalization,
        scale=modulation.scale,
        shift=modulation.shift,
        gate=None if gated is None else gated[1],
    )
    return own, tuple(_ending(link, normalized, own.output) for link in links)


def _ending(link: Link, normalized: gs.Tensor, output: gs.Tensor) -> Link:
    """The link; if it computes the normalized rows, with what is made of them as its result."""
    return replace(link, output=output) if link.output is normalized else link


def _behind(y: gs.Tensor) -> _Modulation | None:
    """How nodes modulate `y`; None where they do not."""
    product = only_reader(y, "Mul")
    total = None if product is None else only_reader(product.outputs[0], "Add")
    if product is None or total is None:
        return None
    factor, shift = other_input(product, y), other_input(total, product.outputs[0])
    if not _of_sequence(factor, y) or not _of_sequence(shift, y):
        return None
    nodes: Sequence[gs.Node] = ()
    raised = producer(factor)
    if raised is not None and raised.op == "Unsqueeze" and list(factor.outputs) == [product]:
        nodes, raised = (raised,), producer(raised.inputs[0])
    if raised is None or raised.op != "Add" or raised.domain:
        return None
    readers = list(raised.outputs[0].outputs)
    scale = next((t for t in raised.inputs if scalar(other_input(raised, t)) == 1), None)
    if len(readers) != 1 or scale is None or scale.shape != raised.outputs[0].shape:
        return None
    if len(scale.shape) < _RANK - 1:
        return None
    return _Modulation((raised, *nodes, product, total), scale, shift)


def _of_sequence(vector: gs.Tensor, x: gs.Tensor) -> bool:
    """True for a tensor [B, 1, C] that is computed, B and C being those of `x` [B, S, C]."""
    shape = vector.shape
    return (
        isinstance(vector, gs.Variable)
        and vector.dtype == x.dtype
        and shape is not None
        and x.shape is not None
        and len(shape) == len(x.shape) == _RANK
        and None not in (shape[0], shape[2])
        and [*shape] == [x.shape[0], 1, x.shape[2]]
    )
