"""Inputs that keep weights and sizes open: initializers that callers may override, and symbolic
dimensions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from onnx import ModelProto

from onnxbolt.advice.change import Change, Obstacle, counted
from onnxbolt.advice.draft import Draft
from onnxbolt.graph.overridable import frozen
from onnxbolt.graph.sizes import size_of, without_names
from onnxbolt.spelling import option


@dataclass(frozen=True)
class Initializers(Change):
    """Initializers that are graph inputs, as constants."""

    kind: ClassVar[str] = "initializers"

    names: tuple[str, ...]
    places: tuple[str, ...]

    @classmethod
    def find(cls, draft: Draft) -> Iterator[Change | Obstacle]:
        graph = draft.source.graph
        names = {t.name for t in graph.initializer} & {value.name for value in graph.input}
        if draft.source.ir_version >= 4 and names:
            reads = (n for n in draft.graph.nodes if any(t.name in names for t in n.inputs))
            places = dict.fromkeys(name for node in reads for name in node.provenance)
            yield cls(tuple(sorted(names)), tuple(places))

    @property
    def key(self) -> str:
        return self.kind

    @property
    def words(self) -> str:
        return (
            f"make constants of the {counted(len(self.names), 'initializer')} that callers may"
            f" override, by {option('freeze_initializers', True)}"
        )

    @property
    def nodes(self) -> tuple[str, ...]:
        return self.places

    def applied(self, model: ModelProto) -> ModelProto:
        return frozen(model, True)[0]


@dataclass(frozen=True)
class FixedSizes(Change):
    """Symbolic dimensions, as numbers: each by itself, and all of them."""

    kind: ClassVar[str] = "sizes"

    sizes: tuple[tuple[str, int], ...]  # at the point that decides what is fused, by symbol

    @classmethod
    def find(cls, draft: Draft) -> Iterator[Change | Obstacle]:
        found = dict[str, int]()
        for value in draft.source.graph.input:
            declared = map(size_of, value.type.tensor_type.shape.dim)
            for symbol, size in zip(declared, draft.point.get(value.name, ()), strict=False):
                if isinstance(symbol, str):
                    found.setdefault(symbol, size)
        yield from (cls((each,)) for each in found.items())
        if len(found) > 1:
            yield cls(tuple(found.items()))

    @property
    def key(self) -> str:
        return f"{self.kind}/{'+'.join(symbol for symbol, _ in self.sizes)}"

    @property
    def words(self) -> str:
        sizes = ", ".join(f"{symbol} to {size}" for symbol, size in self.sizes)
        return f"fix open sizes where they do not vary: {sizes}, say"

    @property
    def nodes(self) -> tuple[str, ...]:
        return ()

    @property
    def results(self) -> str:
        return "the same, at these sizes alone"

    def applied(self, model: ModelProto) -> ModelProto:
        result, sizes = ModelProto(), dict(self.sizes)
        result.CopyFrom(model)
        graph = result.graph
        for value in (*graph.input, *graph.output, *graph.value_info):
            for dim in value.type.tensor_type.shape.dim:
                if (symbol := size_of(dim)) in sizes:
                    dim.dim_value = sizes[str(symbol)]
        return without_names(result, sizes.keys())  # inference tells expressions of them
