"""Which attentions, norms and gated linear units of the exported models are fused, and why others
are not.

    python -m tests.zoo.recognition [--only PATTERN]... [--precision fp16]

Prints a line for each model of tests/zoo/exports, and the first node and reason of each kind of
refusal. Parts are found in the original graph by rules of their own (`parts`), so that what the
optimizer overlooks is counted as well.
"""

from __future__ import annotations

import argparse
import fnmatch
import sys
import tempfile
import traceback
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from onnx import ModelProto, NodeProto

import onnxbolt
from onnxbolt.report import Report
from tests.flops import constant_names
from tests.zoo.stored import load, names

ATTENTION, NORM, GLU = "attention", "norm", "glu"
OVERLOOKED = "no refusal"  # neither fused nor refused: a fault
_ATTENTIONS = ("Attention", "MultiHeadAttention", "GroupQueryAttention")
_NORMS = (
    "LayerNormalization",
    "RMSNormalization",
    "SimplifiedLayerNormalization",
    "SkipLayerNormalization",
    "SkipSimplifiedLayerNormalization",
    "GroupNorm",
    "GroupNormalization",
    "InstanceNormalization",
    "SkipGroupNorm",
)
_PRODUCTS = ("MatMul", "Gemm", "Einsum")
# operators between the products of an attention and its softmax
_AROUND_SOFTMAX = (
    *("Add", "Sub", "Mul", "Div", "Where", "Tanh"),
    *("Cast", "IsNaN", "Reshape", "Transpose"),
)
# operators between a half of a gated linear unit and the product of both
_ACTIVATIONS = ("Mul", "Sigmoid", "Tanh", "Gelu", "Swish", "Relu")
_AROUND_GATE = (*_ACTIVATIONS, "Add", "Div", "Erf", "Pow", "Cast")
_HALVES = (*_PRODUCTS, "Split", "Slice")
_FARTHEST = 8  # nodes between two that belong together


@dataclass(frozen=True)
class Part:
    """An attention, a norm or a gated linear unit, by the node that decides it."""

    kind: str
    node: str


class _Graph:
    """The nodes of a model by what they write and read."""

    def __init__(self, model: ModelProto) -> None:
        self.nodes: Sequence[NodeProto] = model.graph.node
        self.constants = constant_names(model)
        self.producers = {name: node for node in self.nodes for name in node.output}
        self.readers = defaultdict[str, list[NodeProto]](list)
        for node in self.nodes:
            for name in node.input:
                self.readers[name].append(node)

    def sources(self, names: Iterable[str], ends: Sequence[str], way: Sequence[str]) -> set[str]:
        """Tensors that nodes of the types `ends` write, and from which nodes of the types `way`
        alone lead to `names`."""
        found, left = set[str](), [(name, 0) for name in names]
        while left:
            name, distance = left.pop()
            node = self.producers.get(name)
            if node is None or name in self.constants:
                continue
            if node.op_type in ends:
                found.add(name)
            elif node.op_type in way and distance < _FARTHEST:
                left += [(source, distance + 1) for source in node.input]
        return found

    def targets(
        self, names: Iterable[str], ends: Sequence[str], way: Sequence[str]
    ) -> list[NodeProto]:
        """Nodes of the types `ends` to which nodes of the types `way` alone lead from `names`."""
        found, left = list[NodeProto](), [(name, 0) for name in names]
        while left:
            name, distance = left.pop()
            for node in self.readers[name]:
                if node.op_type in ends:
                    found.append(node)
                elif node.op_type in way and distance < _FARTHEST:
                    left += [(output, distance + 1) for output in node.output]
        return found

    def is_constant(self, node: NodeProto) -> bool:
        """True if a node computes a constant."""
        return self.constants.issuperset(node.output)


def parts(model: ModelProto) -> Iterator[Part]:
    """All attentions, norms and gated linear units of a model, in the nodes' order."""
    graph = _Graph(model)
    for node in graph.nodes:
        if not graph.is_constant(node) and (kind := _kind(graph, node)):
            yield Part(kind, node.name)


