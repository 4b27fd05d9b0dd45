"""Codes of values are made by one kernel: a norm's, or one of their own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import ModelProto

from onnxbolt.archs import get
from onnxbolt.dtypes import DType
from onnxbolt.families import named
from onnxbolt.problems import NormProblem, QuantizeProblem, StemCodesProblem
from onnxbolt.verify import verify
from onnxbolt.verify.session import CPU
from tests.quantized import fusing, kernels
from tests.support import Net, planned, run

pytestmark = pytest.mark.usefixtures("products")
I8, E4M3 = np.int8, ml_dtypes.float8_e4m3fn
SHAPE = (2, 6, 32)
Build = Callable[[Net], str]


def _model(build: Build, code: Any = I8, later: bool = False, scale: float = 0.031) -> ModelProto:
    """A linear layer of codes behind what `build` makes; `later`: another node reads it, too."""
    net = Net({"x": SHAPE, "r": SHAPE}, opset=19, seed=3)
    x = build(net)
    numbers = net.const(scale), net.const(0, code)
    q = net.node("DequantizeLinear", net.node("QuantizeLinear", x, *numbers), *numbers)
    codes = (net.rng.normal(0, 40, (32, 32))).astype(np.int8)
    weight = net.const(codes if code is I8 else codes.astype(np.float32), code)
    y = net.node("MatMul", q, net.node("DequantizeLinear", weight, net.const(0.0021)))
    return net.model(net.node("Add", y, x) if later else net.node("Tanh", y))


def _layer_norm(net: Net, x: str = "x") -> str:
    return net.node("LayerNormalization", x, net.normal(32), net.normal(32))


def _of_a_sum(net: Net) -> str:
    return _layer_norm(net, net.node("Add", "x", "r"))


def _rms_norm(net: Net) -> str:
    squares = net.node("ReduceMean", net.node("Mul", "x", "x"), net.const([-1], "int64"))
    root = net.node("Sqrt", net.node("Add", squares, net.const(1e-5)))
    return net.node("Mul", net.node("Div", "x", root), net.normal(32))


def _other(net: Net) -> str:
    return net.node("Sin", "x")


def _fused(model: ModelProto, folder: Path, precision: str) -> list[str]:
    """The types of nodes that make codes, of a model whose verification passed."""
    fused = fusing.fused(model, folder, precision)
    result = verify(model, fused, providers=[CPU])
    assert result.passed, result.text()
    found = [node.op_type for node in fused.graph.node]
    assert "QuantizeLinear" not in found
    return [name for name in found if "Quantize" in name and "Gemm" not in name]


@pytest.mark.parametrize("precision", ["keep", "fp16", "bf16"])
@pytest.mark.parametrize("code", [I8, E4M3], ids=lambda code: np.dtype(code).name)
@pytest.mark.parametrize(
    ("build", "begin"),
    [
        (_layer_norm, "LayerNorm_Scale_Bias"),
        (_of_a_sum, "LayerNorm_Add_Scale_Bias"),
        (_rms_norm, "RmsNorm_Scale"),
        (_other, "FusedQuantize"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_one_node_makes_codes(
    build: Build, begin: str, code: Any, precision: str, tmp_path: Path
) -> None:
    name = DType.of_codes(np.dtype(code))
    assert name is not None
    (found,) = _fused(_model(build, code), tmp_path, precision)
    assert found.startswith(f"{begin}_Quantize{name.name}_")


def test_values_that_others_read_are_written_by_the_norm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without kernels that write both."""
    monkeypatch.setattr(named("norm"), "moves_values", False)
    assert _fused(_model(_layer_norm, later=True), tmp_path, "fp16") == [
        "FusedQuantize_QuantizeI8_f16"
    ]


