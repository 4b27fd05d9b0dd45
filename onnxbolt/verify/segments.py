"""Cuts the optimized model at every tensor whose original is known, into segments, and selects
those that differ from the original."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import AttributeProto, ModelProto, NodeProto

from onnxbolt.graph import weights
from onnxbolt.graph.bodies import has_bodies
from onnxbolt.graph.exporter import FUSED_DOMAIN
from onnxbolt.graph.inlining import with_inner
from onnxbolt.graph.scopes import subgraphs
from onnxbolt.graph.skeleton import import_domains
from onnxbolt.verify.feeds import graph_inputs
from onnxbolt.verify.originals import makes_tensors, reads_of
from onnxbolt.verify.stored import Known, Piece, known

_CUT = "//cut"  # suffix of an original tensor that a segment reads although it also computes it


@dataclass
class Segment:
    """Nodes between known tensors, in the graph's order."""

    nodes: list[NodeProto] = field(default_factory=list)
    reads: dict[str, Known] = field(default_factory=dict)  # by the name under which `nodes` read it
    writes: list[Known] = field(default_factory=list)

    @property
    def has_ours(self) -> bool:
        """True if one of the nodes is fused."""
        return any(node.domain == FUSED_DOMAIN for node in self.nodes)

    @property
    def originals(self) -> list[str]:
        """The original's tensors that the segment uses, one for each use."""
        return [
            name for tensor in (*self.reads.values(), *self.writes) for name in tensor.originals
        ]


@dataclass(frozen=True)
class Plan:
    """The segments that differ from the original, the number of times that they need each of its
    tensors, the known element types of the optimized model's tensors, and those of our nodes that
    name a tensor which the original does not have."""

    segments: list[Segment]
    uses: Mapping[str, int]
    types: Mapping[str, int]
    orphans: list[tuple[NodeProto, str]]


def plan(original: ModelProto, optimized: ModelProto, other_constants: set[str]) -> Plan:
    """Cut `optimized` into segments. Only types and shapes of initializers are used;
    `other_constants` names those whose values differ."""
    types = [_types(model) for model in (original, optimized)]
    inputs = [value.name for value in graph_inputs(original)]
    made = [
        name
        for node in original.graph.node
        for name in node.output
        if name and (makes_tensors(node) or name in types[0])
    ]
    cuts, orphans = known(list(optimized.graph.node), {*inputs, *made})
    cuts |= {value.name: Known(value.name, Piece(value.name)) for value in graph_inputs(optimized)}
    other = {
        name for name, kind in types[1].items() if types[0].get(name, kind) != kind
    } | other_constants
    twins = {node.output[0]: node for node in original.graph.node if node.output}

    versions = [
        {_domain(entry.domain): entry.version for entry in model.opset_import}
        for model in (original, optimized)
    ]

    def unchanged(node: NodeProto) -> bool:
        same = _same(node, twins.get(node.output[0])) and _same_meaning(node, *versions)
        reads = node.input if has_bodies(node) else reads_of(node)
        return same and other.isdisjoint((*reads, *node.output))

    def alone(node: NodeProto) -> bool:
        known = all(name in cuts for name in node.output if name)
        return known and _differs_inside(node, twins.get(node.output[0]))

    segments = [
        segment
        for segment in _segments(list(optimized.graph.node), cuts, alone)
        if not all(unchanged(node) or alone(node) for node in segment.nodes)
    ]
    for segment in segments:
        _close(segment, cuts)
    segments = [segment for segment in segments if segment.writes or segment.has_ours]
    return Plan(
        segments,
        Counter(name for segment in segments for name in segment.originals),
        types[1],
        orphans,
    )


def other_constants(original: ModelProto, optimized: ModelProto) -> set[str]:
    """Names of initializers that only one of the models has, or whose values differ."""
    before, after = (
        {tensor.name: tensor for tensor in model.graph.initializer}
        for model in (original, optimized)
    )
    sparse = [
        {
            (tensor.values.name, tensor.SerializeToString())
            for tensor in model.graph.sparse_initializer
        }
        for model in (original, optimized)
    ]
    shared = {
        name
        for name in before.keys() & after.keys()
        if before[name].data_type == after[name].data_type
        and np.array_equal(weights.values(before[name]), weights.values(after[name]))
    }
    return ((before.keys() | after.keys()) - shared) | {name for name, _ in sparse[0] ^ sparse[1]}


