"""Products of codes inside ONNX Runtime: the library's ops get the operands of the nodes that the
optimizer writes. Kernels run on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from onnxbolt import optimize
from onnxbolt.families import named
from onnxbolt.library import manifest_of_model
from onnxbolt.problems import QuantizeProblem
from onnxbolt.registry import empty_caches
from tests import library_fixtures as fx
from tests.support import Net


def _codes(net: Net, x: str, scale: float, zero: int) -> str:
    return net.node("QuantizeLinear", x, net.const(scale), net.const(zero, np.uint8))


def _values(net: Net, codes: str, scale: float, zero: int) -> str:
    return net.node("DequantizeLinear", codes, net.const(scale), net.const(zero, np.uint8))


def _weight(net: Net, *shape: int, axis: int) -> str:
    codes = net.const(net.rng.integers(-127, 128, shape), np.int8)
    scales = net.const(net.rng.uniform(0.5, 1.0, shape[axis]) * 2.0**-9)
    return net.node("DequantizeLinear", codes, scales, axis=axis)


def _images(zero: int) -> onnx.ModelProto:
    """Two convolutions, the second one with a residual; pads, and a stride."""
    net = Net({"x": ("N", 16, 9, 10)})
    x = _values(net, _codes(net, "x", 0.03, zero), 0.03, zero)
    first = net.node("Conv", x, _weight(net, 32, 16, 3, 3, axis=0), net.normal(32), pads=[1] * 4)
    codes = _codes(net, first, 0.05, 113)
    weight, bias = _weight(net, 32, 32, 3, 3, axis=0), net.normal(32)
    y = net.node("Conv", _values(net, codes, 0.05, 113), weight, bias, pads=[2, 1, 0, 1])
    total = net.node("Add", y, _values(net, codes, 0.05, 113))
    q = _codes(net, total, 0.07, 97)
    last = _weight(net, 32, 32, 3, 3, axis=0)
    y = net.node("Conv", _values(net, q, 0.07, 97), last, net.normal(32), strides=[2, 2])
    return net.model(_codes(net, y, 0.1, 5))


def _rows(zero: int) -> onnx.ModelProto:
    net = Net({"x": ("B", "S", 48)})
    y, k = "x", 48
    for n, scale in ((32, 0.03), (16, 0.05)):
        x = _values(net, _codes(net, y, scale, zero), scale, zero)
        y, k = net.node("MatMul", x, _weight(net, k, n, axis=1)), n
        y = net.node("Add", y, net.normal(n))
    return net.model(_codes(net, y, 0.05, 113))


def _session(model: onnx.ModelProto, library: fx.HostLibrary | None) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    if library:
        options.register_custom_ops_library(str(library.path))
    return ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


@pytest.fixture(autouse=True)
def _values_alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kernels of other ops for the CPU read values alone."""
    for name in ("elementwise", "layout", "pool", "resize"):
        monkeypatch.setattr(named(name), "codes_measured", False)
    monkeypatch.setattr(named("elementwise"), "unmeasured", (QuantizeProblem,))
    empty_caches()
    yield
    empty_caches()


def _optimized(model: onnx.ModelProto, folder: Path) -> tuple[onnx.ModelProto, fx.HostLibrary]:
    """The model with fused nodes, and a library with kernels for the CPU."""
    out = folder / "fused.onnx"
    optimize(
        model, out, library=False, verify=False, archs=("sm_90a",), fuse="all", precision="keep"
    )
    fused = onnx.load(out)
    manifest = manifest_of_model(fused)
    kernels = [(fx.ARGUMENTS[each.config.family], each) for each in manifest.instances]
    library = fx.linked(folder / "codes.so", manifest, kernels)
    library.machine(sm=90, shared_memory=232448)
    return fused, library


@pytest.mark.parametrize("zero", [0, 128])
@pytest.mark.parametrize(
    ("build", "shape", "nodes"), [(_images, (3, 16, 9, 10), 3), (_rows, (2, 5, 48), 2)]
)
def test_nodes_compute_what_their_bodies_do(
    build: Callable[[int], onnx.ModelProto],
    shape: tuple[int, ...],
    nodes: int,
    zero: int,
    tmp_path: Path,
) -> None:
    model = build(zero)
    fused, library = _optimized(model, tmp_path)
    types = [node.op_type for node in fused.graph.node]
    assert sum(op.startswith("FusedQuantized") for op in types) == nodes
    without = 0 if zero else 1 if build is _images else nodes  # nodes whose zero point of x is 0
    assert sum("_offsets" in op for op in types) == nodes - without
    x = np.random.default_rng(3).standard_normal(shape).astype(np.float32)
    session = _session(fused, library)
    (output,) = session.get_outputs()
    assert output.type == "tensor(uint8)"
    (ours,) = session.run(None, {"x": x})
    assert library.launches >= nodes
    for other in (fused, model):
        (expected,) = _session(other, None).run(None, {"x": x})
        assert ours.shape == expected.shape
        difference = np.abs(ours.astype(int) - expected.astype(int))
        assert difference.max() <= 1
        assert np.mean(difference > 0) <= 1e-3


