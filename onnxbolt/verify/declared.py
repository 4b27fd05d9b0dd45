"""Checks the precision that the optimized model declares in its metadata against the types of its
tensors.

The precision decides the limits, so a declared one is accepted only if the model has tensors of
that type. The model may not have another 16-bit type that the original lacks: a Cast to it and back
rounds, although function bodies on the CPU may not show it.
"""

from __future__ import annotations

from collections.abc import Iterator

from onnx import ModelProto, NodeProto, TensorProto

from onnxbolt.errors import InputError
from onnxbolt.graph.inlining import with_inner
from onnxbolt.options import PRECISIONS
from onnxbolt.precision import LOW
from onnxbolt.verify.widen import NAMING_TYPES, SIXTEEN_BITS

_NAMES: dict[int, str] = {TensorProto.FLOAT16: "float16", TensorProto.BFLOAT16: "bfloat16"}


def declared(optimized: ModelProto) -> str:
    """The precision in the metadata, "" if there is none. Raises InputError for an unknown word."""
    found = {entry.key: entry.value for entry in optimized.metadata_props}.get(
        "onnxbolt.precision", ""
    )
    if found and found not in PRECISIONS:
        raise InputError(
            f"the optimized model's metadata has onnxbolt.precision {ascii(found)[:60]};"
            f" expected one of {', '.join(PRECISIONS)}"
        )
    return found


def precision_of(original: ModelProto, optimized: ModelProto) -> str:
    """The optimized model's precision: "fp16", "bf16" or "keep".

    A declared one counts if the model has tensors of its type. Without metadata the types decide.
    """
    word, types = declared(optimized), _types(optimized)
    if word:
        return word if word in LOW and LOW[word].onnx in types else "keep"
    new = types - _types(original)
    return next((name for name in ("bf16", "fp16") if LOW[name].onnx in new), "keep")


def undeclared(original: ModelProto, optimized: ModelProto) -> Iterator[tuple[str, str]]:
    """The tensors or functions where the optimized model rounds to a 16-bit type that neither its
    precision nor the original has, each with the fault in words.

    One place for each type: a tensor, or a function.
    """
    precision = precision_of(original, optimized)
    allowed = _types(original) | ({LOW[precision].onnx} if precision in LOW else set())
    first: dict[int, str] = {}
    for kind, name in _rounded(optimized):
        first.setdefault(kind, name)
    for kind in sorted(SIXTEEN_BITS & first.keys() - allowed):
        yield (
            first[kind],
            (
                f"is rounded to {_NAMES[kind]}; the model's precision is {precision}, and the"
                " original has no such type"
            ),
        )


def _types(model: ModelProto) -> set[int]:
    """The element types that the model's tensors and attributes have, as far as they are
    declared."""
    values = (*model.graph.input, *model.graph.output, *model.graph.value_info)
    return {kind for kind, _ in _rounded(model)} | {
        value.type.tensor_type.elem_type for value in values
    }


def _rounded(model: ModelProto) -> Iterator[tuple[int, str]]:
    """The element types of constants and of results of Casts, each with a tensor or function that
    has it."""
    for node in with_inner(model.graph.node):
        yield from ((kind, next(filter(None, node.output), node.name)) for kind in _named(node))
    for function in model.functions:
        yield from (
            (kind, function.name) for node in with_inner(function.node) for kind in _named(node)
        )
    yield from ((tensor.data_type, tensor.name) for tensor in model.graph.initializer)
    yield from (
        (sparse.values.data_type, sparse.values.name) for sparse in model.graph.sparse_initializer
    )


def _named(node: NodeProto) -> Iterator[int]:
    """The element types that a node's attributes name, or that their tensors have."""
    for attribute in node.attribute:
        if attribute.name in NAMING_TYPES:
            yield attribute.i
        elif attribute.HasField("t"):
            yield attribute.t.data_type
        for graph in (attribute.g, *attribute.graphs):
            yield from (tensor.data_type for tensor in graph.initializer)
