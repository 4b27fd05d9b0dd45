"""Function bodies: they compute what the epilogue table's numpy reference computes, and their
names follow from them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper

from onnxbolt.dtypes import DType
from onnxbolt.epilogues import CASTS, EPILOGUES, GATE, GATE_BIAS, MEAN, ROTATE, STORE, Step, codes
from onnxbolt.ops import named
from onnxbolt.ops.base import Signature
from onnxbolt.ops.functions import DOMAIN, build
from tests.support import Net, assert_same

PARAMS = {"LeakyRelu": (0.1,), "Clip": (-0.5, 0.7), "HardSigmoid": (0.3, 0.4), "Elu": (0.8,)}
# those that a body computes by itself from its nodes' inputs
# those of codes belong to ops of their own: tests/quantized/test_fused.py
_CODES = {step.name for step in codes.STEPS}
STEPS = sorted(set(EPILOGUES) - {STORE, MEAN, GATE, GATE_BIAS, ROTATE} - _CODES)


def call(
    signature: Signature, feeds: dict[str, np.ndarray], opset: int, **attributes: Any
) -> np.ndarray:
    function = build(signature, opset)
    node = helper.make_node(function.name, list(feeds), ["y"], domain=DOMAIN, **attributes)
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
        for n, v in feeds.items()
    ]
    out = next(
        (
            d.onnx
            for d, cast in CASTS.items()
            if signature.steps and signature.steps[-1].name == cast
        ),
        signature.dtype.onnx,
    )
    shape = [f"d{i}" for i in range(feeds["x"].ndim)]
    graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("y", out, shape)])
    if out == DType.BF16.onnx:  # ONNX Runtime hands no bf16 to numpy: widened inside the graph
        graph.node[0].output[0] = "narrow"
        graph.node.append(helper.make_node("Cast", ["narrow"], ["y"], to=DType.F32.onnx))
        graph.output[0].type.tensor_type.elem_type = DType.F32.onnx
    model = helper.make_model(
        graph,
        functions=[function],
        ir_version=8,
        opset_imports=[helper.make_opsetid("", opset), helper.make_opsetid(DOMAIN, 1)],
    )
    onnx.checker.check_model(model)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    result: np.ndarray = session.run(None, feeds)[0]
    return result


@pytest.mark.parametrize("opset", [11, 17, 20])
@pytest.mark.parametrize("name", STEPS)
def test_gemm_bodies_compute_the_reference(name: str, opset: int) -> None:
    if name == "CastBF16" and opset < 13:
        pytest.skip("ONNX has no Cast to bfloat16 below opset 13")
    rng = np.random.default_rng(0)
    x, weight = (
        rng.standard_normal((3, 4, 6)).astype(np.float32),
        rng.standard_normal((5, 6)).astype(np.float32),
    )
    step = Step(name, PARAMS.get(name, ()))
    operand = {
        "": None,
        "vector": rng.standard_normal(5),
        "tensor": rng.standard_normal((3, 4, 5)),
        "weight": rng.standard_normal((7, 5)),
    }[step.row.operand]
    feeds = {
        "x": x,
        "weight": weight,
        **({"operand": operand.astype(np.float32)} if operand is not None else {}),
    }
    product = x.astype(np.float64) @ weight.T.astype(np.float64)
    expected = step.row.reference(product, operand, *step.params)
    got = call(Signature(named("gemm"), DType.F32, 0, (step,)), feeds, opset)
    limit = {"CastF16": 1e-3, "CastBF16": 8e-3}.get(name, 1e-5)
    assert np.linalg.norm(got.astype(np.float64) - expected) <= limit * np.linalg.norm(expected)


@pytest.mark.parametrize("opset", [13, 17, 20])
@pytest.mark.parametrize("rotated", [8, 16, 24])
@pytest.mark.parametrize("rows", [(1, 4), (3, 4), (4,), (2,)])
def test_a_rotation_repeats_its_table(rows: tuple[int, ...], rotated: int, opset: int) -> None:
    """Along rows and columns; further columns stay as they are."""
    rng = np.random.default_rng(0)
    x, weight, vector = rng.standard_normal((3, 4, 6)), rng.standard_normal((24, 6)), np.ones(24)
    table = rng.standard_normal((*rows, 8))
    biased = (x @ weight.T + vector).reshape(-1, 24)
    lines = table.reshape(-1, 8)
    spread = np.tile(np.tile(lines, (len(biased) // len(lines), 1)), (1, rotated // 8))
    pairs = (biased[:, :rotated].reshape(12, -1, 2), spread.reshape(12, -1, 2))
    expected = biased.copy()
    expected[:, :rotated] = Step(ROTATE).row.reference(*pairs).reshape(12, -1)
    signature = Signature(named("rotary"), DType.F32, 0, (Step("Bias"), Step(ROTATE)))
    feeds = {"x": x, "weight": weight, "bias": vector, "table": table}
    floats = {name: values.astype(np.float32) for name, values in feeds.items()}
    got = call(signature, floats, opset, rotated_columns=rotated)
    np.testing.assert_allclose(got.reshape(12, 24), expected, atol=1e-5)


@pytest.mark.parametrize("opset", [11, 17, 20])
@pytest.mark.parametrize("name", [GATE, GATE_BIAS])
def test_a_gate_multiplies_8_columns_by_the_next_8(name: str, opset: int) -> None:
    rng = np.random.default_rng(0)
    x, weight = rng.standard_normal((3, 4, 6)), rng.standard_normal((48, 6))
    vector, half_vector = rng.standard_normal((2, 24))
    turns = (x @ weight.T).reshape(3, 4, 3, 2, 8)
    first, half = (turns[..., i, :].reshape(3, 4, 24) for i in (0, 1))
    biased = half + half_vector if name == GATE_BIAS else half
    expected = Step(name).row.reference(np.maximum(first + vector, 0), biased)
    steps = tuple(map(Step, ("Bias", "Relu", name)))
    vectors = [vector, half_vector][: 1 + (name == GATE_BIAS)]
    operands = {f"operand{i}": each for i, each in enumerate(vectors)}
    feeds = {
        name: each.astype(np.float32)
        for name, each in ({"x": x, "weight": weight} | operands).items()
    }
    got = call(Signature(named("glu"), DType.F32, 0, steps), feeds, opset)
    assert np.linalg.norm(got - expected) <= 1e-5 * np.linalg.norm(expected)


@pytest.mark.parametrize("name", ["Bias", "Scale", "PRelu", "Add", "Mul", "Relu"])
def test_convolution_bodies_take_operands_in_channels_last(name: str) -> None:
    rng = np.random.default_rng(0)
    x, weight = (
        rng.standard_normal((1, 4, 5, 3)).astype(np.float32),
        rng.standard_normal((2, 1, 1, 3)).astype(np.float32),
    )
    steps = (Step("Relu"), Step(name))
    operand = {
        "": None,
        "vector": rng.standard_normal(2),
        "tensor": rng.standard_normal((1, 4, 5, 2)),
    }[steps[1].row.operand]
    feeds = {
        "x": x,
        "weight": weight,
        **({"operand": operand.astype(np.float32)} if operand is not None else {}),
    }
    expected = steps[1].row.reference(np.maximum(x @ weight.reshape(2, 3).T, 0), operand)
    got = call(
        Signature(named("conv"), DType.F32, 4, steps),
        feeds,
        17,
        strides=[1, 1],
        pads=[0, 0, 0, 0],
        dilations=[1, 1],
        group=1,
    )
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rank", [3, 4])
@pytest.mark.parametrize("steps", [(), ("Bias",), ("Bias", "Relu", "CastF16")], ids="+".join)
def test_last_convolutions_write_channels_first(steps: tuple[str, ...], rank: int) -> None:
    rng = np.random.default_rng(0)
    x, weight = (
        rng.standard_normal((n, *shape[4 - rank :], 3)).astype(np.float32)
        for n, shape in ((2, (4, 5)), (2, (1, 1)))
    )
    bias = {"bias": rng.standard_normal(2).astype(np.float32)} if steps else {}
    signature = Signature(named("conv"), DType.F32, rank, tuple(map(Step, steps)), to_nchw=True)
    assert build(signature, 17).name == "_".join(
        ["FusedConv", *steps, "f32", *(["1d"] if rank == 3 else []), "to_nchw"]
    )
    ones = [1] * (rank - 2)
    got = call(
        signature,
        {"x": x, "weight": weight, **bias},
        17,
        strides=ones,
        pads=[0, 0] * len(ones),
        dilations=ones,
        group=1,
    )
    expected = np.moveaxis(x @ weight.reshape(2, 3).T + bias.get("bias", 0), -1, 1)
    np.testing.assert_allclose(
        got, np.maximum(expected, 0) if "Relu" in steps else expected, rtol=2e-3, atol=2e-3
    )


@pytest.mark.parametrize("opset", [11, 17, 20])
@pytest.mark.parametrize("steps", [("Mean",), ("Bias", "Relu", "Mean", "CastF16")], ids="+".join)
def test_means_are_over_each_image_behind_all_other_steps(
    steps: tuple[str, ...], opset: int
) -> None:
    rng = np.random.default_rng(0)
    x, weight = (
        rng.standard_normal((3, 4, 5, 6)).astype(np.float32),
        rng.standard_normal((2, 1, 1, 6)).astype(np.float32),
    )
    bias = {"bias": rng.standard_normal(2).astype(np.float32)} if "Bias" in steps else {}
    signature = Signature(named("conv"), DType.F32, 4, tuple(map(Step, steps)))
    assert build(signature, opset).name == "_".join(["FusedConv", *steps, "f32"])
    got = call(
        signature,
        {"x": x, "weight": weight, **bias},
        opset,
        strides=[1, 1],
        pads=[0] * 4,
        dilations=[1, 1],
        group=1,
    )
    values = x @ weight.reshape(2, 6).T + bias.get("bias", 0)
    expected = EPILOGUES[MEAN].reference(np.maximum(values, 0) if "Relu" in steps else values, None)
    assert got.shape == (3, 1, 1, 2)
    np.testing.assert_allclose(got, expected, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("element", [DType.F32, DType.BF16], ids=lambda element: element.value)
def test_elementwise_bodies_work_on_the_last_axis(element: DType) -> None:
    rng = np.random.default_rng(0)
    signature = Signature(
        named("elementwise"), element, 0, (Step("Scale"), Step("Bias"), Step("Add"), Step("Relu"))
    )
    x, tensor = (rng.standard_normal((2, 3, 4, 5)).astype(np.float32) for _ in range(2))
    scale, bias = (rng.standard_normal(5).astype(np.float32) for _ in range(2))
    function = build(signature, 17)
    assert function.name == f"FusedElementwise_Scale_Bias_Add_Relu_{element.value}"
    assert list(function.input) == ["x", "operand0", "operand1", "operand2"]
    if element is DType.F32:
        got = call(signature, {"x": x, "scale": scale, "bias": bias, "tensor": tensor}, 17)
        np.testing.assert_allclose(
            got, np.maximum(x * scale + bias + tensor, 0), rtol=1e-5, atol=1e-5
        )


CHANGES = [
    ("to_nhwc", DType.F32, DType.F16, 4, 1),
    ("to_nhwc", DType.F16, DType.F16, 4, 5),
    ("to_nhwc", DType.F32, DType.F32, 3, 0),
    ("to_nchw", DType.F16, DType.F32, 4, 3),
    ("to_nchw", DType.F16, DType.F16, 3, 2),
    ("to_nchw", DType.F32, DType.F32, 4, 0),
]


@pytest.mark.parametrize("opset", [11, 17, 20])
@pytest.mark.parametrize(("kind", "element", "out", "rank", "padding"), CHANGES)
def test_changes_of_layout_pad_and_convert(
    kind: str, element: DType, out: DType, rank: int, padding: int, opset: int
) -> None:
    first = np.random.default_rng(0).standard_normal((2, 7, 5, 3)[:rank]).astype(np.float32)
    last = np.pad(np.moveaxis(first, 1, -1), ((0, 0),) * (rank - 1) + ((0, padding),))
    x, expected = (first, last) if kind == "to_nhwc" else (last, first)
    steps = () if element is out else (Step(CASTS[out]),)
    got = call(
        Signature(named(kind), element, rank, steps, padding), {"x": x.astype(element.numpy)}, opset
    )
    np.testing.assert_array_equal(got, expected.astype(element.numpy).astype(out.numpy))


def test_names_tell_the_chain_and_differ_where_bodies_differ() -> None:
    steps = (Step("Bias"), Step("Add"), Step("Relu"))
    assert (
        build(Signature(named("conv"), DType.F16, 4, steps), 17).name
        == "FusedConv_Bias_Add_Relu_f16"
    )
    assert (
        build(Signature(named("conv"), DType.F16, 3, steps), 17).name
        == "FusedConv_Bias_Add_Relu_f16_1d"
    )
    six, seven = (
        build(Signature(named("gemm"), DType.F16, 0, (Step("Clip", (0.0, high)),)), 17).name
        for high in (6.0, 7.0)
    )
    assert six != seven
    assert six.startswith("FusedGemm_Clip_f16_")


def test_bfloat16_bodies_need_no_bfloat16_arithmetic() -> None:
    """ONNX has no bfloat16 Conv below opset 22, and ONNX Runtime none on the CPU: the bodies
    compute in fp32."""
    net = Net({"x": (2, 4, 9, 9)})
    y = net.node("Relu", net.conv("x", 4, 8, 3))
    y = net.node("MaxPool", net.node("Add", net.conv(y, 8, 8, 1), y), kernel_shape=[2, 2])
    model = net.model(net.linear(net.node("Flatten", y), 8 * 36, 5))
    optimized = assert_same(model, limit=2e-2, precision="bf16")
    onnx.checker.check_model(optimized, full_check=True)


@pytest.mark.parametrize("opset", [11, 17, 20])
def test_pooling_bodies_convert_their_result(opset: int) -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 4, 5)).astype(np.float32)
    got = call(
        Signature(named("global_average_pool"), DType.F32, 4, (Step("CastF16"),)), {"x": x}, opset
    )
    assert got.dtype == np.float16
    np.testing.assert_allclose(got, x.mean((1, 2), keepdims=True), rtol=2e-3, atol=2e-3)
    assert (
        build(Signature(named("max_pool"), DType.F16, 4, (Step("CastF32"),)), opset).name
        == "MaxPool_nhwc_CastF32_f16"
    )
