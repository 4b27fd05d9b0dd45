"""Quantized models in ONNX Runtime on a GPU: nodes of codes against the QDQ graph, and the same
outputs on every run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest

from onnxbolt.families import named
from onnxbolt.gpu import local_arch
from onnxbolt.pipeline import optimize
from onnxbolt.verify import verify
from onnxbolt.verify.session import CUDA
from tests.quantized import stored
from tests.support import Net, planned

pytestmark = pytest.mark.gpu
if local_arch() not in (None, "sm_90a"):
    pytest.skip(
        "kernels of codes are for sm_90a, and the GPU is another one", allow_module_level=True
    )

U8, I8, E4M3 = np.uint8, np.int8, ml_dtypes.float8_e4m3fn
SAME = [1, 1, 1, 1]
_PRODUCTS = 4  # products of a transformer's block; that of queries, keys and values is one


@pytest.fixture(autouse=True)
def _kernels() -> Iterator[None]:
    with planned(named("quantized_gemm_sm90")), planned(named("quantized_conv_sm90")):
        yield


def _coded(net: Net, x: str, scale: float, zero: int = 0, code: type = U8) -> str:
    """The values of codes of `x`."""
    numbers = [net.const(scale), net.const(zero, code)]
    return net.node("DequantizeLinear", net.node("QuantizeLinear", x, *numbers), *numbers)


def _weight(net: Net, *shape: int, axis: int, code: type = I8) -> str:
    """The values of a weight of codes, with a scale for each channel along `axis`."""
    terms = float(np.prod(shape)) / shape[axis]
    values = net.rng.standard_normal(shape) * terms**-0.5
    scales = np.abs(values).max(tuple(i for i in range(len(shape)) if i != axis))
    scales = scales / (448.0 if code is E4M3 else 127.0)
    spread = scales.reshape([-1 if i == axis else 1 for i in range(len(shape))])
    steps = values / spread
    codes = steps.astype(E4M3) if code is E4M3 else np.rint(steps).astype(I8)
    return net.node("DequantizeLinear", net.const(codes, code), net.const(scales), axis=axis)


def _residual_block(zero: int) -> onnx.ModelProto:
    """As ResNet's, twice, the second one with a stride."""
    net = Net({"x": (2, 64, 28, 28)})
    x = _coded(net, "x", 0.03, zero)
    for c, k, stride in ((64, 128, 1), (128, 256, 2)):
        y = net.node("Conv", x, _weight(net, 64, c, 1, 1, axis=0), net.normal(64, scale=0.1))
        y = _coded(net, net.node("Relu", y), 0.02)
        y = net.node(
            *("Conv", y, _weight(net, 64, 64, 3, 3, axis=0), net.normal(64, scale=0.1)),
            pads=SAME,
            strides=[stride] * 2,
        )
        y = _coded(net, net.node("Relu", y), 0.02)
        y = net.node("Conv", y, _weight(net, k, 64, 1, 1, axis=0), net.normal(k, scale=0.1))
        short = net.node(
            *("Conv", x, _weight(net, k, c, 1, 1, axis=0), net.normal(k, scale=0.1)),
            strides=[stride] * 2,
        )
        total = net.node("Add", _coded(net, y, 0.03, 120), _coded(net, short, 0.03, 131))
        x = _coded(net, net.node("Relu", total), 0.03)
    return net.model(x)


def _residuals_of_values(zero: int) -> onnx.ModelProto:
    """As ModelOpt writes them: sums are read as values and as codes."""
    net = Net({"x": (2, 64, 28, 28)})
    x = "x"
    for _ in range(2):
        y = net.node(
            *("Conv", _coded(net, x, 0.03, zero), _weight(net, 64, 64, 3, 3, axis=0)),
            net.normal(64, scale=0.1),
            pads=SAME,
        )
        y = net.node(
            *("Conv", _coded(net, net.node("Relu", y), 0.02), _weight(net, 64, 64, 1, 1, axis=0)),
            net.normal(64, scale=0.1),
        )
        x = net.node("Relu", net.node("Add", y, x))
    return net.model(x)