@pytest.mark.parametrize("precision", ["keep", "fp16"])
@pytest.mark.parametrize("code", [I8, E4M3], ids=lambda code: np.dtype(code).name)
def test_a_norm_writes_values_beside_codes(code: Any, precision: str, tmp_path: Path) -> None:
    """As in transformers whose residuals are normalized values."""
    dtype, name = DType.of_codes(np.dtype(code)), "F32" if precision == "keep" else "F16"
    assert dtype is not None
    (found,) = _fused(_model(_of_a_sum, code, later=True), tmp_path, precision)
    assert found.startswith(f"LayerNorm_Add_Scale_Bias_Store{name}_Quantize{dtype.name}_")


@pytest.mark.parametrize("build", [_layer_norm, _rms_norm], ids=["layer norm", "rms norm"])
def test_values_beside_codes_may_not_be_an_output(build: Build, tmp_path: Path) -> None:
    model = _model(build, later=True)
    (name,) = (n.input[0] for n in model.graph.node if n.op_type == "QuantizeLinear")
    model.graph.output.append(onnx.helper.make_tensor_value_info(name, 1, SHAPE))
    assert _fused(model, tmp_path, "keep") == ["FusedQuantize_QuantizeI8_f32"]


def test_a_norm_has_two_outputs_at_most(tmp_path: Path) -> None:
    """The sum that others read goes before the values that others read."""

    model = _model(_of_a_sum, later=True)
    (total,) = (n.output[0] for n in model.graph.node if list(n.input) == ["x", "r"])
    y = model.graph.output[0].name
    model.graph.node.append(onnx.helper.make_node("Mul", [y, total], ["z"]))
    model.graph.output[0].name = "z"
    found = _fused(model, tmp_path, "keep")
    assert found == ["FusedQuantize_QuantizeI8_f32"]


def test_values_that_are_an_output_are_written_by_the_norm(tmp_path: Path) -> None:
    model = _model(_layer_norm)
    (name,) = (n.output[0] for n in model.graph.node if n.op_type == "LayerNormalization")
    model.graph.output.append(onnx.helper.make_tensor_value_info(name, 1, SHAPE))
    assert _fused(model, tmp_path, "keep") == ["FusedQuantize_QuantizeI8_f32"]


def test_a_stored_sum_is_rounded_before_it_is_normalized(tmp_path: Path) -> None:
    """More than 1 of 10,000 codes differ from those of the sum in float64, within their limits."""
    net = Net({"x": (2, 50, 64), "r": (2, 50, 64)}, seed=3)
    total = net.node("Add", "x", "r")
    y = net.node("LayerNormalization", total, net.normal(64), net.normal(64))
    numbers = net.const(0.01), net.const(0, I8)
    q = net.node("DequantizeLinear", net.node("QuantizeLinear", y, *numbers), *numbers)
    weight = net.const(net.rng.integers(-127, 128, (64, 64)), I8)
    y = net.node("MatMul", q, net.node("DequantizeLinear", weight, net.const(0.0021)))
    (found,) = _fused(net.model(net.node("Add", y, total)), tmp_path, "fp16")
    assert found.startswith("LayerNorm_Add_Store_Scale_Bias_QuantizeI8_")


def test_values_are_read_in_16_bits_behind_a_view(tmp_path: Path) -> None:
    """The Cast to fp32 is not moved in front of the view."""

    def reshaped(net: Net) -> str:
        return net.node("Reshape", _layer_norm(net), net.const([12, 32], "int64"))

    assert _fused(_model(reshaped, E4M3), tmp_path, "fp16") == ["FusedQuantize_QuantizeE4M3_f16"]


def test_codes_are_viewed(tmp_path: Path) -> None:
    """Those of integers are made in front of the view, by the norm."""

    def reshaped(net: Net) -> str:
        return net.node("Reshape", _layer_norm(net), net.const([12, 32], "int64"))

    (found,) = _fused(_model(reshaped), tmp_path, "fp16")
    assert found.startswith("LayerNorm_Scale_Bias_QuantizeI8_")


