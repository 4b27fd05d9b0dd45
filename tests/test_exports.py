"""The models of tests/zoo/exports, as torch.onnx.export writes them: right in each precision and at
other sizes, with no attention, norm, gated linear unit or product overlooked."""

from __future__ import annotations

import json
import lzma
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, numpy_helper

import onnxbolt
from onnxbolt.verify import verify
from tests.zoo import recognition
from tests.zoo.coverage import Studied
from tests.zoo.export.strip import stripped
from tests.zoo.materialize import materialize
from tests.zoo.recognition import ATTENTION, GLU, NORM, OVERLOOKED, parts
from tests.zoo.stored import EXPORTS, FAILURES, SUFFIX, VERSIONS, doubled, load, names, shapes

QUICK = (  # in every test run
    "minilm.dynamo18.sdpa.mask.dynamic",
    "qwen3.ts17.sdpa.mask.dynamic",
    "unet.ts17.dynamic",
    "whisper_stem.dynamo18.dynamic",
)
KILOBYTES = 128  # the largest graph's
FUSED = 0.99  # the share of the products' FLOPs
LESS_FUSED = {
    "keypointrcnn_r50": 0.97,
    "mask2former_swin": 0.9,
}


def graphs(which: list[str] | None = None) -> list[object]:
    return [
        pytest.param(name, marks=() if name in QUICK else pytest.mark.zoo)
        for name in (names() if which is None else which)
    ]


def sized() -> list[str]:
    """The models whose images or sounds have symbolic sizes."""
    return [name for name in names() if shapes(name)]


@pytest.mark.parametrize("precision", ["fp16", "bf16", "keep"])
@pytest.mark.parametrize("name", graphs())
def test_exports_are_right(name: str, precision: str, tmp_path: Path) -> None:
    source, out = load(name), tmp_path / "out.onnx"
    at = shapes(name)
    report = onnxbolt.optimize(
        source,
        out,
        precision=precision,
        fuse="all",
        library=False,
        min_shapes=at,
        opt_shapes=at,
        max_shapes=at,
    )
    assert report.passed
    onnx.checker.check_model(out)


@pytest.mark.parametrize("name", graphs(sized()))
def test_function_bodies_serve_other_sizes(name: str, tmp_path: Path) -> None:
    source, out, at = load(name), tmp_path / "out.onnx", shapes(name)
    onnxbolt.optimize(source, out, fuse="all", library=False, verify=False, opt_shapes=at)
    assert at is not None
    other = doubled(source, at)
    assert verify(source, out, min_shapes=other, opt_shapes=other, max_shapes=other).passed


@pytest.mark.parametrize("name", graphs(sized()))
def test_products_are_fused_or_refused(name: str) -> None:
    found = Studied(name).products()
    assert [product.node for product, reason in found if reason == OVERLOOKED] == []
    flops = {reason == "": 0 for _, reason in found}
    for product, reason in found:
        flops[reason == ""] += product.flops
    least = LESS_FUSED.get(name.partition(".")[0], FUSED)
    assert flops.get(True, 0) >= least * sum(flops.values())


@pytest.mark.parametrize("name", graphs())
def test_nothing_is_overlooked(name: str) -> None:
    found = recognition.recognized(name, "fp16")
    assert found or shapes(name), "a model without attention, norm and gated linear unit"
    assert not [part for part, reason in found if reason == OVERLOOKED]


@pytest.mark.parametrize(
    "name", graphs([name for name in names() if name.startswith(("gemma3.", "qwen3."))])
)
def test_heads_are_normalized_and_rotated_in_kernels(name: str, tmp_path: Path) -> None:
    """No Transpose and no Neg is left in the two layers."""
    out, at = tmp_path / "out.onnx", shapes(name)
    onnxbolt.optimize(load(name), out, fuse="all", library=False, verify=False, opt_shapes=at)
    types = [node.op_type.partition("_")[0] for node in onnx.load(out).graph.node]
    assert (types.count("HeadRmsNorm"), types.count("FusedAttention")) == (4, 2)
    assert {"Transpose", "Neg"}.isdisjoint(types)


# --- storage of the graphs -------------------------------------------------------------------


def test_graphs_take_kilobytes_and_name_their_exporters() -> None:
    assert all(path.stat().st_size < KILOBYTES * 1024 for path in EXPORTS.glob(f"*{SUFFIX}"))
    versions, failures = (json.loads((EXPORTS / file).read_text()) for file in (VERSIONS, FAILURES))
    assert sorted(versions) == names()
    assert versions.keys().isdisjoint(failures)
    assert all({"onnx", "timm", "torch", "transformers"} <= {*used} for used in versions.values())


def model_of(body: str, **constants: np.ndarray) -> ModelProto:
    """A model of opset 18 of one function's text, with initializers."""
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 18]> agraph {body}')
    for name, values in constants.items():
        model.graph.initializer.append(numpy_helper.from_array(values, name))
    return model


