"""Precision: which tensors become fp16 or bf16, which stay, where Casts are, and that the function
stays the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_graphsurgeon as gs
import onnxruntime as ort
import pytest
from numpy.typing import ArrayLike
from onnx import TensorProto, numpy_helper

from onnxbolt.dtypes import DType
from onnxbolt.graph.exporter import export_model
from onnxbolt.graph.importer import import_model
from onnxbolt.graph.shapes import infer
from onnxbolt.precision import Kept, convert, rounded_original
from onnxbolt.precision.constants import Constants
from onnxbolt.precision.decide import may_be_low
from onnxbolt.precision.kernel_table import kernels_of
from tests.conftest import ZOO
from tests.zoo.materialize import random_inputs

Weights = dict[str, np.ndarray]


def model_of(
    signature: str, body: str, weights: Mapping[str, ArrayLike] | None = None, opset: int = 17
) -> onnx.ModelProto:
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": {opset}]> g {signature} {{ {body} }}'
    )
    model.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(v), name) for name, v in (weights or {}).items()
    )
    for node in model.graph.node:
        node.name = f"{node.op_type}_{node.output[0]}"
    return model


def converted(
    model: onnx.ModelProto, precision: str = "fp16", ort_version: str = ""
) -> tuple[onnx.ModelProto, list[Kept]]:
    graph = import_model(model)
    infer(graph)
    kept = convert(graph, precision, kernels_of(ort_version))
    return export_model(graph), kept


def run(model: onnx.ModelProto, feeds: Weights) -> list[np.ndarray]:
    onnx.checker.check_model(model, full_check=True)
    return ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(
        None, feeds
    )


def error(y: np.ndarray, reference: np.ndarray) -> float:
    reference = reference.astype(np.float64)
    return float(np.linalg.norm(y - reference) / np.linalg.norm(reference))


def ops(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


def weights_of(model: onnx.ModelProto) -> Weights:
    return {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def test_weights_and_compute_become_fp16_between_fp32_ends(rng: np.random.Generator) -> None:
    model = model_of(
        "(float[2,8] x) => (float[2,4] y)",
        "h = MatMul(x, w) z = Add(h, b) y = Relu(z)",
        {"w": rng.standard_normal((8, 4)).astype(np.float32), "b": np.ones(4, np.float32)},
    )
    result, kept = converted(model)
    assert kept == []
    assert ops(result) == ["Cast", "MatMul", "Add", "Relu", "Cast"]
    assert {a.dtype for a in weights_of(result).values()} == {np.dtype(np.float16)}
    x = rng.standard_normal((2, 8)).astype(np.float32)
    assert error(run(result, {"x": x})[0], run(model, {"x": x})[0]) < 1e-3
    assert result.graph.output[0].type.tensor_type.elem_type == TensorProto.FLOAT


def test_keep_changes_nothing(rng: np.random.Generator) -> None:
    model = model_of(
        "(float[2,8] x) => (float[2,4] y)", "y = MatMul(x, w)", {"w": np.ones((8, 4), np.float32)}
    )
    result, kept = converted(model, "keep")
    assert kept == []
    assert result.graph == model.graph
    assert rounded_original(model, "keep") is model


def test_one_cast_per_tensor() -> None:
    model = model_of(
        "(float[4] x) => (float[4] y)",
        "a = Relu(x) b = Neg(x) c = Add(a, b) d = Exp(c) e = Sin(c) f = Add(d, e) y = Tanh(f)",
    )
    result, _ = converted(model)
    casts = [node.input[0] for node in result.graph.node if node.op_type == "Cast"]
    assert sorted(casts) == ["c", "x"]  # Exp, Sin, Add and Tanh run in fp32


def test_original_names_keep_their_values(rng: np.random.Generator) -> None:
    model = model_of(
        "(float[2,8] x) => (float[2,8] h, float[2,8] y)",
        "h = MatMul(x, w) y = Relu(h)",
        {"w": rng.standard_normal((8, 8)).astype(np.float32)},
    )
    result, _ = converted(model)
    x = rng.standard_normal((2, 8)).astype(np.float32)
    for got, expected in zip(run(result, {"x": x}), run(model, {"x": x}), strict=True):
        assert error(got, expected) < 1e-3
    relu = next(node for node in result.graph.node if node.op_type == "Relu")
    assert relu.input[0] == "h_f16"


def test_shared_weight_is_copied_only_where_a_node_stays(rng: np.random.Generator) -> None:
    model = model_of(
        "(float[8] x) => (float[8] y, float[8] z)",
        "a = Mul(x, w) b = Add(a, w) y = Relu(b) z = Pow(x, w)",
        {"w": np.full(8, 2, np.float32)},
    )
    weights = weights_of(converted(model)[0])
    assert {name: a.dtype.name for name, a in weights.items()} == {
        "w": "float32",
        "w_f16": "float16",
    }


def test_large_mask_stays_until_softmax(rng: np.random.Generator) -> None:
    """BERT's attention mask: (1 - mask) * -3.4e38 added to the scores."""
    body = "i = Sub(one, m) j = Mul(i, big) t = Add(s, j) p = Softmax(t) y = MatMul(p, w)"
    weights: dict[str, Any] = {
        "one": np.float32(1),
        "big": np.finfo(np.float32).min,
        "w": rng.standard_normal((4, 4)).astype(np.float32),
    }
    model = model_of("(float[1,4] m, float[4,4] s) => (float[4,4] y)", body, weights)
    result, kept = converted(model)
    assert [k.op for k in kept] == ["Mul", "Add", "Softmax"]
    assert "beyond fp16" in kept[0].reason
    feeds = {
        "m": np.array([[1, 0, 1, 1]], np.float32),
        "s": rng.standard_normal((4, 4)).astype(np.float32),
    }
    y = run(result, feeds)[0]
    assert np.isfinite(y).all()
    assert error(y, run(model, feeds)[0]) < 1e-3


