"""ONNX Runtime's norms of sums are written as sums and norms, and answer as ONNX Runtime does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

import onnxbolt
from onnxbolt.domains import CONTRIB
from tests.support import Net, prepare, run

B, S, W = 2, 5, 64
Build = Callable[[Net], list[str]]


def _skip(op: str, bias: bool = False, total: bool = False) -> Build:
    def build(net: Net) -> list[str]:
        product = net.node("MatMul", "x", net.normal(W, W, scale=W**-0.5))
        vectors = [
            net.normal(W) for _ in range((2 if op == "SkipLayerNormalization" else 1) + bias)
        ]
        given = (product, "x", *vectors)
        y, *_, sum_ = net.several(op, *given, outputs=4, epsilon=1e-3, domain=CONTRIB)
        return [net.node("Mul", y, net.node("Tanh", sum_)) if total else net.node("Relu", y)]

    return build


def _embedded(net: Net, *further: str, outputs: int = 1, segments: bool = True) -> list[str]:
    """Its first outputs; it has two of them at least."""
    tables = [net.normal(rows, W) for rows in (9, 16, 2)]
    if not segments:
        tables[2] = ""
    given = ("ids", "segments" if segments else "", *tables, net.normal(W), net.normal(W), *further)
    wanted = max(outputs, 2)
    return net.several(
        "EmbedLayerNormalization", *given, outputs=wanted, epsilon=1e-3, domain=CONTRIB
    )[:outputs]


def _words(net: Net) -> list[str]:
    return _embedded(net, segments=False)


def _masked(net: Net) -> list[str]:
    y, index, total = _embedded(net, "mask", outputs=3)
    return [net.node("Mul", y, net.node("Tanh", total)), index]


def _placed(net: Net) -> list[str]:
    return _embedded(net, "", "places")


LAYER, RMS = "SkipLayerNormalization", "SkipSimplifiedLayerNormalization"
FORMS: dict[str, tuple[Build, str]] = {
    "skip": (_skip(LAYER), "LayerNorm_Add_Scale_Bias"),
    "skip with a bias": (_skip(LAYER, bias=True), "LayerNorm_Add_Scale_Bias"),
    "skip, the sum is read": (_skip(LAYER, True, True), "LayerNorm_Add_Store_Scale_Bias"),
    "RMS": (_skip(RMS), "RmsNorm_Add_Scale"),
    "RMS with a bias": (_skip(RMS, bias=True), "RmsNorm_Add_Scale"),
    "RMS, the sum is read": (_skip(RMS, True, True), "RmsNorm_Add_Store_Scale"),
    "embeddings": (_embedded, "EmbeddingLayerNorm_i32_tables3_Scale_Bias"),
    "words and places": (_words, "EmbeddingLayerNorm_i32_tables2_Scale_Bias"),
    "mask": (_masked, "EmbeddingLayerNorm_i32_tables3_Store_Scale_Bias"),
    "given places": (_placed, "EmbeddingLayerNorm_i32_tables3_Scale_Bias"),
}


def source_of(build: Build, opset: int = 17, symbolic: bool = True) -> onnx.ModelProto:
    """A model with the inputs that its form reads."""
    b, s = ("batch", "length") if symbolic else (B, S)
    indices = {"ids": (b, s), "segments": (b, s), "mask": (b, s), "places": (b, s)}
    types = dict.fromkeys(indices, int(TensorProto.INT32))
    net = Net({"x": (b, s, W), **indices}, opset, types=types)
    outputs = build(net)
    read = {name for node in net.nodes for name in node.input}
    net.inputs = [value for value in net.inputs if value.name in read]
    return net.model(*outputs)


def answers(model: onnx.ModelProto) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    given = {
        "x": rng.standard_normal((B, S, W)).astype(np.float32),
        "ids": rng.integers(0, 9, (B, S)).astype(np.int32),
        "segments": rng.integers(0, 2, (B, S)).astype(np.int32),
        "mask": np.array([[1, 1, 0, 1, 0], [0, 2, 1, 1, -1]], np.int32),
        "places": rng.integers(0, 16, (B, S)).astype(np.int32),
    }
    return run(model, {value.name: given[value.name] for value in model.graph.input})


@pytest.mark.parametrize("precision", ["keep", "fp16"])
@pytest.mark.parametrize("form", FORMS)
def test_one_kernel_computes_each_form(form: str, precision: str, tmp_path: Path) -> None:
    build, op = FORMS[form]
    source, out = source_of(build), tmp_path / "out.onnx"
    report = onnxbolt.optimize(
        source, out, archs="sm_90a", precision=precision, fuse="all", library=False
    )
    assert report.passed
    element = "f32" if precision == "keep" else "f16"
    assert [n.op for n in report.fused if "Norm" in n.op] == [f"{op}_{element}"]
    limit = 1e-5 if precision == "keep" else 3e-2
    for got, expected in zip(answers(onnx.load(out)), answers(source), strict=True):
        np.testing.assert_allclose(got, expected, atol=limit, rtol=limit)


@pytest.mark.parametrize("opset", [13, 17])
@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_nothing_of_the_source_is_left(form: str, symbolic: bool, opset: int) -> None:
    """Also below opset 17, which has no LayerNormalization."""
    build, _ = FORMS[form]
    graph = prepare(source_of(build, opset, symbolic))
    assert not [node.op for node in graph.nodes if node.domain == CONTRIB]
    norms = [node for node in graph.nodes if node.op in ("LayerNormalization", "RMSNormalization")]
    assert [norm.attrs["epsilon"] for norm in norms] == [pytest.approx(1e-3)]
    computed = any(node.op == "CumSum" for node in graph.nodes)
    assert computed == (symbolic and build in (_embedded, _words, _masked))


def test_a_bias_becomes_that_of_the_product(tmp_path: Path) -> None:
    report = onnxbolt.optimize(
        source_of(_skip(LAYER, bias=True)), tmp_path / "out.onnx", fuse="all", library=False
    )
    assert "FusedGemm_Bias" in report.fused[0].op


def _index_without_mask(net: Net) -> list[str]:
    return _embedded(net, outputs=2)


def test_what_counts_no_mask_stays() -> None:
    graph = prepare(source_of(_index_without_mask))
    assert [node.op for node in graph.nodes] == ["EmbedLayerNormalization"]
