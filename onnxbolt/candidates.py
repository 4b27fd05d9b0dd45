"""What matching hands on, as data: candidates for fusion and refusals.

Patterns make anchors and links of them; later stages read them. This module imports no stage.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import onnx_graphsurgeon as gs

from onnxbolt import grouped
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import PRODUCT, STORE, Step

if TYPE_CHECKING:
    from onnxbolt.ops.base import FusedOp


@dataclass(frozen=True, eq=False)
class Anchor:
    """The nodes at which a fused op begins: a convolution or a product with a constant weight, the
    first of elementwise nodes, or a whole that an op's pattern recognizes.

    `node` is the first one, `others` are those behind it that belong to the op itself. `dtype` is
    the element type of x and weight. `weight` is [K, C, *spatial] of a convolution, [K, N] of a
    GEMM, [S, C, 1, 1] of squeeze-and-excitation's first product, and None for ops without one.
    `constants` is what else the op reads, in an order of its own.
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
        """The nodes that the op itself takes the place of."""
        return (self.node, *self.others)

    @property
    def output(self) -> gs.Tensor:
        """What the last of these nodes computes."""
        return self.nodes[-1].outputs[0]

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
        """True for a convolution with groups of several channels, which stay together: these are
        stored as they are."""
        return self.groups > 1 and not self.depthwise

    @property
    def kernel_groups(self) -> int:
        """The groups that kernels compute, neighbours merged; of a depthwise convolution without
        the padding's."""
        if self.groups == 1:
            return 1
        return grouped.merged(self.groups, int(self.weight.shape[1]) * self.groups, self.channels)

    @property
    def keeps_channels(self) -> bool:
        """True if the result's channels are those of x, each by itself."""
        return self.op.keeps_channels(self)

    @property
    def pointwise(self) -> bool:
        """True for a product of rows as they lie: a GEMM, or a 1x1 convolution of every pixel."""
        return self.op.pointwise(self)

    @property
    def channels(self) -> int:
        """Channels of the result, in the original."""
        return self.op.channels(self)

    def columns(self, weight: gs.Constant) -> int:
        """Channels that a product with `weight` makes, here or behind here."""
        return self.op.columns(weight)

    def behind(self, weight: gs.Constant) -> Anchor:
        """What the steps behind a further product continue: the result has its channels."""
        return dataclasses.replace(self, weight=weight)

    def channel_axis(self, rank: int) -> int:
        """The axis of the channels in tensors of the result's rank, as ONNX has them."""
        return self.op.channel_axis(rank)


@dataclass(frozen=True, eq=False)
class Link:
    """One step of a chain: what it reads besides the chain, the nodes it covers, the tensor it
    produces."""

    step: Step
    operand: gs.Tensor | None
    nodes: tuple[gs.Node, ...]
    output: gs.Tensor


@dataclass(frozen=True, eq=False)
class Candidate:
    """A chain that one kernel can compute: the anchor, then links in order. `originals` are the
    names of the source's tensors.

    `layers`: of several products each by itself, for where one kernel for all of them loses; none
    where one cannot be by itself.
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
        """The result in front of a further product that is an output, too; None where there is
        none."""
        return next((link.output for link in self.links if link.step.name == STORE), None)

    @property
    def tensors(self) -> list[gs.Tensor]:
        """What the chain reads that is shaped like a layer's result, always the same layer's."""
        return [
            link.operand
            for link in self.links
            if link.step.row.operand == "tensor" and link.operand is not None
        ]

    @property
    def outputs(self) -> tuple[gs.Tensor, ...]:
        """What the kernel writes."""
        return (self.output,) if self.stored is None else (self.output, self.stored)

    @property
    def nodes(self) -> tuple[gs.Node, ...]:
        """Every node that the kernel replaces, each once, the anchor first."""
        covered = [*self.anchor.nodes, *(node for link in self.links for node in link.nodes)]
        return tuple(dict.fromkeys(covered))

    @property
    def chain(self) -> tuple[str, ...]:
        """The names of the steps, a final cast included."""
        return tuple(link.step.name for link in self.links)

    @property
    def products(self) -> list[gs.Node]:
        """Of the layers behind the first."""
        return [link.nodes[0] for link in self.links if link.step.name == PRODUCT]

    @property
    def ends(self) -> list[int]:
        """The positions among the links before which a kernel may end: further products, and
        behind all of them."""
        return [
            *(i for i, link in enumerate(self.links) if link.step.name == PRODUCT),
            len(self.links),
        ]

    @property
    def widths(self) -> tuple[int, ...]:
        """Channels of each layer's result, in the original: one, or several where the chain
        holds further products."""
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
        return cast or self.anchor.dtype

    @property
    def rule(self) -> str:
        """What the report and the node's provenance call it, e.g. `conv+Bias+Relu`."""
        return "+".join((self.anchor.op.name, *self.chain))

    @property
    def stands_for(self) -> str:
        """The tensor of the source that the output is, by which verification judges it; "" where
        there is none."""
        return self.original(self.output)

    def original(self, tensor: gs.Tensor) -> str:
        """The tensor of the source that `tensor` stands for; "" where there is none."""
        name = getattr(tensor, "original", tensor.name)
        return name if name in self.originals else ""

    def prefix(self, count: int) -> Candidate | None:
        """The longest chain of at most `count` links whose outputs stand for tensors of the
        source; None where there is none."""
        # links inside the anchor's node
        own = sum(link.nodes == (self.anchor.node,) for link in self.links)
        if not self.anchor.op.takes_epilogue:  # whole or not at all
            own = len(self.links)
        shorter = (
            dataclasses.replace(self, links=self.links[:n], layers=())
            for n in range(count, own - 1, -1)
        )
        # the last result is stored anyway
        whole = (candidate for candidate in shorter if candidate.chain[-1:] != (STORE,))
        return next(
            (candidate for candidate in whole if all(map(candidate.original, candidate.outputs))),
            None,
        )

    def before(self, node: gs.Node) -> Candidate | None:
        """The longest prefix of the chain that does not cover `node`; None where there is none."""
        if any(node is own for own in self.anchor.nodes):
            return None
        return self.prefix(
            next(
                (i for i, link in enumerate(self.links) if any(n is node for n in link.nodes)),
                len(self.links),
            )
        )


@dataclass(frozen=True)
class Refusal:
    """A near miss: which node stays as it was, or apart from another layer, the first condition
    that failed, and what it would take.

    The reason is general up to a colon, if it has one; after it come names and numbers.
    """

    node: str
    op: str
    reason: str
    tensor: str = ""
    remedy: str = ""
    # e.g. both predicted times, microseconds
    values: dict[str, float] = field(default_factory=dict)
    # refused is one kernel with a neighbouring layer; the node may well be fused
    apart: bool = False