def _sums_of_images(zero: int) -> onnx.ModelProto:
    """A sum of values that is an output, and whose codes are multiplied."""
    net = Net({"x": ("N", 16, 9, 10)})
    x = _values(net, _codes(net, "x", 0.03, zero), 0.03, zero)
    y = net.node("Conv", x, _weight(net, 16, 16, 3, 3, axis=0), net.normal(16), pads=[1] * 4)
    total = net.node("Add", y, "x")
    values = _values(net, _codes(net, total, 0.05, 113), 0.05, 113)
    last = net.node("Conv", values, _weight(net, 32, 16, 1, 1, axis=0), net.normal(32))
    return net.model(total, _codes(net, last, 0.1, 5))


def _sums_of_rows(zero: int) -> onnx.ModelProto:
    net = Net({"x": ("B", "S", 32)})
    x = _values(net, _codes(net, "x", 0.03, zero), 0.03, zero)
    y = net.node("Add", net.node("MatMul", x, _weight(net, 32, 32, axis=1)), net.normal(32))
    total = net.node("Add", y, net.node("Neg", "x"))
    values = _values(net, _codes(net, total, 0.05, 113), 0.05, 113)
    last = net.node("MatMul", values, _weight(net, 32, 16, axis=1))
    return net.model(total, _codes(net, net.node("Add", last, net.normal(16)), 0.1, 5))


@pytest.mark.parametrize("most_rows", [None, 2])
@pytest.mark.parametrize("zero", [0, 128])
@pytest.mark.parametrize(
    ("build", "shape"), [(_sums_of_images, (3, 16, 9, 10)), (_sums_of_rows, (2, 5, 32))]
)
def test_values_beside_codes_are_a_second_output(
    build: Callable[[int], onnx.ModelProto],
    shape: tuple[int, ...],
    zero: int,
    most_rows: int | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As one launch and in slices: each with its own part of the residual and of the values."""
    model = build(zero)
    families = [named("quantized_gemm_sm90"), named("quantized_conv_sm90")]
    for family in families:
        monkeypatch.setattr(family, "moves_values", True)
    fused, library = _optimized(model, tmp_path)
    (both,) = [node for node in fused.graph.node if "_AddF32_StoreF32_" in node.op_type]
    assert len(both.output) == 2
    x = np.random.default_rng(3).standard_normal(shape).astype(np.float32)
    if most_rows is not None:
        library.limit(most_rows)
    values, codes = _session(fused, library).run(None, {"x": x})
    assert values.dtype == np.float32
    for other in (fused, model):
        right, right_codes = _session(other, None).run(None, {"x": x})
        np.testing.assert_allclose(values, right, rtol=0, atol=2.0**-20 * np.abs(right).max())
        difference = np.abs(codes.astype(int) - right_codes.astype(int))
        assert difference.max() <= 1
        assert np.mean(difference > 0) <= 1e-3


def _changed(
    model: onnx.ModelProto, folder: Path, change: Callable[[onnx.NodeProto, onnx.GraphProto], None]
) -> Callable[[], object]:
    fused, library = _optimized(model, folder)
    node = next(node for node in fused.graph.node if node.op_type.startswith("FusedQuantized"))
    change(node, fused.graph)

    def run() -> object:
        x = np.zeros((2, 5, 48), np.float32)
        return _session(fused, library).run(None, {"x": x})

    return run


def _attribute(node: onnx.NodeProto, name: str) -> onnx.AttributeProto:
    return next(attribute for attribute in node.attribute if attribute.name == name)


def test_a_zero_point_without_offsets_is_refused(tmp_path: Path) -> None:
    def change(node: onnx.NodeProto, _: onnx.GraphProto) -> None:
        _attribute(node, "x_zero").i = 7

    with pytest.raises(Exception, match="x_zero is 7, which does not fit the absence of offsets"):
        _changed(_rows(0), tmp_path, change)()


@pytest.mark.parametrize("zero", [0, 256, -1])
def test_offsets_need_a_zero_point_of_the_type(zero: int, tmp_path: Path) -> None:
    def change(node: onnx.NodeProto, _: onnx.GraphProto) -> None:
        _attribute(node, "x_zero").i = zero

    with pytest.raises(Exception, match=f"x_zero is {zero}, which does not fit offsets"):
        _changed(_rows(128), tmp_path, change)()


def test_a_missing_scale_is_refused(tmp_path: Path) -> None:
    def change(node: onnx.NodeProto, _: onnx.GraphProto) -> None:
        _attribute(node, "epilogue_params").floats[0] = 0.0

    with pytest.raises(Exception, match="epilogue_params lacks the scale of x"):
        _changed(_rows(0), tmp_path, change)()


def test_offsets_of_another_shape_are_refused(tmp_path: Path) -> None:
    def change(node: onnx.NodeProto, graph: onnx.GraphProto) -> None:
        table = next(each for each in graph.initializer if each.name == node.input[2])
        values = onnx.numpy_helper.to_array(table)
        table.CopyFrom(onnx.numpy_helper.from_array(values[:, :-1], table.name))

    with pytest.raises(Exception, match="input 2 has shape"):
        _changed(_rows(128), tmp_path, change)()
