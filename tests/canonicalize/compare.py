"""Run a pass on a small model and see that the answers stay."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

from onnxbolt.canonicalize.activations import restore
from onnxbolt.graph.exporter import export_model
from onnxbolt.graph.importer import import_model
from onnxbolt.graph.shapes import infer

# relative L2; fp16 rounds by 5e-4, and folded weights once more
LIMITS = {TensorProto.FLOAT: 1e-5, TensorProto.FLOAT16: 2e-3}


def model(
    nodes: Sequence[tuple[Any, ...]],
    inputs: Mapping[str, Sequence[int | str]],
    outputs: Mapping[str, Sequence[int | str]],
    constants: Mapping[str, np.ndarray] | None = None,
    opset: int = 17,
    dtype: int = TensorProto.FLOAT,
) -> onnx.ModelProto:
    """Nodes as ("Add", "a b", "c", {attributes}); an omitted input is written as _."""
    made = []
    for op, read, written, *attributes in nodes:
        reads, writes = ["" if name == "_" else name for name in read.split()], written.split()
        made.append(
            helper.make_node(
                op, reads, writes, name=f"node_{writes[0]}", **(attributes[0] if attributes else {})
            )
        )
    numpy_type = helper.tensor_dtype_to_np_dtype(dtype)
    tensors = [
        numpy_helper.from_array(_typed(array, numpy_type), name)
        for name, array in (constants or {}).items()
    ]
    values = [
        [helper.make_tensor_value_info(n, dtype, shape) for n, shape in side.items()]
        for side in (inputs, outputs)
    ]
    graph = helper.make_graph(made, "graph", values[0], values[1], tensors)
    imports = {"": opset, **{node.domain: 1 for node in made if node.domain}}
    result = helper.make_model(
        graph, opset_imports=[helper.make_opsetid(*each) for each in imports.items()], ir_version=8
    )
    onnx.checker.check_model(result)
    return result


def _typed(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Python's floats in the model's type."""
    array = np.asarray(array)
    return array.astype(dtype) if array.dtype == np.float64 else array


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def applied(source: onnx.ModelProto, run: Callable[[gs.Graph], int], expected: int) -> gs.Graph:
    """The graph after `run`, which must report `expected` changes and leave the answers as they
    were."""
    graph = import_model(source)
    infer(graph)
    assert run(graph) == expected
    ops = operators(graph)
    check_same_answers(source, graph)
    assert operators(graph) == ops or any(op.startswith("onnxbolt.internal.") for op in ops)
    return graph


def unchanged(source: onnx.ModelProto, run: Callable[[gs.Graph], int]) -> None:
    """`run` must leave the model alone."""
    graph = import_model(source)
    infer(graph)
    assert run(graph) == 0
    assert list(export_model(graph).graph.node) == list(source.graph.node)


def operators(graph: gs.Graph) -> list[str]:
    return [f"{node.domain}.{node.op}" if node.domain else node.op for node in graph.nodes]


def check_same_answers(
    source: onnx.ModelProto, graph: gs.Graph, feeds: dict[str, np.ndarray] | None = None
) -> None:
    """The outputs, and every tensor of the source that still has its name."""
    restore(graph)
    exported = export_model(graph)
    onnx.checker.check_model(exported)
    produced = {name for node in exported.graph.node for name in node.output if name}
    names = [name for node in source.graph.node for name in node.output if name in produced]
    outputs = [value.name for value in source.graph.output]
    names += [name for name in outputs if name not in names]
    limit = LIMITS[
        (
            TensorProto.FLOAT16
            if source.graph.input[0].type.tensor_type.elem_type == TensorProto.FLOAT16
            else TensorProto.FLOAT
        )
    ]
    for name, before, after in zip(
        names, outputs_of(source, names, feeds), outputs_of(exported, names, feeds), strict=True
    ):
        assert before.shape == after.shape, name
        assert before.dtype == after.dtype, name
        if before.dtype.kind != "f":
            assert (before == after).all(), name
            continue
        finite = np.isfinite(before)  # masks hold infinities
        assert (before[~finite] == after[~finite]).all(), name
        old, new = before[finite].astype(np.float64), after[finite].astype(np.float64)
        assert np.linalg.norm(new - old) <= limit * np.linalg.norm(old), name


def outputs_of(
    source: onnx.ModelProto, names: Sequence[str], feeds: dict[str, np.ndarray] | None = None
) -> list[np.ndarray]:
    """The named tensors for `feeds` (else random, a symbolic dimension being 3), without ONNX
    Runtime's own rewriting."""
    model = onnx.ModelProto()
    model.CopyFrom(source)
    del model.graph.output[:]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run(None, feeds or random_feeds(source))


def random_feeds(source: onnx.ModelProto) -> dict[str, np.ndarray]:
    constants = {tensor.name for tensor in source.graph.initializer}
    rng = np.random.default_rng(1)
    feeds = {}
    for value in source.graph.input:
        if value.name not in constants:
            shape = [d.dim_value or 3 for d in value.type.tensor_type.shape.dim]
            feeds[value.name] = rng.standard_normal(shape).astype(
                helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
            )
    return feeds
