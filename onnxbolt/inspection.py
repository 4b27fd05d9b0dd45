"""The contents of an optimized model: its fused nodes with configuration, FLOPs and provenance."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
from onnx import GraphProto, ModelProto, NodeProto
from rich.table import Table

from onnxbolt.epilogues import MEAN
from onnxbolt.errors import InputError
from onnxbolt.families import KernelConfig
from onnxbolt.graph.bodies import located, place_of, placed
from onnxbolt.graph.scopes import subgraphs
from onnxbolt.library import metadata, weighted_ops
from onnxbolt.library_file import Beside, beside
from onnxbolt.names import NODE_FORMAT
from onnxbolt.ops.functions import DOMAIN
from onnxbolt.opspec import OpSpec, configs_of_node, real_channels, stands_for
from onnxbolt.problems import UNBOUNDED
from onnxbolt.runtime import get_library_path
from onnxbolt.terminal import add_row, literal_console, width

WIDTH = 180  # columns of a text that is not written to a terminal
Shape = tuple[int | str, ...]  # a str is a symbolic dimension


@dataclass(frozen=True)
class Flops:
    """`count` floating-point operations, multiplied by each symbolic dimension in `symbols`."""

    count: int
    symbols: tuple[str, ...] = ()

    def __str__(self) -> str:
        thousands = min(int(math.log10(max(self.count, 1))) // 3, 4)
        return " x ".join(
            [f"{self.count / 1000**thousands:.3g} {' KMGT'[thousands]}".rstrip(), *self.symbols]
        )


@dataclass(frozen=True)
class FusedNode:
    """One node of domain com.onnxbolt, read back from its attributes (docs/node-format.md)."""

    name: str
    op_type: str
    shape: Shape | None  # shape of output 0; None if shape inference does not know it
    flops: Flops | None  # None without a weight, and where the shape is not known
    configs: tuple[KernelConfig, ...]
    config_source: str
    tensor: str
    rule: str
    source_nodes: tuple[str, ...]
    layout: str
    body: str = ""  # the body of control flow that it is in; empty for the main graph


@dataclass(frozen=True)
class Inspection:
    """The model's onnxbolt metadata and its fused nodes, in graph order."""

    metadata: dict[str, str]
    nodes: tuple[FusedNode, ...]
    library: Beside | None = None  # None if the model has no fused nodes, or its file is unknown

    def json(self) -> str:
        """Everything as JSON; configurations by field name, enumerations by name."""
        values = dataclasses.asdict(self, dict_factory=_named)
        for node, written in zip(self.nodes, values["nodes"], strict=True):
            written["configs"] = [config.named() for config in node.configs]
        return json.dumps(values, indent=2)

    def text(self, columns: int | None = None) -> str:
        """A table for the terminal, one line per configuration."""
        table = Table(
            "op type",
            "output",
            "FLOPs",
            "configuration",
            "stands for",
            "from",
            "rule",
            box=None,
            pad_edge=False,
        )
        for node in self.nodes:
            configs = "\n".join(
                f"{describe(config)}, {node.config_source}" for config in node.configs
            )
            shape = "x".join(map(str, node.shape)) if node.shape is not None else "?"
            add_row(
                table,
                node.op_type,
                shape,
                str(node.flops or ""),
                configs,
                located(node.tensor, node.body),
                ", ".join(node.source_nodes),
                node.rule,
            )
        console = literal_console(columns or width(WIDTH))
        with console.capture() as captured:
            for key, value in self.metadata.items():
                console.print(f"{key}: {value}")
            if self.library:
                console.print(f"library: {self.library}", soft_wrap=True)
            if not self.metadata:
                console.print(
                    "not optimized by onnxbolt: `onnxbolt optimize` writes an optimized model",
                    soft_wrap=True,
                )
            elif not self.nodes:
                console.print(
                    "no fused nodes: nothing in the model could be fused, or was worth it;"
                    " the report of `optimize` says why",
                    soft_wrap=True,
                )
            else:
                console.print(f"fused nodes: {len(self.nodes)}")
                console.print(table)
        return captured.get().rstrip()


def describe(config: KernelConfig) -> str:
    """A configuration in one line: architecture, family, and the fields that differ from their
    default, such as 'tile 128x128x32 warp 64x64x32 instruction 16x8x16 stages 3'."""
    parts = [f"sm_{config.arch}", config.family.name]
    words = config.named()
    for field in dataclasses.fields(config):
        known = field.name in ("arch", "min_m", "max_m")
        if not known and getattr(config, field.name) != field.default:
            parts.append(f"{field.name.replace('_', ' ')} {_word(words[field.name])}")
    end = "" if config.max_m >= UNBOUNDED else config.max_m
    parts += [f"m {config.min_m}..{end}"] if config.min_m > 1 or end else []
    return " ".join(parts)


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _named(fields: list[tuple[str, Any]]) -> dict[str, Any]:
    return {
        name: value.name.lower() if isinstance(value, enum.Enum) else value
        for name, value in fields
    }