def test_infinite_mask_is_fp16(rng: np.random.Generator) -> None:
    model = model_of(
        "(bool[4,4] m, float[4,4] s) => (float[4,4] y)",
        "j = Where(m, zero, inf) t = Add(s, j) y = Softmax(t)",
        {"zero": np.float32(0), "inf": np.float32(-np.inf)},
    )
    result, kept = converted(model)
    assert kept == []
    feeds = {
        "m": np.eye(4, dtype=bool) | np.eye(4, k=1, dtype=bool),
        "s": rng.standard_normal((4, 4)).astype(np.float32),
    }
    assert error(run(result, feeds)[0], run(model, feeds)[0]) < 1e-3


@pytest.mark.parametrize("lowest", [np.finfo(np.float32).min, np.finfo(np.float32).max, -3.4e38])
def test_the_ends_of_fp32_stay_finite_in_bf16(lowest: float) -> None:
    """Beyond bf16's largest value they would round to infinity, and a mask's zeros to NaN."""
    low = Constants(DType.BF16).converted(
        gs.Constant("c", np.array([lowest, 1.0, np.inf, -np.inf], np.float32))
    )
    assert low.dtype == ml_dtypes.bfloat16
    assert low[0] == np.copysign(ml_dtypes.finfo(ml_dtypes.bfloat16).max, lowest)  # type: ignore[no-untyped-call]
    assert low[1:].astype(np.float32).tolist() == [1.0, np.inf, -np.inf]


def test_decomposed_layer_norm_does_not_overflow(rng: np.random.Generator) -> None:
    model = model_of(
        "(float[2,64] x) => (float[2,64] y)",
        "m = ReduceMean<axes=[-1]>(x) d = Sub(x, m) q = Pow(d, two) v = ReduceMean<axes=[-1]>(q)"
        "e = Add(v, eps) s = Sqrt(e) n = Div(d, s) y = Relu(n)",
        {"two": np.float32(2), "eps": np.float32(1e-12)},
    )
    result, kept = converted(model)
    assert [k.op for k in kept] == ["Pow", "ReduceMean", "Add", "Sqrt", "Div"]
    # squares are far beyond 65504
    feeds = {"x": 3000 * rng.standard_normal((2, 64)).astype(np.float32)}
    assert error(run(result, feeds)[0], run(model, feeds)[0]) < 2e-3


def test_weights_that_would_vanish_stay() -> None:
    model = model_of(
        "(float[2,8] x) => (float[2,4] y)",
        "h = MatMul(x, w) y = Relu(h)",
        {"w": np.full((8, 4), 1e-9, np.float32)},
    )
    _, kept = converted(model)
    assert kept == [
        Kept(
            "MatMul_h",
            "MatMul",
            "a constant that fp16 cannot represent: w 32 of its 32 nonzero values would become zero"
            " in fp16",
        )
    ]


