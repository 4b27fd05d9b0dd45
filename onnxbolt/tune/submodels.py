"""Small models of a region, with ONNX Runtime's nodes and with fused nodes; the ends of both have
the region's own types."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

import onnx
import onnx_graphsurgeon as gs
from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto

from onnxbolt import precision
from onnxbolt.canonicalize import canonicalize
from onnxbolt.canonicalize.restore import restore
from onnxbolt.codegen.render import Instance
from onnxbolt.forms import PLAIN
from onnxbolt.graph.edit import producer
from onnxbolt.graph.element_types import onnx_dtype
from onnxbolt.graph.exporter import export_model, node_proto, tensor_proto
from onnxbolt.graph.importer import import_model
from onnxbolt.graph.order import in_order
from onnxbolt.graph.shapes import infer
from onnxbolt.graph.skeleton import LEAST_IR
from onnxbolt.library import Manifest, metadata_of
from onnxbolt.match import head_norms, preparation, projections, rotations
from onnxbolt.measurements.timings import Timings
from onnxbolt.opspec import OpSpec
from onnxbolt.plan.choose import Plan, plan
from onnxbolt.plan.cuts import cover_as
from onnxbolt.plan.ranges import AS_IS, Point
from onnxbolt.plan.regions import Region
from onnxbolt.precision.widen import widen
from onnxbolt.problems import Problem
from onnxbolt.rewrite import Rewriter, rewrite


class Original:
    """A model in the target precision, as a user would give it to ONNX Runtime (`rounded`) and
    after the stages before planning (`canonical`).

    Names survive all stages, so that both contain a region of the plan under the same names.
    """

    def __init__(self, model: ModelProto, target: str) -> None:
        self.rounded = _rounded(model, target)
        self.canonical = import_model(model)
        infer(self.canonical)
        canonicalize(self.canonical)
        preparation.prepare(self.canonical)
        precision.convert(self.canonical, target)
        head_norms.move(self.canonical)
        projections.merge(self.canonical)
        rotations.move(self.canonical)
        restore(self.canonical)

    def nodes_of(self, region: Region) -> tuple[ModelProto, ModelProto] | None:
        """The region's model for ONNX Runtime and the one for fusing; None if its ends do not
        separate it from the graph.

        ONNX Runtime's model has the user's nodes, unless canonicalization has moved the region's
        ends.
        """
        inputs, outputs = ends(region)
        plain = extract(self.canonical, inputs, outputs, region.at)
        if plain is None:
            return None
        return extract(self.rounded, inputs, outputs, region.at) or plain, plain


def rounded(model: ModelProto, target: str) -> ModelProto:
    """`model` in the target precision, as a user would give it to ONNX Runtime."""
    return export_model(_rounded(model, target))


def _rounded(model: ModelProto, target: str) -> gs.Graph:
    graph = import_model(model)
    infer(graph)
    precision.convert(graph, target)
    widen(graph)
    return graph


def ends(region: Region) -> tuple[list[gs.Tensor], list[gs.Tensor]]:
    """The tensors that the region reads, and those that nodes outside read from it."""
    inner = [*(node for c in region.candidates for node in c.nodes), *region.carried]
    within = set(inner)
    written = {t.name: t for node in inner for t in node.outputs if t.name}
    read = {
        t.name: t
        for node in inner
        for t in node.inputs
        if t.name and not isinstance(t, gs.Constant) and t.name not in written
    }
    assignment = region.assignment
    plain = {name for name, form in assignment.conversions if form == PLAIN} | {
        t.name for t in assignment.both.values()
    }
    return list(read.values()), [  # a graph output may have no readers outside the region
        t
        for t in written.values()
        if not t.outputs or any(user not in within for user in t.outputs) or t.name in plain
    ]


def extract(
    graph: gs.Graph, inputs: Sequence[gs.Tensor], outputs: Sequence[gs.Tensor], at: Point = AS_IS
) -> ModelProto | None:
    """The nodes of `graph` between tensors named as `inputs` and `outputs`, with their types there
    and the sizes of `at`.

    None if `graph` lacks a name or has another type for it, or if the outputs need more than the
    inputs.
    """
    tensors = {t.name: t for node in graph.nodes for t in (*node.inputs, *node.outputs)}
    if any(
        t.name not in tensors or tensors[t.name].dtype != t.dtype or t.shape is None
        for t in (*inputs, *outputs)
    ):
        return None
    nodes = _between(tensors, {t.name for t in inputs}, [t.name for t in outputs])
    if nodes is None:
        return None
    source: ModelProto = graph.source
    model = ModelProto(
        ir_version=max(source.ir_version, LEAST_IR),
        opset_import=graph.import_domains,
        functions=source.functions,
    )
    model.graph.name = "region"
    model.graph.node.extend(node_proto(node) for node in in_order(graph) if node in nodes)
    constants = {t.name: t for node in nodes for t in node.inputs if isinstance(t, gs.Constant)}
    model.graph.initializer.extend(tensor_proto(constant) for constant in constants.values())
    model.graph.input.extend(_value(tensor, at) for tensor in inputs)
    model.graph.output.extend(_value(tensor, at) for tensor in outputs)
    return model


def _between(
    tensors: Mapping[str, gs.Tensor], inputs: Container[str], outputs: Iterable[str]
) -> dict[gs.Node, None] | None:
    """The nodes between tensors, in the order in which they are found."""
    found: dict[gs.Node, None] = {}
    pending = [tensors[name] for name in outputs]
    while pending:
        tensor = pending.pop()
        if not tensor.name or tensor.name in inputs or isinstance(tensor, gs.Constant):
            continue
        node = producer(tensor)
        if node is None:
            return None
        if node not in found:
            found[node] = None
            pending.extend(node.inputs)
    return found


def _value(tensor: gs.Tensor, at: Point) -> ValueInfoProto:
    return onnx.helper.make_tensor_value_info(
        tensor.name, onnx_dtype(tensor.dtype), at.sizes(tensor)
    )


@dataclass(frozen=True)
class Fused:
    """A graph after all stages, to be exported once its library, which may serve others as well, is
    known."""

    graph: gs.Graph
    rewriter: Rewriter
    archs: tuple[int, ...]
    problems: tuple[Problem, ...]

    @classmethod
    def of(cls, graph: gs.Graph, chosen: Plan, archs: Sequence[int]) -> Fused:
        """The graph with the plan's fused nodes; the plan's graph is changed in place."""
        rewriter = rewrite(graph, chosen.assignment, chosen.configs, archs, chosen.sources)
        restore(graph)
        widen(graph)
        return cls(graph, rewriter, tuple(archs), tuple(chosen.problems.values()))

    @property
    def ops(self) -> list[OpSpec]:
        """The op types that the library needs."""
        return self.rewriter.ops

    @property
    def instances(self) -> set[Instance]:
        """The kernels that the library needs."""
        return self.rewriter.instances

    def model(self, manifest: Manifest) -> ModelProto:
        """The model, bound to the library of `manifest`."""
        return export_model(
            self.graph,
            list(self.rewriter.functions.values()),
            metadata_of(manifest, "keep", self.archs),
        )


def fuse(
    model: ModelProto,
    arch: int,
    timings: Timings,
    ends: Container[str] = (),
    left_out: Container[str] = (),
) -> Fused:
    """`model` in its own precision with everything fused, configured by `timings`, except
    candidates whose outputs are named in `left_out`. A kernel for several layers ends at one of the
    tensors `ends`."""
    graph = import_model(model)
    infer(graph)
    canonicalize(graph)
    preparation.prepare(graph)
    candidates = [c for c in cover_as(graph, [arch], ends) if c.output.name not in left_out]
    return Fused.of(graph, plan(graph, candidates, [arch], "all", timings), [arch])


def repeat(model: ModelProto, copies: int) -> ModelProto:
    """A model of `copies` of the model side by side, each with inputs of its own and the weights
    shared, so that the launch counts only once for all."""
    repeated = ModelProto(
        ir_version=model.ir_version,
        opset_import=model.opset_import,
        functions=model.functions,
        metadata_props=model.metadata_props,
    )
    repeated.graph.name = model.graph.name
    repeated.graph.initializer.extend(model.graph.initializer)
    shared = {tensor.name for tensor in model.graph.initializer} | {""}
    for copy in range(copies):
        _append(repeated.graph, model.graph, f"#{copy}", shared)
    return repeated


def _append(target: GraphProto, source: GraphProto, suffix: str, shared: Container[str]) -> None:
    def named(name: str) -> str:
        return name if name in shared else name + suffix

    for node in source.node:
        made = NodeProto()
        made.CopyFrom(node)
        made.name = node.name + suffix
        made.input[:] = [named(name) for name in node.input]
        made.output[:] = [named(name) for name in node.output]
        target.node.append(made)
    for values, into in ((source.input, target.input), (source.output, target.output)):
        for value in values:
            made_value = into.add()
            made_value.CopyFrom(value)
            made_value.name = named(value.name)
