"""A small model builder, and the middle of the pipeline as one call, for the tests of matching,
layout and rewriting."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

from onnxbolt.candidates import Candidate, Refusal
from onnxbolt.canonicalize import canonicalize, mean_form
from onnxbolt.canonicalize.restore import restore
from onnxbolt.families import Family
from onnxbolt.graph.exporter import export_model
from onnxbolt.graph.importer import import_model
from onnxbolt.graph.shapes import infer
from onnxbolt.graph.skeleton import import_domains
from onnxbolt.match import preparation
from onnxbolt.match.matcher import match
from onnxbolt.match.partition import partition
from onnxbolt.plan.choose import plan
from onnxbolt.plan.cuts import cover
from onnxbolt.precision import convert
from onnxbolt.registry import empty_caches
from onnxbolt.rewrite import rewrite


@contextmanager
def planned(family: Family[Any], measured: bool = True) -> Iterator[None]:
    """Planning may choose the kernels of `family`, even if none has run on a GPU yet; none of them
    if `measured` is False."""
    before = family.measured, family.unmeasured
    family.measured, family.unmeasured = measured, ()
    empty_caches()
    try:
        yield
    finally:
        family.measured, family.unmeasured = before
        empty_caches()


class Net:
    """Builds a model node by node; methods answer with the name of the output. `types` holds
    those of inputs that are no floats."""

    def __init__(
        self,
        shapes: dict[str, Sequence[int | str]],
        opset: int = 17,
        seed: int = 0,
        types: dict[str, int] | None = None,
    ) -> None:
        self.rng = np.random.default_rng(seed)
        types = dict.fromkeys(shapes, TensorProto.FLOAT) | (types or {})
        self.inputs = [
            helper.make_tensor_value_info(name, types[name], list(shape))
            for name, shape in shapes.items()
        ]
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.opset = opset

    def node(self, op: str, *inputs: str, outputs: int = 1, **attributes: Any) -> str:
        names = [
            f"{op.lower()}{len(self.nodes)}{'_' + str(i) if i else ''}" for i in range(outputs)
        ]
        self.nodes.append(helper.make_node(op, list(inputs), names, names[0], **attributes))
        return names[0]

    def several(self, op: str, *inputs: str, outputs: int, **attributes: Any) -> list[str]:
        """A node whose outputs are all wanted."""
        self.node(op, *inputs, outputs=outputs, **attributes)
        return list(self.nodes[-1].output)

    def const(self, values: Any, dtype: Any = np.float32) -> str:
        name = f"c{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(np.asarray(values, dtype), name))
        return name

    def normal(self, *shape: int, scale: float = 1.0) -> str:
        return self.const(self.rng.standard_normal(shape) * scale)

    def conv(self, x: str, c: int, k: int, r: int = 1, bias: bool = True, **attributes: Any) -> str:
        group = int(attributes.get("group", 1))
        weight = self.normal(k, c // group, r, r, scale=(2 / (c // group * r * r)) ** 0.5)
        return self.node("Conv", x, weight, *([self.normal(k)] if bias else []), **attributes)

    def linear(self, x: str, k: int, n: int) -> str:
        return self.node(
            "Add", self.node("MatMul", x, self.normal(k, n, scale=k**-0.5)), self.normal(n)
        )

    def batchnorm(self, x: str, c: int) -> str:
        positive = self.const(self.rng.uniform(0.5, 1.5, c))
        return self.node(
            "BatchNormalization",
            x,
            positive,
            self.normal(c),
            self.normal(c),
            self.const(self.rng.uniform(0.5, 1.5, c)),
        )

    def model(self, *outputs: str) -> onnx.ModelProto:
        values = [onnx.ValueInfoProto(name=name) for name in outputs]  # inference finds their types
        graph = helper.make_graph(self.nodes, "net", self.inputs, values, self.initializers)
        model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=8
        )
        import_domains(model)
        inferred = onnx.shape_inference.infer_shapes(model)
        del model.graph.output[:]
        model.graph.output.extend(inferred.graph.output)
        return model


def prepare(model: onnx.ModelProto, precision: str = "keep") -> gs.Graph:
    """The graph as matching sees it."""
    graph = import_model(model)
    infer(graph)
    canonicalize(graph)
    preparation.prepare(graph)
    convert(graph, precision)
    return graph


def matched(model: onnx.ModelProto) -> tuple[list[Candidate], list[Refusal]]:
    candidates, refusals = match(prepare(model))
    return partition(candidates), refusals


def fused(
    model: onnx.ModelProto, precision: str = "keep", fuse: str = "all", arch: int = 80
) -> onnx.ModelProto:
    """The optimized model, without a library."""
    graph = prepare(model, precision)
    chosen = plan(graph, cover(graph, [arch])[0], [arch], fuse)
    rewriter = rewrite(graph, chosen.assignment, chosen.configs, [arch])
    restore(graph)
    mean_form.restore(graph)
    preparation.restore(graph)
    result = export_model(graph, list(rewriter.functions.values()))
    onnx.checker.check_model(result)
    return result


def run(model: Path | onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """The outputs on the CPU; `feeds` may have more than the model's inputs."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    held = str(model) if isinstance(model, Path) else model.SerializeToString()
    session = ort.InferenceSession(held, options, providers=["CPUExecutionProvider"])
    given = {each.name: feeds[each.name] for each in session.get_inputs()}
    outputs: list[np.ndarray] = session.run(None, given)
    return outputs


def feeds_of(model: onnx.ModelProto, batch: int = 2) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    return {
        v.name: (
            rng.standard_normal(
                [d.dim_value or batch for d in v.type.tensor_type.shape.dim]
            ).astype(np.float32)
        )
        for v in model.graph.input
    }


def ops(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


def assert_same(
    model: onnx.ModelProto, limit: float = 1e-5, precision: str = "keep", arch: int = 80
) -> onnx.ModelProto:
    """The fused model answers as the original does; the fused model is handed back."""
    optimized = fused(model, precision, arch=arch)
    feeds = feeds_of(model)
    for expected, got in zip(run(model, feeds), run(optimized, feeds), strict=True):
        assert got.shape == expected.shape
        assert got.dtype == expected.dtype
        assert np.linalg.norm(got.astype(np.float64) - expected) <= limit * np.linalg.norm(expected)
    return optimized
