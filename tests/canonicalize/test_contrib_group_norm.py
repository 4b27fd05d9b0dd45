"""ONNX Runtime's group normalizations as operators of ONNX: the answers of its documentation, in
random forms, and forms that stay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxbolt.candidates import Refusal
from onnxbolt.canonicalize import group_norm_form
from onnxbolt.canonicalize.contrib_group_norm import run
from onnxbolt.canonicalize.restore import restore
from onnxbolt.domains import CONTRIB
from onnxbolt.graph.exporter import export_model
from onnxbolt.graph.importer import import_model
from onnxbolt.graph.shapes import infer
from onnxbolt.ops import OPS
from onnxbolt.verify.session import CPU

N, H, W = 2, 3, 5


class Norm:
    """A node with random attributes, the shapes of its inputs, and its answer in float64."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = np.random.default_rng(seed)
        self.groups = int(rng.choice([1, 2, 3, 6]))
        self.channels = self.groups * int(rng.choice([1, 2, 4]))
        self.last = bool(rng.integers(3))
        self.silu = bool(rng.integers(2))
        self.skip = self.last and bool(rng.integers(2))
        self.bias = self.skip and bool(rng.integers(2))
        self.sum_is_read = self.skip and bool(rng.integers(2))
        self.epsilon = float(rng.choice([1e-5, 1e-2]))
        self.dtype = np.float16 if seed % 3 == 0 else np.float32
        c = self.channels
        self.shapes: dict[str, tuple[int, ...]] = {"x": (N, H, W, c) if self.last else (N, c, H, W)}
        if self.skip:
            self.shapes["skip"] = [(N, H, W, c), (N, 1, 1, c), (N, c)][int(rng.integers(3))]
        self.factors: dict[str, np.ndarray] = {
            name: rng.normal(1, 0.5, c).astype(np.float32) for name in ("gamma", "beta")
        }
        if self.bias:
            self.factors["bias"] = rng.normal(size=c).astype(self.dtype)

    def model(
        self, symbolic: bool = False, changed: Mapping[str, int] | None = None
    ) -> onnx.ModelProto:
        """The node by itself, with attributes `changed`."""
        attrs: dict[str, Any] = {
            "groups": self.groups,
            "epsilon": self.epsilon,
            "activation": int(self.silu),
            "channels_last": int(self.last),
        }
        inputs = ["x", "gamma", "beta", *(["skip"] if self.skip else [])]
        inputs += ["bias"] if self.bias else []
        outputs = ["y", *(["s"] if self.sum_is_read else [])]
        op = "SkipGroupNorm" if self.skip else "GroupNorm"
        node = helper.make_node(
            op, inputs, outputs, "norm", domain=CONTRIB, **attrs | dict(changed or {})
        )
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(self.dtype))
        given = []
        for name, shape in self.shapes.items():
            dims: list[int | str] = [*shape]
            if symbolic:
                dims[0] = "n"
                if name == "x":
                    dims[1 if self.last else 2] = "h"
            given.append(helper.make_tensor_value_info(name, kind, dims))
        graph = helper.make_graph(
            [node],
            "graph",
            given,
            [helper.make_tensor_value_info(name, kind, ["a", "b", "c", "d"]) for name in outputs],
            [numpy_helper.from_array(values, name) for name, values in self.factors.items()],
        )
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid(CONTRIB, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)

    def feeds(self) -> dict[str, np.ndarray]:
        return {
            name: self.rng.normal(1, 2, shape).astype(self.dtype)
            for name, shape in self.shapes.items()
        }

    def answer(self, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        """y, and the sum where it is an output."""
        wide = {name: values.astype(np.float64) for name, values in feeds.items()}
        x = wide["x"]
        if self.skip:
            skip = wide["skip"]
            x = x + (skip[:, None, None] if skip.ndim == 2 else skip) + self.factors.get("bias", 0)
        image = x if self.last else x.transpose(0, 2, 3, 1)
        apart = image.reshape(N, H, W, self.groups, -1)
        mean = apart.mean((1, 2, 4), keepdims=True)
        variance = apart.var((1, 2, 4), keepdims=True)
        y = ((apart - mean) / np.sqrt(variance + self.epsilon)).reshape(image.shape)
        y = y * self.factors["gamma"] + self.factors["beta"]
        y = y / (1 + np.exp(-y)) if self.silu else y
        y = y if self.last else y.transpose(0, 3, 1, 2)
        return [y, x] if self.sum_is_read else [y]


def written(model: onnx.ModelProto, recognize: bool = False) -> gs.Graph:
    graph = import_model(model)
    infer(graph)
    assert run(graph) == 1
    infer(graph)
    assert not [node for node in graph.nodes if node.domain == CONTRIB]
    if recognize:
        assert group_norm_form.run(graph) == 1
    return graph


@pytest.mark.parametrize("seed", range(40))
def test_random_forms(seed: int) -> None:
    norm = Norm(seed)
    graph = written(norm.model(symbolic=seed % 2 == 0), recognize=True)
    (found,) = (node for node in graph.nodes if node.op == group_norm_form.OP)
    assert found.attrs["groups"] == norm.groups
    assert all("norm" in node.provenance for node in graph.nodes)
    restore(graph)
    made = export_model(graph)
    onnx.checker.check_model(made)
    session = onnxruntime.InferenceSession(made.SerializeToString(), providers=[CPU])
    feeds = norm.feeds()
    limit = 2e-2 if norm.dtype is np.float16 else 1e-4
    for got, expected in zip(session.run(None, feeds), norm.answer(feeds), strict=True):
        assert got.dtype == norm.dtype
        np.testing.assert_allclose(got, expected, rtol=limit, atol=limit)


@pytest.mark.parametrize(
    "changed", [{"groups": 5}, {"groups": 0}, {"activation": 2}], ids=lambda each: str(each)
)
def test_forms_that_stay_are_refused(changed: dict[str, int]) -> None:
    norm = next(each for each in map(Norm, range(99)) if each.groups in (2, 6) and not each.skip)
    graph = import_model(norm.model(changed=changed))
    infer(graph)
    assert run(graph) == 0
    (node,) = graph.nodes
    (found,) = (
        pattern.match(node)
        for pattern in OPS["group_norm"].anchors()
        if node.op in pattern.ops and node.domain == pattern.domain
    )
    assert isinstance(found, Refusal)
    assert found.reason == "its input has no known channels, or its factors are no constants"


def test_factors_of_a_run_stay() -> None:
    norm = Norm(1)
    model = norm.model()
    (gamma,) = (tensor for tensor in model.graph.initializer if tensor.name == "gamma")
    model.graph.initializer.remove(gamma)
    model.graph.input.append(
        helper.make_tensor_value_info("gamma", TensorProto.FLOAT, [norm.channels])
    )
    graph = import_model(model)
    infer(graph)
    assert run(graph) == 0
