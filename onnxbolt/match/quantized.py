"""Recognizes products of codes of 8 bits, and says why none is fused where no kernel reads codes
(docs/decisions/quantized.md).

So that models stay as they are then, this works on a copy of the graph: it
has the one form of quantized models, and weights as values, which makes a product of codes an
ordinary candidate. What differs is read off around it: its operands are values of codes, and a
QuantizeLinear reads its result.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

import onnx_graphsurgeon as gs

from onnxbolt.candidates import Candidate, Refusal
from onnxbolt.canonicalize import canonicalize, quantized
from onnxbolt.canonicalize.quantized.scaling import (
    DEQUANTIZE,
    PRODUCTS,
    QUANTIZE,
    Scaling,
    is_dequantize,
    is_quantize,
    scaling_of,
)
from onnxbolt.graph.edit import Derived, Weight, producer, replace_uses, sole_use
from onnxbolt.graph.names import fresh
from onnxbolt.match.matcher import match
from onnxbolt.match.partition import partition
from onnxbolt.match.patterns import steps
from onnxbolt.ops.quantized import pattern

NO_KERNEL = "no kernel reads tensors of 8 bits yet"
REQUANTIZE = "Requantize"  # the step that a pair within an epilogue is
_NO_STEP = "it is no step of a product of 8 bits"
_NO_FORM = "it rounds within, or its scales are computed at run time, so that QDQ is not the same"


def refusals(graph: gs.Graph) -> list[Refusal]:
    """The refusals of products of codes, and of QuantizeLinear and DequantizeLinear beside none of
    them. Node names are the source's. The graph, a copy of the source's, is used up."""
    quantized.rewrite(graph)
    canonicalize(graph)
    quantized.rewrite(graph)
    found, refused = _products(graph)
    named = {name for product in found for node in product.pairs for name in node.provenance}
    rest = [
        node
        for node in graph.nodes
        if quantized.is_on_codes(node) and named.isdisjoint(node.provenance)
    ]
    # one of each node of the source, with its own operator
    operators = {node.name or node.output[0]: node.op_type for node in graph.source.graph.node}
    every = [*(product.refusal(graph) for product in found), *refused]
    every += [_beside(node, operators.get(_source(node), node.op)) for node in rest]
    first = dict[str, Refusal]()
    for refusal in every:
        first.setdefault(refusal.node, refusal)
    return [
        dataclasses.replace(refusal, op=operators.get(node, refusal.op))
        for node, refusal in first.items()
    ]


def between_codes(graph: gs.Graph) -> frozenset[gs.Node]:
    """The nodes that kernels of products of codes compute in fp32, whatever the precision: not what
    begins with an addition of values and ends without codes, which has 16 bits then."""
    found = match(graph).candidates
    products = (c for c in found if isinstance(c.anchor, pattern.QuantizedAnchor))
    inside = (c.prefix(pattern.in_fp32(c.links)) for c in products)
    return frozenset(node for candidate in inside if candidate for node in candidate.nodes)


# QuantizeLinear and DequantizeLinear within epilogues, by the names of the tensors that they round
_Pairs = dict[str, tuple[gs.Node, gs.Node]]


@dataclass(frozen=True)
class _Weight:
    """A weight as values, and the node that makes these of codes."""

    dequantize: gs.Node
    scaling: Scaling


@dataclass(frozen=True)
class _Product:
    """A product of codes: the candidate for values, and the numbers around it."""

    candidate: Candidate
    read: gs.Node  # x
    weight: _Weight
    residual: tuple[gs.Node, ...]
    within: tuple[tuple[gs.Node, gs.Node], ...]  # pairs in the epilogue
    written: gs.Node | None  # the QuantizeLinear behind it

    @property
    def pairs(self) -> list[gs.Node]:
        """All its QuantizeLinear and DequantizeLinear."""
        inner = [node for pair in self.within for node in pair]
        written = [] if self.written is None else [self.written]
        return [self.read, self.weight.dequantize, *self.residual, *inner, *written]

    def refusal(self, graph: gs.Graph) -> Refusal:
        candidate = self.candidate
        output = candidate.output
        tensor = output.name if output.name in graph.source_tensors else ""
        node = candidate.anchor.node
        return Refusal(_source(node), node.op, f"{NO_KERNEL}: {self._words()}", tensor)

    def _words(self) -> str:
        x, weight, y = self.read.inputs[0].dtype, self.weight.scaling, self.candidate.output.dtype
        out = y if self.written is None else self.written.outputs[0].dtype
        rule = "+".join(self._steps())
        scales = "a scale" if weight.axis is None else "scales of channels"
        names = ", ".join(dict.fromkeys(map(_source, self.pairs)))
        return f"{x} by {weight.code} with {scales} to {out}, {rule}, between {names}"

    def _steps(self) -> Iterator[str]:
        """The op and its steps, those that are pairs included."""
        anchor, links = self.candidate.anchor, self.candidate.links
        ends = {quantize.inputs[0].name for quantize, _ in self.within}
        results = [(anchor.op.name, anchor.output), *((li.step.name, li.output) for li in links)]
        for position, (name, tensor) in enumerate(results):
            yield name
            last = all(tensor is not following for _, following in results[position + 1 :])
            if last and tensor.name in ends:
                yield REQUANTIZE


def _products(graph: gs.Graph) -> tuple[list[_Product], list[Refusal]]:
    """The products of codes, and those that are none for a reason."""
    refused = list[Refusal]()
    sources = dict[gs.Node, tuple[gs.Node, _Weight]]()
    for node in graph.nodes:
        if not _is_product(node):
            continue
        x, weight = producer(node.inputs[0]), producer(node.inputs[1])
        if weight is None or not is_dequantize(weight):
            continue  # a product of values, which planning knows
        scaling = scaling_of(weight)
        if (problem := pattern.refusal(node, x, weight)) or scaling is None:
            refused.append(Refusal(_source(node), node.op, problem))
        else:
            sources[node] = x, _Weight(weight, scaling)
    for node, (_, weight) in sources.items():
        node.inputs[1] = _values(graph, weight)
    within = _without_inner_pairs(graph)
    candidates, others = match(graph)
    _put_back(graph, within)
    reasons = {refusal.node: refusal for refusal in others}
    found = list[_Product]()
    for candidate in partition(candidates):
        if (own := candidate.anchor.node) in sources:
            found.append(_product(candidate, *sources[own], within))
    matched = {product.candidate.anchor.node for product in found}
    for node in (node for node in sources if node not in matched):
        why = reasons[node.name].reason if node.name in reasons else NO_KERNEL
        refused.append(Refusal(_source(node), node.op, why))
    return found, refused


def _is_product(node: gs.Node) -> bool:
    return node.op in PRODUCTS and not node.domain


def _values(graph: gs.Graph, weight: _Weight) -> Weight:
    codes, scaling = weight.dequantize.inputs[0], weight.scaling
    name, dtype = fresh(graph, f"{codes.name}_values"), scaling.scale.dtype
    return Weight(name, Derived(lambda: scaling.dequantized(codes.values), dtype, codes.shape))


def _without_inner_pairs(graph: gs.Graph) -> _Pairs:
    """Take away the pairs in front of single steps of an epilogue; by the names of the tensors that
    they round."""
    found: _Pairs = {}
    for quantize in [node for node in graph.nodes if is_quantize(node)]:
        dequantize = sole_use(graph, quantize.outputs[0])
        x = quantize.inputs[0]
        if dequantize is None or not is_dequantize(dequantize):
            continue
        if producer(x) is None or sole_use(graph, x) is None:
            continue
        reader = sole_use(graph, dequantize.outputs[0])
        if reader is None or _is_product(reader) or not steps(reader.domain or "", reader.op):
            continue
        replace_uses(dequantize.outputs[0], x)
        found[x.name] = quantize, dequantize
        # until _put_back
        quantize.inputs = list(quantize.inputs[1:])
    return found


def _put_back(graph: gs.Graph, within: _Pairs) -> None:
    """Put the pairs back between what they round and the steps."""
    tensors = {tensor.name: tensor for node in graph.nodes for tensor in node.outputs}
    for name, (quantize, dequantize) in within.items():
        x = tensors[name]
        replace_uses(x, dequantize.outputs[0])
        quantize.inputs = [x, *quantize.inputs]


def _product(candidate: Candidate, read: gs.Node, weight: _Weight, within: _Pairs) -> _Product:
    inner = [candidate.anchor.output, *(link.output for link in candidate.links)]
    *inner, _ = dict.fromkeys(tensor.name for tensor in inner)
    operands = [link.operand for link in candidate.links if link.operand is not None]
    # the pair of an operand that might have been within the epilogue of another product
    makers = [within[t.name][1] if t.name in within else producer(t) for t in operands]
    readers = candidate.output.outputs
    written = readers[0] if len(readers) == 1 and is_quantize(readers[0]) else None
    return _Product(
        candidate,
        read,
        weight,
        tuple(node for node in makers if node is not None and is_dequantize(node)),
        tuple(within[name] for name in inner if name in within),
        written,
    )


def _beside(node: gs.Node, op: str) -> Refusal:
    """The refusal of an operator on codes that belongs to no product; `op` is the source's."""
    if op not in (QUANTIZE, DEQUANTIZE):
        return Refusal(_source(node), op, _NO_FORM if node.op == op else _NO_STEP)
    if scaling_of(node) is None:
        reason = pattern.RUN_TIME
    elif node.op == QUANTIZE:
        before = producer(node.inputs[0])
        place = f"behind {before.op}" if before is not None else "behind an input of the graph"
        reason = f"no product of 8 bits ends with it: {place}"
    else:
        named = ", ".join(sorted({reader.op for reader in node.outputs[0].outputs}))
        reason = f"no product of 8 bits reads it: in front of {named or 'an output of the graph'}"
    return Refusal(_source(node), op, reason)


def _source(node: gs.Node) -> str:
    """The name of the node of the source that this one comes from."""
    return str(node.provenance[0] if node.provenance else node.name)
