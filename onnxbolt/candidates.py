"""The results of matching: candidates for fusion, and refusals.

Patterns make their anchors and links; later stages read them. This module imports no stage.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import onnx_graphsurgeon as gs

from onnxbolt import grouped
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import CASTS, PRODUCT, Step
from onnxbolt.graph.edit import held_by

if TYPE_CHECKING:
    from onnxbolt.ops.base import FusedOp


class Strided(Protocol):
    """An operand that an op reads by strides, so that it may be a part of a tensor's rows."""

    @property
    def tensor(self) -> gs.Tensor:
        """The operand, or the tensor that it is a part of."""

    def fits(self, begin: int, width: int) -> bool:
        """True if the op also reads it where `tensor` begins at element `begin` of rows of `width`
        elements."""


@dataclass(frozen=True, eq=False)
class Anchor:
    """The nodes at which a fused op begins: a convolution or GEMM with a constant weight, the first
    of several elementwise nodes, or all nodes of an op such as squeeze-and-excitation.

    `node` is the first node, and `others` are those behind it that belong to the op itself, not to
    its epilogue. `dtype` is the element type of x and weight. `weight` is [K, C, *spatial] of a
    convolution, [K, N] of a GEMM, [S, C, 1, 1] of squeeze-and-excitation's first product, and None
    for ops without one. `constants` are the op's other constants, in an order that the op defines.
    """

    op: FusedOp
    node: gs.Node
    x: gs.Tensor
    weight: gs.Constant
    dtype: DType
    constants: tuple[gs.Constant | None, ...] = ()
    others: tuple[gs.Node, ...] = ()

    @property
    def nodes(self) -> tuple[gs.Node, ...]:
        """The nodes that the op replaces without its epilogue."""
        return (self.node, *self.others)

    @property
    def reader(self) -> gs.Node:
        """The node that reads x."""
        return self.node

    def out(self, output: gs.Tensor) -> DType:
        """Element type of the result `output` of an epilogue that does not convert it."""
        return self.dtype

    @property
    def output(self) -> gs.Tensor:
        """The result of the last of these nodes."""
        return self.nodes[-1].outputs[0]

    @property
    def further(self) -> tuple[gs.Tensor, ...]:
        """Tensors beside x that the op itself reads, and not its epilogue."""
        return ()

    @property
    def strided(self) -> tuple[Strided, ...]:
        """The operands that the op reads by strides, in its order."""
        return ()

    @property
    def groups(self) -> int:
        """Groups of channels, as ONNX has them."""
        return self.op.groups(self.node)

    @property
    def depthwise(self) -> bool:
        """True for a convolution of each channel by itself."""
        return self.groups > 1 and tuple(self.weight.shape[:2]) == (self.groups, 1)

    @property
    def grouped(self) -> bool:
        """True for a convolution with groups of several channels. Its tensors are stored without
        padding, since a group's channels have to stay together."""
        return self.groups > 1 and not self.depthwise

    @property
    def kernel_groups(self) -> int:
        """The number of groups in kernels, which merge neighbouring groups; for a depthwise
        convolution without those of padded channels."""
        if self.groups == 1:
            return 1
        return grouped.merged(self.groups, int(self.weight.shape[1]) * self.groups, self.channels)

    @property
    def keeps_channels(self) -> bool:
        """True if the result's channels are those of x, each by itself."""
        return self.op.keeps_channels(self)

    @property
    def pointwise(self) -> bool:
        """True if x as stored is the product's matrix: a GEMM, or a 1x1 convolution of every
        pixel."""
        return self.op.pointwise(self)

    @property
    def channels(self) -> int:
        """Channels of the result in the original model, without padding."""
        return self.op.channels(self)

    def columns(self, weight: gs.Constant) -> int:
        """Channels of a product with `weight`: this one, or one behind it."""
        return self.op.columns(weight)

    def behind(self, weight: gs.Constant) -> Anchor:
        """The anchor for steps behind a further product, whose weight gives the channels."""
        return dataclasses.replace(self, weight=weight)

    def channel_axis(self, rank: int) -> int:
        """The axis of the channels in tensors of the result's rank, as ONNX has them."""
        return self.op.channel_axis(rank)