def _inverted_block(zero: int) -> onnx.ModelProto:
    """As MobileNet's: wider, each channel by itself, narrower, with a residual of codes."""
    net = Net({"x": (2, 32, 28, 28)})
    x = _coded(net, "x", 0.03, zero)
    y = net.node("Conv", x, _weight(net, 96, 32, 1, 1, axis=0), net.normal(96, scale=0.1))
    y = _coded(net, net.node("HardSwish", y), 0.02, 10)
    y = net.node(
        *("Conv", y, _weight(net, 96, 1, 3, 3, axis=0), net.normal(96, scale=0.1)),
        pads=SAME,
        group=96,
    )
    y = _coded(net, net.node("HardSwish", y), 0.02, 10)
    y = net.node("Conv", y, _weight(net, 32, 96, 1, 1, axis=0), net.normal(32, scale=0.1))
    return net.model(_coded(net, net.node("Add", _coded(net, y, 0.03, 128), x), 0.04, 128))


def _stems(code: type) -> onnx.ModelProto:
    """Stem convolutions of values whose results are codes: with a max pool of codes behind, as
    ResNet's, with channels of one and of several stores, and with images that fill no tile."""
    net = Net({"x": (2, 3, 45, 83)})
    zero = 0 if code is I8 else 30
    ends = list[str]()
    for k, filter, stride, activation, pools in (
        (64, 7, 2, "Relu", True),
        (16, 3, 2, "HardSwish", False),
        (48, 3, 1, "Relu", False),
        (96, 5, 1, "Sigmoid", False),
        (160, 3, 2, "Relu", True),
    ):
        weight = net.normal(k, 3, filter, filter, scale=(3 * filter**2) ** -0.5)
        y = net.node(
            *("Conv", "x", weight, net.normal(k, scale=0.1)),
            pads=[filter // 2] * 4,
            strides=[stride] * 2,
        )
        y = _coded(net, net.node(activation, y), 0.021, zero, code)
        if pools:
            y = net.node("MaxPool", y, kernel_shape=[3, 3], strides=[2, 2], pads=SAME)
            y = _coded(net, y, 0.021, zero, code)
        y = net.node("Conv", y, _weight(net, 32, k, 1, 1, axis=0))
        ends.append(net.node("GlobalAveragePool", net.node("Relu", y)))
    return net.model(net.node("Concat", *ends, axis=1))


def _transformer(code: type = E4M3, after: bool = False) -> onnx.ModelProto:
    """A block's linear layers in codes; between them values of fp32. `after`: the residual behind
    the norm reads its values, too."""
    net = Net({"x": (2, 50, 64)}, opset=19)

    def linear(x: str, k: int, n: int) -> str:
        codes = _coded(net, x, 0.01, code=code)
        y = net.node("MatMul", codes, _weight(net, k, n, axis=1, code=code))
        return net.node("Add", y, net.normal(n, scale=0.1))

    heads = net.const([0, 0, 2, 32], "int64")
    q, k, v = (
        net.node("Transpose", net.node("Reshape", linear("x", 64, 64), heads), perm=perm)
        for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
    )
    scores = net.node("Mul", net.node("MatMul", q, k), net.const(32**-0.5))
    y = net.node("MatMul", net.node("Softmax", scores, axis=-1), v)
    joined = net.const([0, 0, 64], "int64")
    y = net.node("Reshape", net.node("Transpose", y, perm=[0, 2, 1, 3]), joined)
    y = net.node("Add", linear(y, 64, 64), "x")
    z = net.node("LayerNormalization", y, net.normal(64), net.normal(64))
    y = z if after else y
    z = linear(z, 64, 256)
    half = net.node("Mul", z, net.const(0.5))
    root = net.node("Div", z, net.const(2**0.5))
    z = net.node("Mul", half, net.node("Add", net.node("Erf", root), net.const(1.0)))
    return net.model(net.node("Add", linear(z, 256, 64), y))


def _verified(model: onnx.ModelProto, folder: Path, precision: str) -> list[str]:
    """The types of the nodes that make or read codes, of a model whose verification passed."""
    source, out = folder / "in.onnx", folder / "out.onnx"
    onnx.save(model, source)
    optimize(source, out, precision=precision, fuse="all", verify=False)
    result = verify(source, out, providers=[CUDA])
    # fp8's rounding leaves some segments without a verdict; every node has one
    assert result.passed, result.text()
    assert "kernels on" in result.verdict
    assert all(row.passed for row in result.rows if row.level != "segment"), result.text()
    types = [node.op_type for node in onnx.load(out).graph.node]
    return [name for name in types if name.startswith("FusedQuantize") or "_Quantize" in name]


@pytest.mark.parametrize("precision", ["keep", "fp16"])
@pytest.mark.parametrize("zero", [0, 128])
@pytest.mark.parametrize(
    ("build", "least"), [(_residual_block, 8), (_inverted_block, 2)], ids=["resnet", "mobilenet"]
)
def test_blocks_of_images(
    build: Callable[[int], onnx.ModelProto], least: int, zero: int, precision: str, tmp_path: Path
) -> None:
    assert len(_verified(build(zero), tmp_path, precision)) >= least


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize("code", [I8, U8], ids=lambda code: code.__name__)
def test_stems_end_with_codes(code: type, precision: str, tmp_path: Path) -> None:
    """No values are between a stem and the products of its codes."""
    _verified(_stems(code), tmp_path, precision)
    types = [node.op_type for node in onnx.load(tmp_path / "out.onnx").graph.node]
    short = "I8" if code is I8 else "U8"
    assert sum(f"_Quantize{short}_{'b' * (precision == 'bf16')}f16_nchw" in t for t in types) == 5
    assert sum(t.startswith("MaxPool_nhwc") and t.endswith(short.lower()) for t in types) == 2
    assert "QuantizeLinear" not in types


@pytest.mark.parametrize("precision", ["keep", "fp16"])
@pytest.mark.parametrize("zero", [0, 128])
def test_sums_are_values_and_codes(zero: int, precision: str, tmp_path: Path) -> None:
    """One node writes both."""
    assert len(_verified(_residuals_of_values(zero), tmp_path, precision)) == 4
    nodes = onnx.load(tmp_path / "out.onnx").graph.node
    assert sum("_Store" in node.op_type for node in nodes) == 1
    assert sum("_AddF" in node.op_type for node in nodes) == 2


@pytest.mark.parametrize("precision", ["keep", "fp16"])
def test_a_transformer_s_layers_in_fp8(precision: str, tmp_path: Path) -> None:
    found = _verified(_transformer(), tmp_path, precision)
    assert sum(name.startswith("FusedQuantized") for name in found) == _PRODUCTS


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("code", [I8, E4M3], ids=lambda code: code.__name__)
@pytest.mark.parametrize("precision", ["keep", "fp16", "bf16"])
def test_codes_of_norms_and_attention(
    precision: str, code: type, after: bool, tmp_path: Path
) -> None:
    """Nothing but products, attention and norms is left, and a node for the input's codes.
    Attention of fp32 does not make its own. The norm writes its values, too, where the residual
    behind it reads these."""
    found = _verified(_transformer(code, after), tmp_path, precision)
    (norm,) = (name for name in found if name.startswith("LayerNorm"))
    assert ("_Store" in norm.removeprefix("LayerNorm_Add_Store")) == after
    alone = precision == "keep"
    assert sum(name.startswith("FusedAttention_") for name in found) == (not alone)
    assert sum(name.startswith("FusedQuantize_") for name in found) == 1 + alone
    assert sum(name.startswith("FusedQuantized") for name in found) == _PRODUCTS


@pytest.mark.parametrize("name", [n for n in stored.names() if "u8u8" not in n])
def test_files_of_each_tool(name: str, tmp_path: Path) -> None:
    assert len(_verified(stored.graph(name), tmp_path, "keep")) >= 1