def inspect_model(model: ModelProto, path: Path | None = None) -> Inspection:
    """Read the fused nodes of `model`, and examine the library beside it if the model's `path` is
    given; no code of the library runs.

    Raises InputError for a node of a format that this version does not know, and for nodes that
    onnxbolt would not have written.
    """
    try:
        nodes = _fused_nodes(model)
    except (
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
        ArithmeticError,
        onnx.shape_inference.InferenceError,
    ) as error:
        raise InputError(
            f"the model's fused nodes are damaged ({error}). Run: onnxbolt optimize"
        ) from error
    # onnxbolt.ops is written for `onnxbolt build`; its content follows from the nodes
    own = {
        key: value
        for key, value in metadata(model).items()
        if key.startswith("onnxbolt.") and key != "onnxbolt.ops"
    }
    library = (
        beside(get_library_path(path), own.get("onnxbolt.digest", "")) if path and nodes else None
    )
    return Inspection(own, nodes, library)


def _fused_nodes(model: ModelProto) -> tuple[FusedNode, ...]:
    graph = onnx.shape_inference.infer_shapes(model).graph
    return tuple(_in_graph(graph, weighted_ops(model), {}, ()))


def _in_graph(
    graph: GraphProto,
    weighted: Mapping[str, OpSpec],
    around: Mapping[str, Shape],
    places: tuple[str, ...],
) -> Iterator[FusedNode]:
    """The fused nodes of a graph with inferred shapes, then those of its bodies; `around` has the
    shapes of tensors around it."""
    shapes = {**around, **_shapes(graph)}
    fused = [node for node in graph.node if node.domain == DOMAIN]
    real = {
        name: count
        for node in fused
        for name, prefix in zip(node.output, ("", "stored_"), strict=False)
        if (count := real_channels(_values(node), prefix)) is not None
    }
    for node in fused:
        found = _fused_node(node, shapes, weighted.get(node.op_type), real.get(node.input[0]))
        yield dataclasses.replace(found, body=placed(places))
    for node in graph.node:
        for attribute in node.attribute:
            for inner in subgraphs(attribute):
                path = (*places, place_of(node, attribute))
                yield from _in_graph(inner, weighted, shapes, path)


def _shapes(graph: GraphProto) -> dict[str, Shape]:
    """The known shapes of a graph's tensors, by name."""
    shapes: dict[str, Shape] = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    for value in (*graph.input, *graph.value_info, *graph.output):
        tensor = value.type.tensor_type
        if tensor.HasField("shape"):
            shapes[value.name] = tuple(
                d.dim_param or (d.dim_value if d.HasField("dim_value") else "?")
                for d in tensor.shape.dim
            )
    return shapes


def _values(node: NodeProto) -> dict[str, Any]:
    return {
        attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute
    }


def _fused_node(
    node: NodeProto, shapes: Mapping[str, Shape], weighted: OpSpec | None, read: int | None
) -> FusedNode:
    """A fused node's description; `read` is the number of channels of x without padding, if x is
    padded."""
    values = _values(node)
    if values.get("format") != NODE_FORMAT:
        raise InputError(
            f"node {node.name} has format {values.get('format')}, and this version of"
            f" onnxbolt reads format {NODE_FORMAT}; update onnxbolt"
        )
    shape = shapes.get(node.output[0])
    return FusedNode(
        name=node.name,
        op_type=node.op_type,
        shape=shape,
        flops=(
            _flops(weighted, shape, [shapes.get(name) for name in node.input], values, read)
            if weighted
            else None
        ),
        configs=tuple(configs_of_node(node)),
        config_source=_text(values.get("config_source", b"")),
        tensor=stands_for(values),
        rule=_text(values.get("rule", b"")),
        source_nodes=tuple(_text(name) for name in values.get("source_nodes", [])),
        layout=_text(values.get("layout", b"")),
    )


def _flops(
    op: OpSpec,
    output: Shape | None,
    inputs: Sequence[Shape | None],
    attributes: Mapping[str, Any],
    read: int | None,
) -> Flops | None:
    """Two FLOPs per multiply-add, without padded channels."""
    if output is None or (MEAN in op.chain and not inputs[0]):
        return None
    # those of weights are known
    positions, values = op.products(output, [shape or () for shape in inputs], attributes, read)
    return Flops(
        2 * values * math.prod(s for s in positions if isinstance(s, int)),
        tuple(s for s in positions if isinstance(s, str)),
    )


def _text(value: bytes) -> str:
    return value.decode()
