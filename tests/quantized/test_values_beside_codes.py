"""Products of codes that add values, and whose result is written as values and as codes: ModelOpt's
residuals."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, NodeProto, helper

from onnxbolt import archs
from onnxbolt.canonicalize import canonicalize
from onnxbolt.dtypes import DType
from onnxbolt.families import named
from onnxbolt.graph.importer import import_model
from onnxbolt.graph.shapes import infer
from onnxbolt.graph.stages import Stages
from onnxbolt.match import preparation, quantized
from onnxbolt.match.matcher import match
from onnxbolt.precision import convert
from onnxbolt.problems import QuantizedConvProblem, QuantizedGemmProblem
from onnxbolt.verify import verify
from onnxbolt.verify.session import CPU
from tests.quantized import fusing, kernels, stored
from tests.support import Net

pytestmark = pytest.mark.usefixtures("products")


@pytest.fixture(autouse=True)
def _beside() -> Iterator[None]:
    with kernels.beside():
        yield


def _blocks(outputs: bool = False, dense: bool = False, channels: int = 16) -> ModelProto:
    """Two residual blocks: the sum of the first one is read as values by the second one's sum, and
    as codes by its product."""
    shape = (6, channels) if dense else (2, channels, 6, 6)
    net = Net({"x": shape}, opset=17, seed=5)

    def pair(x: str, scale: float, zero: int) -> str:
        numbers = net.const(scale), net.const(zero, np.int8)
        return net.node("DequantizeLinear", net.node("QuantizeLinear", x, *numbers), *numbers)

    def product(x: str) -> str:
        wide = (channels, channels) if dense else (channels, channels, 3, 3)
        codes = net.const(net.rng.integers(-127, 128, wide), np.int8)
        weight = net.node("DequantizeLinear", codes, net.const(0.0011))
        bias = net.const(net.rng.standard_normal(channels))
        if dense:
            return net.node("Add", net.node("MatMul", x, weight), bias)
        return net.node("Conv", x, weight, bias, pads=[1, 1, 1, 1])

    first = net.node("Relu", net.node("Add", product(pair("x", 0.0231, 3)), "x"))
    second = net.node("Relu", net.node("Add", product(pair(first, 0.0317, -128)), first))
    return net.model(second, *([first] if outputs else []))


def _both(model: ModelProto) -> NodeProto:
    """The only node that writes values and codes."""
    (node,) = [n for n in model.graph.node if "_Store" in n.op_type]
    return node


@pytest.mark.parametrize("dense", [False, True], ids=["conv", "gemm"])
def test_one_node_adds_values_and_writes_both(dense: bool, tmp_path: Path) -> None:
    model = _blocks(dense=dense)
    fused = fusing.fused(model, tmp_path)
    kind = "Gemm" if dense else "Conv"
    first = f"FusedQuantized{kind}_offsets_Dequantize_Bias_AddF32_Relu_StoreF32_QuantizeI8_i8"
    second = f"FusedQuantized{kind}_offsets_Dequantize_Bias_AddF32_Relu_CastF32_i8"
    types = fusing.types(fused)
    assert types[first] == types[second] == 1
    # that of x, which is a node of ours where there are such kernels
    assert types["QuantizeLinear"] + types["FusedQuantize_QuantizeI8_f32"] == 1
    assert not {"Add", "Relu", "DequantizeLinear"} & types.keys()
    result, node = verify(model, fused, providers=[CPU]), _both(fused)
    assert result.passed, result.text()
    given = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    known = [given["tensor"].decode(), given["stored_tensor"].decode()]
    assert {*known} <= {row.name for row in result.at("segment")}
    assert {*node.output} <= {row.name for row in result.at("node")}


def test_values_may_be_an_output_of_the_model(tmp_path: Path) -> None:
    model = _blocks(outputs=True)
    fused = fusing.fused(model, tmp_path)
    assert _both(fused)
    result = verify(model, fused, providers=[CPU])
    assert result.passed, result.text()


@pytest.mark.parametrize("precision", ["keep", "fp16"])
def test_values_lie_as_codes_do(precision: str, tmp_path: Path) -> None:
    """With their padding."""
    model = _blocks(channels=20)
    fused = fusing.fused(model, tmp_path, precision)
    assert _both(fused)
    assert "Pad" not in fusing.types(fused)
    result = verify(model, fused, providers=[CPU])
    assert result.passed, result.text()


@pytest.mark.parametrize("precision", ["keep", "fp16"])
@pytest.mark.parametrize("name", ["cnn.modelopt.int8", "cnn.modelopt.fp8"])
def test_stored_graphs(name: str, precision: str, tmp_path: Path) -> None:
    model = stored.graph(name)
    fused = fusing.fused(model, tmp_path, precision)
    code, value = ("E4M3", "F16") if "fp8" in name else ("I8", "F32")
    steps = f"Dequantize_Bias_Add{value}_Relu_Store{value}_Quantize{code}"
    assert _both(fused).op_type == f"FusedQuantizedConv_{steps}_{code.lower()}"
    result = verify(model, fused, providers=[CPU])
    assert result.passed, result.text()


def _residuals() -> ModelProto:
    """Two linear layers with residuals, as transformers have them."""
    net = Net({"x": (6, 32)}, opset=19, seed=5)
    numbers = net.const(0.031), net.const(0, np.int8)
    y = net.node("Tanh", "x")
    for _ in range(2):
        q = net.node("QuantizeLinear", net.node("Tanh", y), *numbers)
        codes = net.const(net.rng.integers(-127, 128, (32, 32)), np.int8)
        weight = net.node("DequantizeLinear", codes, net.const(0.0011))
        z = net.node("MatMul", net.node("DequantizeLinear", q, *numbers), weight)
        y = net.node("Add", net.node("Add", z, net.normal(32)), y)
    return net.model(net.node("Tanh", y))


@pytest.mark.parametrize("precision", ["keep", "fp16", "bf16"])
def test_residuals_have_the_type_of_the_model(precision: str, tmp_path: Path) -> None:
    """They are added in fp32."""
    model, name = _residuals(), {"keep": "F32"}.get(precision, precision.upper().replace("P", ""))
    fused = fusing.fused(model, tmp_path, precision)
    types = fusing.types(fused)
    assert types[f"FusedQuantizedGemm_Dequantize_Bias_Add{name}_Cast{name}_i8"] >= 1
    assert sum(count for op, count in types.items() if f"_Add{name}" in op) == 2
    result = verify(model, fused, providers=[CPU])
    assert result.passed, result.text()


def test_a_cast_stays_with_a_product_whose_residual_another_kernel_adds() -> None:
    graph = import_model(_residuals())
    infer(graph)
    canonicalize(graph, Stages())
    preparation.prepare(graph)
    convert(graph, "fp16", between=quantized.between_codes(graph))
    found = [c for c in match(graph).candidates if "AddF16" in c.steps]
    assert len(found) == 2
    for candidate in found:
        at = candidate.steps.index("AddF16")
        cast, add = candidate.links[at].nodes
        assert (cast.op, add.op) == ("Cast", "Add")
        shorter, alone = candidate.before(add), candidate.before(cast)
        assert shorter is not None
        assert alone is not None
        assert shorter.steps == (*candidate.steps[:at], "CastF16")
        assert alone.steps == candidate.steps[:at]


def test_sums_are_written_as_values_where_no_kernel_moves_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for family in (*kernels.EXTENSION.families, named("quantized_conv_sm90")):
        monkeypatch.setattr(family, "moves_values", False)
    types = fusing.types(fusing.fused(_blocks(), tmp_path))
    assert not [op for op in types if "_Store" in op or "_AddF32" in op]


def test_what_is_no_value_of_the_same_shape_is_not_added(tmp_path: Path) -> None:
    """An operand that broadcasts."""
    model = _blocks()
    add = next(node for node in model.graph.node if "x" in node.input and node.op_type == "Add")
    add.input[list(add.input).index("x")] = "narrow"
    narrow = helper.make_tensor_value_info("narrow", onnx.TensorProto.FLOAT, (2, 16, 1, 1))
    model.graph.input.append(narrow)
    types = fusing.types(fusing.fused(model, tmp_path))
    assert sum("_AddF32" in op for op in types) == 1  # the second sum's


# --- faults ---------------------------------------------------------------------------------------


def scale(model: ModelProto) -> None:
    """The scale of the codes is a fiftieth too large."""
    params = next(a for a in _both(model).attribute if a.name == "epilogue_params")
    params.floats[-2] *= 1.02


def values(model: ModelProto) -> None:
    """Values are a thousandth too large."""
    body = next(f for f in model.functions if f.name == _both(model).op_type)
    node = next(node for node in body.node if "stored" in node.output)
    factor = onnx.numpy_helper.from_array(np.array(1.001, np.float32))
    place = list(body.node).index(node)
    more = [
        helper.make_node("Constant", [], ["factor"], value=factor),
        helper.make_node("Mul", [node.input[0], "factor"], ["larger"]),
    ]
    node.input[0] = "larger"
    kept = [*body.node[:place], *more, *body.node[place:]]
    del body.node[:]
    body.node.extend(kept)


def residual(model: ModelProto) -> None:
    """The residual is left out."""
    body = next(f for f in model.functions if f.name == _both(model).op_type)
    node = next(node for node in body.node if node.op_type == "Add")
    node.op_type = "Identity"
    del node.input[1:]


@pytest.mark.parametrize("plant", [scale, values, residual], ids=lambda plant: plant.__name__)
def test_faults_are_found(plant: Callable[[ModelProto], None], tmp_path: Path) -> None:
    model = _blocks()
    fused = fusing.fused(model, tmp_path)
    plant(fused)
    onnx.checker.check_model(fused)
    found = verify(model, fused, providers=[CPU]).failures
    assert {row.level for row in found} & {"segment", "node"}
    assert all("does not run" not in row.reason for row in found)


# --- problems and kernels -------------------------------------------------------------------------

CHAIN = ("Dequantize", "Bias", "AddF16", "Relu", "StoreF16", "QuantizeI8")


def test_values_count_with_their_own_bytes() -> None:
    m, n, k = 4096, 256, 64
    both = QuantizedGemmProblem(m, n, k, DType.I8, DType.I8, CHAIN)
    assert both.bytes_moved == m * k + n * k + m * n * (2 + 2 + 1)
    own = QuantizedGemmProblem(m, n, k, DType.I8, DType.F16, CHAIN[:4])
    assert own.bytes_moved == m * k + n * k + m * n * (2 + 2)


def test_kernels_take_one_tensor_beside_codes() -> None:
    arch = archs.by_name("sm_90a")
    window = ((1, 1, 1, 1), (1, 1), (1, 1), 1)
    sizes = (8, 28, 28, 128, 128, 3, 3, 28, 28)
    for chain, fits in ((CHAIN, True), ((*CHAIN[:2], "AddCodesI8", *CHAIN[2:]), False)):
        problem = QuantizedConvProblem(*sizes, *window, DType.I8, DType.I8, chain)
        found = named("quantized_conv_sm90").candidates(problem, arch)
        assert bool(found) is fits
        gemm = QuantizedGemmProblem(4096, 256, 64, DType.I8, DType.I8, chain)
        assert bool(named("quantized_gemm_sm90").candidates(gemm, arch)) is fits
    deep = QuantizedConvProblem(
        8, 28, 28, 128, 128, 3, 3, 28, 28, *window[:3], 128, DType.I8, DType.I8, CHAIN
    )
    assert not named("quantized_depthwise").candidates(deep, arch)