def _kind(graph: _Graph, node: NodeProto) -> str:
    """The kind of the part that a node decides: the softmax of an attention, the mean of squares of
    a norm, the product of a gated linear unit; "" for any other node."""
    if node.op_type in _ATTENTIONS or (node.op_type == "Softmax" and _attends(graph, node)):
        return ATTENTION
    if node.op_type in _NORMS or (node.op_type == "ReduceMean" and _normalizes(graph, node)):
        return NORM
    return GLU if node.op_type == "Mul" and _gates(graph, node) else ""


def _attends(graph: _Graph, softmax: NodeProto) -> bool:
    """True if a softmax stands between two products, the latter one of values that vary; queries
    may be constants."""
    return bool(graph.sources(softmax.input, _PRODUCTS, _AROUND_SOFTMAX)) and any(
        graph.constants.isdisjoint(product.input)
        for product in graph.targets(softmax.output, _PRODUCTS, _AROUND_SOFTMAX)
    )


def _normalizes(graph: _Graph, mean: NodeProto) -> bool:
    """True if a mean of squares leads to a root."""
    squares = graph.producers.get(mean.input[0])
    squared = squares is not None and (
        squares.op_type == "Pow"
        or (squares.op_type == "Mul" and squares.input[0] == squares.input[1])
    )
    return squared and bool(graph.targets(mean.output, ("Sqrt", "Pow"), ("Add", "Cast")))


def _gates(graph: _Graph, product: NodeProto) -> bool:
    """True if a product's sides are different halves of one tensor, or products of one tensor, and
    one of them went through an activation."""
    sides = [graph.sources([name], _HALVES, _AROUND_GATE) for name in product.input]
    if any(len(side) != 1 for side in sides) or sides[0] == sides[1]:
        return False
    first, second = (graph.producers[name] for side in sides for name in side)
    activated = any(
        node is not None and node.op_type in _ACTIVATIONS
        for node in map(graph.producers.get, product.input)
    )
    return activated and first.op_type == second.op_type and first.input[0] == second.input[0]


# --- fates of the parts ------------------------------------------------------------------------


def reasons(model: ModelProto, report: Report) -> Iterator[tuple[Part, str]]:
    """Each part of a model and why it is not fused: "" if it is, OVERLOOKED if nothing says so."""
    fused = {name for node in report.fused for name in node.source_nodes}
    refused = {kept.node: f"it stays in fp32: {kept.reason}" for kept in report.kept}
    refused |= {refusal.node: refusal.reason for refusal in report.refusals}
    for part in parts(model):
        yield part, "" if part.node in fused else refused.get(part.node, OVERLOOKED)


def recognized(name: str, precision: str) -> list[tuple[Part, str]]:
    """`reasons` for a stored model; nothing is compiled or verified."""
    model = load(name)
    with tempfile.TemporaryDirectory() as folder:
        report = onnxbolt.optimize(
            model,
            Path(folder) / "out.onnx",
            precision=precision,
            fuse="all",
            library=False,
            verify=False,
        )
    return list(reasons(model, report))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.zoo.recognition", description=__doc__)
    parser.add_argument("--only", action="append", help="a pattern of names; all without")
    parser.add_argument("--precision", default="fp16", choices=("fp16", "bf16", "keep"))
    chosen = parser.parse_args(arguments)
    failures = 0
    for name in names():
        if any(fnmatch.fnmatch(name, pattern) for pattern in chosen.only or ["*"]):
            try:
                found = recognized(name, chosen.precision)
            except Exception:  # the others go on
                failures += 1
                print(f"{name}: failed", flush=True)
                traceback.print_exc()
            else:
                print("\n".join(lines(name, found)), flush=True)
    return 1 if failures else 0


def lines(name: str, found: Sequence[tuple[Part, str]]) -> Iterator[str]:
    """How many parts of each kind are fused, and the first node of each reason."""
    counts = []
    for kind in (ATTENTION, NORM, GLU):
        why = [reason for part, reason in found if part.kind == kind]
        if why:
            counts.append(f"{kind} {why.count('')} of {len(why)}")
    yield f"{name}: {', '.join(counts)}"
    firsts = dict[tuple[str, str], str]()
    for part, reason in found:
        if reason:
            firsts.setdefault((part.kind, reason.partition(":")[0]), part.node)
    for (kind, reason), node in firsts.items():
        yield f"    {kind} {node}: {reason}"


if __name__ == "__main__":
    sys.exit(main())