def _types(model: ModelProto) -> dict[str, int]:
    """Element types by onnx's inference; those of tensors after operators that it does not know are
    missing."""
    copy = ModelProto()
    copy.CopyFrom(model)
    import_domains(copy)
    inferred = onnx.shape_inference.infer_shapes(copy).graph
    values = (*inferred.value_info, *inferred.input, *inferred.output)
    found = {
        value.name: value.type.tensor_type.elem_type
        for value in values
        if value.type.tensor_type.elem_type
    }
    return found | {tensor.name: tensor.data_type for tensor in inferred.initializer}


def _same(node: NodeProto, twin: NodeProto | None) -> bool:
    return twin is not None and (
        node.op_type,
        node.domain,
        list(node.input),
        list(node.output),
        _attributes(node),
    ) == (twin.op_type, twin.domain, list(twin.input), list(twin.output), _attributes(twin))


def _differs_inside(node: NodeProto, twin: NodeProto | None) -> bool:
    """True for control flow whose bodies differ. These are compared by themselves (bodies.py), and
    not their results, since errors add up within them; the whole model shows these."""
    if twin is None or (node.op_type, node.domain) != (twin.op_type, twin.domain):
        return False
    return _inside(node) != _inside(twin)


def _inside(node: NodeProto) -> list[AttributeProto]:
    return [attribute for attribute in node.attribute if list(subgraphs(attribute))]


def _attributes(node: NodeProto) -> list[AttributeProto]:
    """The attributes but bodies, which are compared by themselves (bodies.py)."""
    return [
        attribute for attribute in node.attribute if not any(True for _ in subgraphs(attribute))
    ]


def _same_meaning(node: NodeProto, before: Mapping[str, int], after: Mapping[str, int]) -> bool:
    """True if both opsets (versions by domain) define a node's operator and those in its subgraphs
    alike."""
    operators = {(_domain(inner.domain), inner.op_type) for inner in with_inner([node])}
    changed = {domain for domain, _ in operators if before.get(domain) != after.get(domain)}
    return all(
        _since(domain, op, before) == _since(domain, op, after)
        for domain, op in operators
        if domain in changed
    )


def _domain(name: str) -> str:
    """The domain, with one name for the default domain, which has two."""
    return "" if name == "ai.onnx" else name


def _since(domain: str, op: str, versions: Mapping[str, int]) -> int | None:
    """The opset that an operator's definition comes from; None if onnx has no such operator."""
    version = versions.get(domain, 1)
    return (
        onnx.defs.get_schema(op, version, domain).since_version
        if onnx.defs.has(op, version, domain)
        else None
    )


def _segments(
    nodes: Sequence[NodeProto], cuts: Mapping[str, Known], alone: Callable[[NodeProto], bool]
) -> list[Segment]:
    """Groups of nodes that pass each other unknown tensors; each group is one segment. What is
    `alone` is in none with the nodes that it reads from."""
    parents = list(range(len(nodes)))

    def root(i: int) -> int:
        while parents[i] != i:
            parents[i] = i = parents[parents[i]]
        return i

    makers = {name: i for i, node in enumerate(nodes) for name in node.output if name}
    for i, node in enumerate(nodes):
        for name in () if alone(node) else reads_of(node):
            if name in makers and name not in cuts:
                parents[root(makers[name])] = root(i)
    found: dict[int, Segment] = {}
    for i in reversed(range(len(nodes))):  # in the order of their last nodes
        found.setdefault(root(i), Segment()).nodes.insert(0, nodes[i])
    return list(found.values())[::-1]


def _close(segment: Segment, cuts: Mapping[str, Known]) -> None:
    """Record the tensors that a segment reads and writes; one that it both reads and writes is read
    under another name."""
    made = {name for node in segment.nodes for name in node.output}
    segment.writes = [cuts[name] for node in segment.nodes for name in node.output if name in cuts]
    for i, node in enumerate(segment.nodes):
        both = {name: name + _CUT for name in node.input if name in cuts and name in made}
        given = sorted(
            name for name in reads_of(node) if name in cuts and (name in both or name not in made)
        )
        segment.reads |= {both.get(name, name): cuts[name] for name in given}
        if both:
            segment.nodes[i] = copy = NodeProto()
            copy.CopyFrom(node)
            copy.input[:] = [both.get(name, name) for name in node.input]
