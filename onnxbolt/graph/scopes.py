"""Names across scopes: the tensors of the main graph that subgraphs and other parts of a model
read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from onnx import AttributeProto, GraphProto, ModelProto, NodeProto


def subgraphs(attribute: AttributeProto) -> Iterator[GraphProto]:
    """The graphs that an attribute holds."""
    if attribute.HasField("g"):
        yield attribute.g
    yield from attribute.graphs


def nodes_within(attribute: AttributeProto) -> Iterator[NodeProto]:
    """The nodes of the graphs that an attribute holds, and of those inside them."""
    for graph in subgraphs(attribute):
        for node in graph.node:
            yield node
            for inner in node.attribute:
                yield from nodes_within(inner)


def outer_reads(graph: GraphProto) -> set[str]:
    """Names that a subgraph, or one inside it, reads from outside."""
    bound = (
        {value.name for value in graph.input}
        | {t.name for t in graph.initializer}
        | {s.values.name for s in graph.sparse_initializer}
    )
    reads = {value.name for value in graph.output}
    for node in graph.node:
        bound.update(node.output)
        reads.update(node.input)
        for attribute in node.attribute:
            for inner in subgraphs(attribute):
                reads |= outer_reads(inner)
    return reads - bound - {""}


def captured(model: ModelProto, nodes: Iterable[NodeProto] | None = None) -> Iterator[str]:
    """Names of the main graph's tensors that are read from outside its nodes: by subgraphs (those
    of `nodes`, if these replace the model's), training information and quantization
    annotations."""
    for node in model.graph.node if nodes is None else nodes:
        for attribute in node.attribute:
            for graph in subgraphs(attribute):
                yield from outer_reads(graph)
    for training in model.training_info:
        yield from outer_reads(training.initialization)
        yield from outer_reads(training.algorithm)
        for binding in (*training.initialization_binding, *training.update_binding):
            yield binding.key
    for annotation in model.graph.quantization_annotation:
        for entry in annotation.quant_parameter_tensor_names:
            yield entry.value


def names(graph: GraphProto) -> Iterator[str]:
    """Every name in use, those inside subgraphs included, because in ONNX no inner tensor may
    shadow an outer one."""
    for value in (*graph.input, *graph.initializer):
        yield value.name
    for sparse in graph.sparse_initializer:
        yield sparse.values.name
    for node in graph.node:
        yield node.name
        yield from node.output
        for attribute in node.attribute:
            for inner in subgraphs(attribute):
                yield from names(inner)


def rename(nodes: Iterable[NodeProto], new: Mapping[str, str]) -> None:
    """Give nodes and tensors their names in `new`, those inside of subgraphs included."""
    for node in nodes:
        node.name = new.get(node.name, node.name)
        for tensors in (node.input, node.output):
            tensors[:] = [new.get(name, name) for name in tensors]
        for attribute in node.attribute:
            for graph in subgraphs(attribute):
                for entry in (*graph.input, *graph.output, *graph.initializer, *graph.value_info):
                    entry.name = new.get(entry.name, entry.name)
                for sparse in graph.sparse_initializer:
                    sparse.values.name = new.get(sparse.values.name, sparse.values.name)
                rename(graph.node, new)