def test_layers_of_one_scale_share_an_op_type(tmp_path: Path) -> None:
    """Scales are attributes, which bodies read."""
    types = set[str]()
    for scale in (0.031, 0.07):
        model = _model(_layer_norm)
        for tensor in model.graph.initializer:
            if onnx.numpy_helper.to_array(tensor).reshape(-1)[:1].tolist() == [np.float32(0.031)]:
                tensor.CopyFrom(
                    onnx.numpy_helper.from_array(np.array(scale, np.float32), tensor.name)
                )
        types.update(_fused(model, tmp_path, "fp16"))
    assert len(types) == 1


def test_bodies_are_the_original(tmp_path: Path) -> None:
    """In plain ONNX Runtime, with fp32 between: the same codes, thus the same bits of sums."""
    model = _model(_of_a_sum)
    fused = fusing.fused(model, tmp_path)
    rng = np.random.default_rng(0)
    feeds = {name: rng.normal(0, 2, SHAPE).astype(np.float32) for name in ("x", "r")}
    (expected,), (answer,) = run(model, feeds), run(fused, feeds)
    np.testing.assert_allclose(answer, expected, atol=2e-5)


def test_inputs_keep_their_q(tmp_path: Path) -> None:
    """That of a graph's input, which is not stored as convolutions read it."""
    net = Net({"x": (2, 16, 8, 8)}, seed=5)
    numbers = net.const(0.031), net.const(0, I8)
    q = net.node("DequantizeLinear", net.node("QuantizeLinear", "x", *numbers), *numbers)
    weight = net.const(net.rng.integers(-127, 128, (16, 16, 1, 1)), I8)
    y = net.node("Conv", q, net.node("DequantizeLinear", weight, net.const(0.0021)))
    fused = fusing.fused(net.model(y), tmp_path)
    assert fusing.types(fused)["QuantizeLinear"] == 1


def test_without_such_kernels_codes_are_made_by_onnx_runtime(tmp_path: Path) -> None:
    with kernels.unmoved(), planned(named("elementwise"), measured=False):
        fused = fusing.fused(_model(_layer_norm), tmp_path, "fp16")
    types = fusing.types(fused)
    assert types["QuantizeLinear"] == 1
    assert types["LayerNorm_Scale_Bias_f16"] == 1


def test_predictions() -> None:
    arch = get(90)
    alone = QuantizeProblem(6304, 768, DType.F16, DType.E4M3, ("QuantizeE4M3",))
    elementwise, norm = named("elementwise"), named("norm")
    (config,) = elementwise.candidates(alone, arch)
    assert elementwise.predicted_us(alone, config, arch) < alone.onnxruntime_us(arch) / 2
    chain = ("Add", "Store", "Scale", "Bias")
    values = NormProblem(6304, 768, True, DType.F16, DType.F16, chain)
    codes = NormProblem(6304, 768, True, DType.F16, DType.E4M3, (*chain, "QuantizeE4M3"))
    assert values.bytes_moved - codes.bytes_moved == 6304 * 768
    assert codes.onnxruntime_us(arch) == pytest.approx(
        values.onnxruntime_us(arch) + alone.onnxruntime_us(arch)
    )
    assert codes.reference is None
    best = [
        min(norm.predicted_us(p, c, arch) for c in norm.candidates(p, arch))
        for p in (values, codes)
    ]
    assert best[1] < best[0]


def _image(
    between: Callable[[Net, str], str], later: bool = False, code: Any = I8, channels: int = 32
) -> ModelProto:
    """A convolution of codes behind one of values, and what `between` makes of its result."""
    net = Net({"x": (2, 3, 16, 16)}, opset=19, seed=5)
    numbers = net.const(0.031), net.const(0, code)
    values = between(net, net.node("Conv", "x", net.normal(channels, 3, 3, 3), pads=[1] * 4))
    q = net.node("DequantizeLinear", net.node("QuantizeLinear", values, *numbers), *numbers)
    weight = net.const(net.rng.integers(-127, 128, (channels, channels, 1, 1)), I8)
    y = net.node("Conv", q, net.node("DequantizeLinear", weight, net.const(0.0021)))
    return net.model(net.node("Add", y, values) if later else net.node("Tanh", y))