@dataclass(frozen=True, eq=False)
class Link:
    """One step of an epilogue: the operand that it reads beside the result so far, the nodes that
    it replaces, and the tensor that it computes. `last` is the link in its place where an epilogue
    ends with it, `without` the one where an epilogue ends in front of its last node."""

    step: Step
    operand: gs.Tensor | None
    nodes: tuple[gs.Node, ...]
    output: gs.Tensor
    last: Link | None = None
    without: Link | None = None


@dataclass(frozen=True, eq=False)
class Candidate:
    """Nodes that one kernel can compute: an anchor and its epilogue, the links in order.
    `originals` are the names of the source model's tensors.

    `layers` has, for several products, a candidate for each of them, to be used if one kernel for
    all is slower; it is empty if one of them cannot be a candidate of its own.
    """

    anchor: Anchor
    links: tuple[Link, ...]
    originals: frozenset[str] = field(repr=False)
    layers: tuple[Candidate, ...] = field(default=(), repr=False)

    @property
    def output(self) -> gs.Tensor:
        return self.links[-1].output if self.links else self.anchor.output

    @property
    def stored(self) -> gs.Tensor | None:
        """The multi-use value in front of a further product, or of codes that end the epilogue,
        that the kernel also writes; None if there is none."""
        return next((link.output for link in self.links if link.step.row.stores), None)

    @property
    def tensors(self) -> list[gs.Tensor]:
        """Operands with the shape of a layer's result; all of them belong to the same layer."""
        return [
            link.operand
            for link in self.links
            if link.step.row.operand == "tensor" and link.operand is not None
        ]

    @property
    def outputs(self) -> tuple[gs.Tensor, ...]:
        """The tensors that the kernel writes."""
        return (self.output,) if self.stored is None else (self.output, self.stored)

    @property
    def nodes(self) -> tuple[gs.Node, ...]:
        """Every node that the kernel replaces, each once, the anchor first."""
        covered = [*self.anchor.nodes, *(node for link in self.links for node in link.nodes)]
        return tuple(dict.fromkeys(covered))

    @property
    def epilogue(self) -> tuple[Step, ...]:
        """The steps, a final cast included."""
        return tuple(link.step for link in self.links)

    @property
    def parameters(self) -> dict[str, object]:
        """The attribute that holds the steps' parameters."""
        return {"epilogue_params": [param for step in self.epilogue for param in step.params]}

    @property
    def steps(self) -> tuple[str, ...]:
        """The names of the steps, a final cast included."""
        return tuple(step.name for step in self.epilogue)

    @property
    def chain(self) -> tuple[str, ...]:
        """The names of the steps as problems and kernels have them: the type that a final cast
        writes is their `out`."""
        return tuple(name for name in self.steps if name not in CASTS.values())

    @property
    def products(self) -> list[gs.Node]:
        """The product nodes of the layers behind the first."""
        return [link.nodes[0] for link in self.links if link.step.name == PRODUCT]

    @property
    def ends(self) -> list[int]:
        """The positions in `links` at which a kernel may end: before each further product, and
        behind the last link."""
        return [
            *(i for i, link in enumerate(self.links) if link.step.name == PRODUCT),
            len(self.links),
        ]

    @property
    def whole_nodes(self) -> list[int]:
        """The positions in `links` before which all links of a node are, or none: a convolution's
        bias, for instance, belongs to the convolution's node."""
        behind = [set[gs.Node]()]
        for link in reversed(self.links):
            behind.append(behind[-1].union(link.nodes))
        before, found = set(self.anchor.nodes), list[int]()
        for position in range(len(self.links) + 1):
            if before.isdisjoint(behind[len(self.links) - position]):
                found.append(position)
            before.update(*(link.nodes for link in self.links[position : position + 1]))
        return found

    @property
    def widths(self) -> tuple[int, ...]:
        """Channels of each layer's result in the original model: one number, or several if there
        are further products."""
        products = [
            link.operand
            for link in self.links
            if link.step.name == PRODUCT and link.operand is not None
        ]
        return (self.anchor.channels, *map(self.anchor.columns, products))

    @property
    def out(self) -> DType:
        """Element type of the output."""
        cast = self.links[-1].step.row.cast if self.links else None
        return cast or self.anchor.out(self.output)

    @property
    def rule(self) -> str:
        """The candidate's name in the report and in the node's provenance: `conv+Bias+Relu`."""
        return "+".join((self.anchor.op.name, *self.steps))

    @property
    def stands_for(self) -> str:
        """The names of the source model's tensors that the output is, with which verification
        compares it; "" if there are none."""
        return ", ".join(held_by(self.output)) if self.is_known(self.output) else ""

    def is_known(self, tensor: gs.Tensor) -> bool:
        """True if `tensor` holds nothing but tensors of the source model, or stands alone."""
        return self.originals.issuperset(held_by(tensor))

    def prefix(self, count: int) -> Candidate | None:
        """The candidate with the most links, at most `count`, whose outputs stand for tensors of
        the source model; None if there is none."""
        # a kernel computes at least the links inside the anchor's node
        own = sum(link.nodes == (self.anchor.node,) for link in self.links)
        if not self.anchor.op.takes_epilogue:  # such an op cannot be shortened
            own = len(self.links)
        shorter = (
            dataclasses.replace(self, links=_ended(self.links[:n]), layers=())
            for n in range(count, own - 1, -1)
        )
        # without a Store at the end: the last result is written anyway
        whole = (each for each in shorter if not (each.links and each.links[-1].step.row.stores))
        return next(
            (candidate for candidate in whole if all(map(candidate.is_known, candidate.outputs))),
            None,
        )

    def ending(self, count: int) -> Candidate | None:
        """The candidate that ends in front of the last node of the link behind `count` of them, or
        with the last of these, as `prefix` has it."""
        without = self.links[count].without if count < len(self.links) else None
        if without is None:
            return self.prefix(count)
        links = (*self.links[:count], without)
        return dataclasses.replace(self, links=links).prefix(len(links))

    def before(self, node: gs.Node) -> Candidate | None:
        """The longest prefix that does not replace `node`; None if there is none."""
        if any(node is own for own in self.anchor.nodes):
            return None
        kept = next(
            (i for i, link in enumerate(self.links) if any(n is node for n in link.nodes)),
            len(self.links),
        )
        link = self.links[kept] if kept < len(self.links) else None
        if link is not None and link.without is not None and node not in link.without.nodes:
            return self.ending(kept)
        last = None if link is None else link.last
        # such a link takes the node only if it is not the last one
        return self.prefix(kept + (last is not None and all(n is not node for n in last.nodes)))


def _ended(links: tuple[Link, ...]) -> tuple[Link, ...]:
    """The links of an epilogue that ends with them."""
    last = links[-1].last if links else None
    return links if last is None else (*links[:-1], last)


@dataclass(frozen=True)
class Refusal:
    """Why a node is not fused, or not with the layer before it: the first condition that failed,
    and what it would take to meet it.

    The reason is general up to a colon, if it has one; names and numbers follow it.
    """

    node: str
    op: str
    reason: str
    tensor: str = ""
    remedy: str = ""
    # numbers behind the reason, such as both predicted times in microseconds
    values: dict[str, float] = field(default_factory=dict)
    # True: the node is not in one kernel with a neighbouring layer, but may be fused by itself
    apart: bool = False
    body: str = ""  # the body of control flow that the node is in; empty for the main graph