def test_integers_stay_exact() -> None:
    """A size computed from a shape in floats: 2049 is no fp16 number."""
    model = model_of(
        "(float[2049,1] x) => (int64[2] y)",
        "s = Shape(x) f = Cast<to=1>(s) g = Mul(f, k) h = Floor(g) y = Cast<to=7>(h)",
        {"k": np.float32(1)},
    )
    result, kept = converted(model)
    assert [k.op for k in kept] == ["Cast", "Mul", "Floor"]
    assert run(result, {"x": np.zeros((2049, 1), np.float32)})[0].tolist() == [2049, 1]


def test_boolean_mask_becomes_fp16_at_its_own_cast() -> None:
    model = model_of("(bool[4] m, float[4] x) => (float[4] y)", "f = Cast<to=1>(m) y = Mul(f, x)")
    result, _ = converted(model)
    assert (
        next(node for node in result.graph.node if node.input[0] == "m").attribute[0].i
        == TensorProto.FLOAT16
    )


def test_resize_scales_stay_fp32(rng: np.random.Generator) -> None:
    model = model_of(
        "(float[1,2,4,4] x) => (float[1,2,8,8] y)",
        'y = Resize<mode="nearest">(x, , s)',
        {"s": np.array([1, 1, 2, 2], np.float32)},
    )
    result, kept = converted(model)
    assert kept == []
    assert weights_of(result)["s"].dtype == np.float32
    x = rng.standard_normal((1, 2, 4, 4)).astype(np.float32)
    assert error(run(result, {"x": x})[0], run(model, {"x": x})[0]) < 1e-3


def test_control_flow_and_what_it_captures_stay_fp32() -> None:
    model = model_of(
        "(bool c, float[4] x) => (float[4] y)",
        "h = Relu(x) z = If(c)<then_branch = t () => (float[4] a) { a = Neg(h) },"
        "else_branch = e () => (float[4] b) { b = Abs(h) }> y = Sigmoid(z)",
    )
    result, kept = converted(model)
    assert [k.op for k in kept] == ["If"]
    x = np.array([-1, 2, -3, 4], np.float32)
    for condition in (True, False):
        feeds = {"c": np.array(condition), "x": x}
        assert error(run(result, feeds)[0], run(model, feeds)[0]) < 1e-3


def test_foreign_domains_and_missing_kernels_stay() -> None:
    model = model_of(
        "(float[4] x) => (float[4] y)", "a = Relu(x) b = com.example.Odd(a) y = Neg(b)"
    )
    model.opset_import.append(onnx.helper.make_opsetid("com.example", 1))
    _, kept = converted(model)
    assert [k.op for k in kept] == ["Odd", "Neg"]  # nothing says of which type Odd's result is
    assert "com.example" in kept[0].reason
    _, kept = converted(
        model_of("(float[4] x) => (float[4] y)", "a = Relu(x) b = Asin(a) y = Neg(b)"),
        ort_version="1.31",
    )
    assert kept == [Kept("Asin_b", "Asin", "ONNX Runtime 1.31 has no f16 CUDA kernel")]


def test_mixed_model_loses_its_casts() -> None:
    model = model_of(
        "(float16[4] x) => (float16[4] y)",
        "a = Relu(x) b = Cast<to=1>(a) c = Softmax(b) y = Cast<to=10>(c)",
    )
    result, kept = converted(model)
    assert kept == []
    assert [node.op_type for node in result.graph.node] == ["Relu", "Softmax"]
    assert [node.output[0] for node in result.graph.node] == ["a", "y"]


def test_constant_of_shape_changes_its_value_type() -> None:
    model = model_of(
        "(float[2,3] x) => (float[2,3] y)", "s = Shape(x) o = ConstantOfShape(s) y = Add(x, o)"
    )
    result, _ = converted(model)
    run(result, {"x": np.ones((2, 3), np.float32)})
    assert (
        numpy_helper.to_array(
            next(n for n in result.graph.node if n.op_type == "ConstantOfShape").attribute[0].t
        ).dtype
        == np.float16
    )


def test_bf16_takes_what_has_kernels(rng: np.random.Generator) -> None:
    body = "a = Conv(x, w) b = LeakyRelu(a) c = Asin(b) d = Clip(c, lo, hi) y = Relu(d)"
    weights: dict[str, Any] = {
        "w": rng.standard_normal((4, 3, 3, 3)).astype(np.float32),
        "lo": np.float32(-1),
        "hi": np.float32(1e6),
    }
    graph = import_model(model_of("(float[1,3,8,8] x) => (float[1,4,6,6] y)", body, weights))
    infer(graph)
    kept = convert(graph, "bf16")
    assert [k.op for k in kept] == ["Asin", "Clip"]  # no bf16 kernel, and Clip follows no product
    types = {t.name: np.dtype(t.dtype).name for t in graph.tensors().values()}
    assert (types["a"], types["b"], types["c"], types["w"]) == (
        "bfloat16",
        "bfloat16",
        "float32",
        "bfloat16",
    )
    assert graph.tensors()["w"].values.dtype == ml_dtypes.bfloat16