def _relu(net: Net, x: str) -> str:
    return net.node("Relu", x)


def _pooled(net: Net, x: str) -> str:
    return net.node(
        "MaxPool", net.node("Relu", x), kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4
    )


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize("between", [_relu, _pooled], ids=lambda each: each.__name__)
def test_codes_of_an_image_are_made_of_16_bits(
    between: Callable[[Net, str], str], precision: str, tmp_path: Path
) -> None:
    """The kernel in front writes no values of 32 bits. Codes of 24 channels are none of a stem."""
    model = _image(between, channels=24)
    fused = fusing.fused(model, tmp_path, precision)
    result = verify(model, fused, providers=[CPU])
    assert result.passed, result.text()
    types, short = fusing.types(fused), {"fp16": "f16", "bf16": "bf16"}[precision]
    assert types[f"FusedQuantize_QuantizeI8_{short}"] == 1
    assert types[f"FusedConv_Relu_{short}_nchw_f32"] == 1
    assert not {"QuantizeLinear", "Cast"} & types.keys()


def test_codes_of_an_image_whose_values_others_read(tmp_path: Path) -> None:
    """They are made of the values of 32 bits that others read, too."""
    model = _image(_relu, later=True)
    fused = fusing.fused(model, tmp_path, "fp16")
    result = verify(model, fused, providers=[CPU])
    assert result.passed, result.text()
    assert fusing.types(fused)["FusedQuantize_QuantizeI8_f16"] == 1


def test_codes_of_images_stay_until_kernels_have_run_on_a_gpu(tmp_path: Path) -> None:
    with kernels.unmoved():
        types = fusing.types(fusing.fused(_image(_relu), tmp_path, "fp16"))
    assert types["QuantizeLinear"] == 1


@pytest.mark.parametrize("build", [_layer_norm, _other])
def test_scales_without_a_reciprocal_are_left(build: Build, tmp_path: Path) -> None:
    """Kernels multiply by it."""
    fused = fusing.fused(_model(build, scale=0.0), tmp_path)
    assert not [op for op in fusing.types(fused) if "QuantizeI8" in op]


@pytest.mark.parametrize("code", [I8, np.uint8], ids=lambda code: np.dtype(code).name)
def test_a_stem_ends_with_codes(code: Any, tmp_path: Path) -> None:
    model, name = _image(_relu, code=code), DType.of_codes(np.dtype(code))
    fused = fusing.fused(model, tmp_path, "fp16")
    result = verify(model, fused, providers=[CPU])
    assert result.passed, result.text()
    assert name is not None
    assert fusing.types(fused)[f"FusedConv_Relu_Quantize{name.name}_f16_nchw_f32"] == 1


def test_a_stem_that_adds_a_tensor_ends_with_values(tmp_path: Path) -> None:
    """Kernels of stems read no tensors besides x, and others make no codes of values."""

    def added(net: Net, x: str) -> str:
        return net.node("Relu", net.node("Add", x, net.normal(2, 32, 16, 16)))

    model = _image(added)
    fused = fusing.fused(model, tmp_path, "fp16")
    assert verify(model, fused, providers=[CPU]).passed
    types = fusing.types(fused)
    assert not any(name.startswith("FusedConv_") and "Quantize" in name for name in types)
    assert types["FusedQuantize_QuantizeI8_f16"] == 1


def test_stems_end_with_values_until_kernels_have_run_on_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(named("stem_sm90"), "unmeasured", (StemCodesProblem,))
    types = fusing.types(fusing.fused(_image(_relu), tmp_path, "fp16"))
    assert types["FusedConv_Relu_f16_nchw_f32"] == types["FusedQuantize_QuantizeI8_f16"] == 1