def test_weights_become_recipes_and_masks_stay(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    sines = np.sin(rng.standard_normal((5, 32)))
    exact = {
        "mask": np.triu(np.full((1, 1, 40, 40), -np.inf), 1),
        "rotary": np.concatenate([sines, sines], 1),
        "neighbours": sines.repeat(2, 1),
        "frequencies": 1e4 ** -np.linspace(0, 1, 32),
        "scale": np.full(1, 0.125),
    }
    weights = {
        "matrix": rng.standard_normal((300, 64)) * 0.02,
        "bias": rng.standard_normal(64) + 1,
        "filters": rng.standard_normal((32, 16, 3, 3)) * 0.5,
        # as frozen BatchNormalizations have
        "factors": 1 + 0.1 * rng.standard_normal((1, 64, 1, 1)),
    }
    values = {name: array.astype(np.float32) for name, array in (exact | weights).items()}
    index = rng.integers(0, 169, (49, 49))
    model = model_of("(float[N] x) => (float[N] y) { y = Relu(x) }", **values, index=index)

    small = stripped(model, tmp_path)
    recipes = {t.name for t in small.graph.initializer if t.data_location == TensorProto.EXTERNAL}
    assert recipes == {*weights}
    drawn = {t.name: numpy_helper.to_array(t) for t in materialize(small).graph.initializer}
    for name in (*exact, "index"):
        np.testing.assert_array_equal(drawn[name], {**values, "index": index}[name])
    for name in weights:
        assert drawn[name].std() == pytest.approx(values[name].std(), rel=0.2)
        spread = 6 * float(values[name].std()) / values[name].size ** 0.5
        assert drawn[name].mean() == pytest.approx(values[name].mean(), abs=spread)
        assert not np.array_equal(drawn[name], values[name])


def test_all_forms_are_compressed_graphs() -> None:
    for path in EXPORTS.glob(f"*{SUFFIX}"):
        model = onnx.load_model_from_string(lzma.decompress(path.read_bytes()))
        assert model.producer_name == "pytorch"


# --- parts of a graph --------------------------------------------------------------------------

_ATTENTION = """(float[2,4,S,8] q, float[2,4,8,S] k, float[2,4,S,8] v) => (float[2,4,S,8] y) {
  s = MatMul(q, k)  t = Mul(s, scale)  p = Softmax(t)  n = IsNaN(p)  c = Where(n, zero, p)
  y = MatMul(c, v)
}"""
_CROSS = """(float[2,4,8,S] k, float[2,4,S,8] v) => (float[2,4,5,8] y) {
  s = MatMul(queries, k)  p = Softmax(s)  y = MatMul(p, v)
}"""
_FOLDED = """(float[2] x) => (float[2,4,5,8] y) {
  s = MatMul(queries, keys)  p = Softmax(s)  y = MatMul(p, queries)
}"""
_CLASSES = "(float[2,64] x) => (float[2,9] y) { h = MatMul(x, w)  y = Softmax(h) }"
_RMS = """(float[2,64] x) => (float[2,64] y) {
  s = Pow(x, two)  m = ReduceMean<keepdims=1>(s)  e = Add(m, eps)  r = Sqrt(e)  y = Div(x, r)
}"""
_MEAN = "(float[2,64] x) => (float[2,1] y) { s = Mul(x, x)  y = ReduceMean<keepdims=1>(s) }"
_SWIGLU = """(float[2,64] x) => (float[2,9] y) {
  g = MatMul(x, w)  h = MatMul(x, w2)  s = Sigmoid(g)  a = Mul(g, s)  y = Mul(a, h)
}"""
_GEGLU = """(float[2,64] x) => (float[2,32] y) {
  g, u = Split<axis=1, num_outputs=2>(x)  a = Tanh(g)  y = Mul(a, u)
}"""
_SILU = "(float[2,64] x) => (float[2,9] y) { g = MatMul(x, w)  s = Sigmoid(g)  y = Mul(g, s) }"


@pytest.mark.parametrize(
    ("body", "kinds"),
    [
        pytest.param(_ATTENTION, [ATTENTION], id="attention"),
        pytest.param(_CROSS, [ATTENTION], id="attention of constant queries"),
        pytest.param(_FOLDED, [], id="attention of constants"),
        pytest.param(_CLASSES, [], id="softmax of a classifier"),
        pytest.param(_RMS, [NORM], id="RMS norm"),
        pytest.param(_MEAN, [], id="mean of squares"),
        pytest.param(_SWIGLU, [GLU], id="SwiGLU"),
        pytest.param(_GEGLU, [GLU], id="GeGLU"),
        pytest.param(_SILU, [], id="SiLU"),
    ],
)
def test_parts_of_a_graph(body: str, kinds: list[str]) -> None:
    w = np.ones((64, 9), np.float32)
    scalars = {"scale": 0.5, "zero": 0.0, "two": 2.0, "eps": 1e-5}
    constants = {name: np.array(value, np.float32) for name, value in scalars.items()}
    heads = {"queries": np.ones((4, 5, 8), np.float32), "keys": np.ones((4, 8, 5), np.float32)}
    model = model_of(body, w=w, w2=w, **constants, **heads)
    assert [part.kind for part in parts(model)] == kinds