@pytest.mark.parametrize(
    ("body", "stay"),
    [
        ('b = Resize<mode="linear">(a, , s) y = Relu(b)', []),
        ("b = Resize(a, , s) c = LeakyRelu(b) y = Relu(c)", []),
        ("b = DepthToSpace<blocksize=2>(a) y = Relu(b)", []),
        ("b = SpaceToDepth<blocksize=2>(a) c = LeakyRelu(b) y = Relu(c)", []),
        ("b = BatchNormalization(m, t, t, t, t) y = Relu(b)", []),
        ("b = Add(a, m) c = LeakyRelu(b) y = Relu(c)", []),
        # no kernel of ours
        ('b = Resize<mode="linear", antialias=1>(a, , s) y = Relu(b)', "b"),
        ("b = LeakyRelu(m) y = Relu(b)", "b"),
        # no operator in 16 bits in front
        ("b = Resize(x, , s) y = Conv(b, w)", "b"),
    ],
)
def test_bf16_takes_images_that_our_kernels_have(body: str, stay: str) -> None:
    """ONNX Runtime has no kernel in bf16 for most operators of images."""
    weights: dict[str, Any] = {
        "w": np.ones((4, 4, 1, 1), np.float32),
        "s": np.array([1, 1, 2, 2], np.float32),
        "t": np.ones(4, np.float32),
    }
    text = f"a = Conv(x, w) m = MaxPool<kernel_shape=[1,1]>(a) {body}"
    model = model_of("(float[1,4,8,8] x) => (float[n,c,h,v] y)", text, weights, 18)
    _, kept = converted(model, "bf16", "1.31")
    assert [k.node.partition("_")[2] for k in kept] == list(stay)


@pytest.mark.zoo
@pytest.mark.parametrize("name", sorted(path.stem for path in ZOO.glob("*.onnx")))
def test_zoo_within_fp16_limit(name: str, zoo: Callable[[str], onnx.ModelProto]) -> None:
    model = zoo(name)
    feeds = random_inputs(model)
    for got, expected in zip(
        run(rounded_original(model, "fp16"), feeds), run(model, feeds), strict=True
    ):
        assert got.dtype == expected.dtype
        assert error(got, expected) <= 1e-2


@pytest.mark.parametrize("opset", [8, 12])
def test_old_models_come_in_bfloat16_as_well(opset: int) -> None:
    """ONNX has it from opset 13 on, to which import lifts them."""
    optimized, kept = converted(
        model_of("(float[1,2] x) => (float[1,2] y)", "y = Relu(x)", opset=opset), "bf16"
    )
    assert not kept
    assert optimized.opset_import[0].version == 13
    assert [node.op_type for node in optimized.graph.node] == ["Cast", "Relu", "Cast"]


@pytest.mark.parametrize("reduction", ["none", "add"])
def test_scattering_stays_fp32_where_it_combines(reduction: str, rng: np.random.Generator) -> None:
    body = f'y = ScatterElements<axis=1, reduction="{reduction}">(x, i, u)'
    model = model_of(
        "(float[2,8] x, float[2,2] u) => (float[2,8] y)",
        body,
        {"i": np.array([[1, 3], [0, 2]], np.int64)},
    )
    optimized, kept = converted(model)
    assert bool(kept) == (reduction == "add")
    feeds = {
        "x": rng.standard_normal((2, 8)).astype(np.float32),
        "u": rng.standard_normal((2, 2)).astype(np.float32),
    }
    assert error(run(optimized, feeds)[0], run(model, feeds)[0]) < 1e-3


def test_onehot_s_indices_are_not_rounded() -> None:
    """Some float inputs of Resize and OneHot are positions, not values: fp16 would round 2049 to
    2048."""
    model = model_of(
        "(float[4] i) => (float[4,3000] y)",
        "y = OneHot(i, d, v)",
        {"d": np.float32(3000), "v": np.array([0, 1], np.float32)},
    )
    graph = import_model(model)
    infer(graph)
    (node,) = graph.nodes
    assert [may_be_low(node, index, DType.F16, 17) for index in range(3)] == [False, False, True]
