"""Which nodes are squeeze-and-excitation.

    Mul(x, gate(Conv(squeeze(Conv(mean(x))))))

The mean is a GlobalAveragePool, or a ReduceMean over height and width; both convolutions are 1x1
with constant weights; behind each is an activation of the epilogue table. Additions of tensors and
activations behind the Mul belong to it, too, except sums with a convolution's result, which that
convolution can make.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import onnx_graphsurgeon as gs

from onnxbolt.candidates import Anchor, Link, Refusal
from onnxbolt.dtypes import DType
from onnxbolt.epilogues import MAX_PARAMS, MAX_TENSORS
from onnxbolt.graph.edit import MEANS, is_mean, only_reader, producer
from onnxbolt.ops.base import FusedOp
from onnxbolt.patterns.epilogue import step_patterns
from onnxbolt.patterns.types import AnchorPattern, Match


@dataclass(frozen=True)
class _Layer:
    """One product with its activation: what they read besides, their nodes, and their result."""

    weight: gs.Constant
    bias: gs.Constant | None
    link: Link

    @property
    def output(self) -> gs.Tensor:
        return self.link.output


def anchors(op: FusedOp) -> tuple[AnchorPattern, ...]:
    """The nodes that `op` begins at."""
    return (AnchorPattern(MEANS, partial(_match, op)),)


def _match(op: FusedOp, node: gs.Node) -> Match:
    """None where the mean is no squeeze; a Refusal where the two products are there, but
    something is not as kernels need it."""
    x, y = node.inputs[0], node.outputs[0]
    if not is_mean(node) or not isinstance(x, gs.Variable) or x.shape is None or len(x.shape) != 4:
        return None
    first = _product(y)
    squeeze = _layer(op, first, y) if first is not None else None
    second = _product(squeeze.output) if squeeze is not None else None
    if first is None or second is None or squeeze is None:
        return None
    excite = _layer(op, second, squeeze.output)
    mul = only_reader(excite.output) if excite is not None else None
    if (
        excite is None
        or mul is None
        or mul.op != "Mul"
        or not any(tensor is x for tensor in mul.inputs)
    ):
        return Refusal(
            node.name, node.op, "its gate does not multiply the tensor that it averages", x.name
        )
    if reason := _reason(x, squeeze, excite):
        return Refusal(node.name, node.op, reason, x.name)
    dtype = DType.of(x.dtype)
    assert dtype is not None  # _reason has looked
    constants = (squeeze.bias, excite.weight, excite.bias)
    anchor = Anchor(op, node, x, squeeze.weight, dtype, constants)
    last = Link(excite.link.step, None, (*excite.link.nodes, mul), mul.outputs[0])
    return anchor, _with_epilogue(anchor, (squeeze.link, last))


def _with_epilogue(anchor: Anchor, links: tuple[Link, ...]) -> tuple[Link, ...]:
    """The links, and those of additions and activations, one behind the other, that alone read
    their result."""
    while True:
        tensor = links[-1].output
        node = only_reader(tensor)
        found = None if node is None or _sums_product(node, tensor) else _step(anchor, node, tensor)
        if found is None or not _fits((*links, found)):
            return links
        links = (*links, found)


def _fits(links: tuple[Link, ...]) -> bool:
    """True if a kernel's arguments have room for the links' tensors and parameters."""
    tensors = sum(link.step.row.operand == "tensor" for link in links)
    return tensors <= MAX_TENSORS and sum(len(link.step.params) for link in links) <= MAX_PARAMS


def _step(anchor: Anchor, node: gs.Node, tensor: gs.Tensor) -> Link | None:
    """The link by which `node` continues an epilogue that has no vectors."""
    for pattern in step_patterns().get((node.domain or "", node.op), ()):
        link = pattern.match(node, tensor, anchor)
        if isinstance(link, Link) and link.step.row.cast is None:
            return link if link.step.row.operand in ("", "tensor") else None
    return None


def _sums_product(node: gs.Node, tensor: gs.Tensor) -> bool:
    """True if a convolution whose result nothing else reads can add `tensor` to it."""
    others = [other for other in node.inputs if other is not tensor]
    producers = [producer(other) for other in others if len(other.outputs) == 1]
    return any(p is not None and p.op in ("Conv", "ConvTranspose") for p in producers)


def _product(tensor: gs.Tensor) -> gs.Node | None:
    """The 1x1 convolution that alone reads `tensor`."""
    node = only_reader(tensor)
    if (
        node is None
        or node.op != "Conv"
        or node.domain
        or not isinstance(node.inputs[1], gs.Constant)
    ):
        return None
    one_by_one = tuple(node.inputs[1].shape[2:]) == (1, 1) and not any(node.attrs.get("pads", ()))
    return node if one_by_one and node.attrs.get("group", 1) == 1 else None


def _layer(op: FusedOp, node: gs.Node, x: gs.Tensor) -> _Layer | None:
    """The product with the activation that alone reads its result."""
    y, weight = node.outputs[0], node.inputs[1]
    bias = node.inputs[2] if len(node.inputs) > 2 and node.inputs[2].name else None
    after = only_reader(y)
    if after is None or not (bias is None or isinstance(bias, gs.Constant)):
        return None
    anchor = Anchor(op, node, x, weight, DType.F32)  # patterns of activations ask it for nothing
    for pattern in step_patterns().get((after.domain or "", after.op), ()):
        link = pattern.match(after, y, anchor)
        if isinstance(link, Link) and not link.step.row.operand and link.step.row.cast is None:
            return _Layer(weight, bias, Link(link.step, None, (node, after), link.output))
    return None


def _reason(x: gs.Tensor, squeeze: _Layer, excite: _Layer) -> str:
    """Why no kernel serves; "" where one does."""
    if DType.of(x.dtype) is None or any(
        layer.weight.dtype != x.dtype for layer in (squeeze, excite)
    ):
        return f"no kernel for its element type: {x.dtype}"
    if not isinstance(x.shape[1], int) or 0 in x.shape:
        return "the input's channels are unknown, or it is empty"
    if squeeze.weight.shape[1] != x.shape[1] or excite.weight.shape[0] != x.shape[1]:
        return "its gate has another number of channels than the tensor that it averages"
    return ""
