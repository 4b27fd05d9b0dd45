"""Run a pass on a small quantized model, and see that every tensor keeps its bits in ONNX Runtime
on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from hypothesis import settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from onnxbolt.graph.exporter import export_model
from onnxbolt.graph.importer import import_model
from onnxbolt.graph.shapes import infer
from tests.canonicalize.compare import operators, outputs_of

few = settings(max_examples=25, deadline=None)
CODES = (np.int8, np.uint8)


@st.composite
def scales(draw: st.DrawFn, count: int = 0) -> np.ndarray:
    """A scale, or `count` of them, of magnitudes as calibration finds them."""
    one = st.floats(2.0**-12, 2.0**3, width=32)
    if not count:
        return np.array(draw(one), np.float32)
    return np.array(draw(st.lists(one, min_size=count, max_size=count)), np.float32)


def powers(seed: int, *shape: int) -> np.ndarray:
    """Powers of 2 as scales, with which sums of products are exact."""
    rng = np.random.default_rng(seed)
    return np.exp2(rng.integers(-6, -1, shape)).astype(np.float32)


def codes(dtype: Any, seed: int, *shape: int, bits: int = 8) -> np.ndarray:
    """Random codes; of 7 bits their products do not saturate on processors without VNNI."""
    info, rng = np.iinfo(dtype), np.random.default_rng(seed)
    shift = 8 - bits
    return rng.integers(info.min >> shift, (info.max >> shift) + 1, shape).astype(dtype)


def values(seed: int, scale: float, *shape: int) -> np.ndarray:
    """Values around the range of a scale: some random, some codes, and some between two codes."""
    rng = np.random.default_rng(seed)
    steps = rng.integers(-300, 300, shape) / 2
    random = rng.standard_normal(shape) * 100
    chosen = np.where(rng.random(shape) < 0.5, steps, random)
    return (chosen.astype(np.float32) * np.float32(scale)).astype(np.float32)


Nodes = Sequence[tuple[Any, ...]]


def model(
    nodes: Nodes,
    inputs: Mapping[str, np.ndarray],
    outputs: Sequence[str],
    constants: Mapping[str, Any],
    opset: int = 19,
    result: Any = np.uint8,
) -> onnx.ModelProto:
    """Nodes as ("Add", "a b", "c", {attributes}), operators of com.microsoft with a dot in front;
    inputs have the types and shapes of their values. Outputs whose types inference does not find
    are of `result`."""
    made = []
    for op, read, written, *attributes in nodes:
        reads, writes = ["" if name == "_" else name for name in read.split()], written.split()
        made.append(
            helper.make_node(
                op.lstrip("."),
                reads,
                writes,
                name=f"node_{writes[0]}",
                domain="com.microsoft" if op.startswith(".") else "",
                **(attributes[0] if attributes else {}),
            )
        )
    tensors = [numpy_helper.from_array(np.asarray(a), name) for name, a in constants.items()]
    given = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in inputs.items()
    ]
    wanted = [onnx.ValueInfoProto(name=name) for name in outputs]
    graph = helper.make_graph(made, "graph", given, wanted, tensors)
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    made_model = helper.make_model(graph, opset_imports=imports, ir_version=9)
    inferred = onnx.shape_inference.infer_shapes(made_model).graph.output
    other = helper.np_dtype_to_tensor_dtype(np.dtype(result))
    for own, found in zip(made_model.graph.output, inferred, strict=True):
        own.CopyFrom(found)
        if not found.type.HasField("tensor_type"):
            own.CopyFrom(helper.make_tensor_value_info(own.name, other, None))
    return made_model


def graph_of(source: onnx.ModelProto) -> gs.Graph:
    graph = import_model(source)
    infer(graph)
    return graph


def rewritten(
    source: onnx.ModelProto,
    run: Callable[[gs.Graph], int],
    feeds: dict[str, np.ndarray],
    expected: int | None = None,
) -> list[str]:
    """The operators after `run`, which has to keep the bits of all tensors that are still there,
    and reports `expected` changes (any number but 0 if that is None)."""
    graph = graph_of(source)
    count = run(graph)
    assert count == expected if expected is not None else count
    same_bits(source, graph, feeds)
    return operators(graph)


def same_bits(source: onnx.ModelProto, graph: gs.Graph, feeds: dict[str, np.ndarray]) -> None:
    for name, before, after in _both(source, graph, feeds):
        assert before.tobytes() == after.tobytes(), f"{name}: {before} {after}"


def steps_apart(source: onnx.ModelProto, graph: gs.Graph, feeds: dict[str, np.ndarray]) -> int:
    """The largest distance of two codes in any tensor of codes."""
    apart = 0
    for _, before, after in _both(source, graph, feeds):
        if before.dtype in CODES:
            difference = before.astype(np.int64) - after.astype(np.int64)
            apart = max(apart, int(np.abs(difference).max(initial=0)))
    return apart


def _both(
    source: onnx.ModelProto, graph: gs.Graph, feeds: dict[str, np.ndarray]
) -> list[tuple[str, np.ndarray, np.ndarray]]:
    exported = export_model(graph)
    there = {name for node in exported.graph.node for name in node.output}
    there |= {value.name for value in exported.graph.output}
    names = [n for node in source.graph.node for n in node.output if n in there]
    before, after = (outputs_of(each, names, feeds) for each in (source, exported))
    for one, other in zip(before, after, strict=True):
        assert one.shape == other.shape
        assert one.dtype == other.dtype
    return list(zip(names, before, after, strict=True))


def unchanged(source: onnx.ModelProto, run: Callable[[gs.Graph], int]) -> None:
    """`run` must leave the model alone."""
    graph = graph_of(source)
    assert run(graph) == 0
    assert list(export_model(graph).graph.node) == list(source.graph.node)
