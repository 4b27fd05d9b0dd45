"""Verification of quantized models: unedited ones pass, and faults in bodies and nodes are found,
by segment or by node. Bodies round as plain ONNX Runtime does, but for two steps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import FunctionProto, ModelProto, NodeProto, helper, numpy_helper

from onnxbolt.graph.exporter import FUSED_DOMAIN
from onnxbolt.verify import verify
from onnxbolt.verify.codes import zero_points
from onnxbolt.verify.feeds import drawn
from onnxbolt.verify.session import CPU, Runner
from tests.quantized import fusing, stored
from tests.quantized.arithmetic import Case
from tests.support import Net

Plant = Callable[[ModelProto], None]


pytestmark = pytest.mark.usefixtures("products")


@pytest.mark.parametrize("precision", ["keep", "fp16"])
@pytest.mark.parametrize("name", stored.names())
def test_stored_graphs_pass(name: str, precision: str, tmp_path: Path) -> None:
    """With a verdict for each of their tensors."""
    model = stored.graph(name)
    result = verify(model, fusing.fused(model, tmp_path, precision), providers=[CPU])
    assert result.passed, result.text()
    assert not [note for note in result.notes if "not compared" in note or "QuantizeLin" in note]


# --- faults ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def case() -> Case:
    return Case(16, 32, 3, one_sided=False, seed=1)


@pytest.fixture
def optimized(case: Case, tmp_path: Path) -> ModelProto:
    return fusing.fused(case.model, tmp_path)


def _node(model: ModelProto) -> NodeProto:
    (node,) = [n for n in model.graph.node if n.op_type.startswith("FusedQuantizedConv")]
    return node


def _body(model: ModelProto) -> FunctionProto:
    return next(f for f in model.functions if f.name == _node(model).op_type)


def _attribute(node: NodeProto, name: str) -> onnx.AttributeProto:
    return next(a for a in node.attribute if a.name == name)


def _makers(model: ModelProto, op: str) -> list[NodeProto]:
    return [node for node in _body(model).node if node.op_type == op]


def _insert(model: ModelProto, before: NodeProto, *nodes: NodeProto) -> None:
    """Put nodes in front of one of the body, which reads the last one's result."""
    body = _body(model)
    place = next(i for i, node in enumerate(body.node) if node.output == before.output)
    before.input[0] = nodes[-1].output[0]
    kept = [*body.node[:place], *nodes, *body.node[place:]]
    del body.node[:]
    body.node.extend(kept)


def _constant(name: str, values: np.ndarray) -> NodeProto:
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(values))


def zero_point(model: ModelProto) -> None:
    _attribute(_node(model), "x_zero").i += 1


def border(model: ModelProto) -> None:
    """Padding is code 0 in place of the zero point."""
    conv, node = _makers(model, "Conv")[0], _node(model)
    zero, scale = _attribute(node, "x_zero").i, _attribute(node, "epilogue_params").floats[0]
    around = np.array([0, 0, 1, 1, 0, 0, 1, 1])
    value = np.array(-zero * scale, np.float32)
    _insert(
        model,
        conv,
        _constant("around", around),
        _constant("at_border", value),
        helper.make_node("Pad", [conv.input[0], "around", "at_border"], ["padded"]),
    )
    _attribute(node, "pads").ints[:] = [0] * 4


def pair(model: ModelProto) -> None:
    """The Q and DQ between the bias and the residual is left out."""
    first = _makers(model, "QuantizeLinear")[0]
    back = next(n for n in _makers(model, "DequantizeLinear") if n.input[0] == first.output[0])
    back.op_type = "Identity"
    back.input[:] = [first.input[0]]
    _body(model).node.remove(first)


def channel(model: ModelProto) -> None:
    """The scale of one channel of the weight is a fiftieth too large."""
    node = _node(model)
    scales = next(
        t
        for name in node.input
        for t in model.graph.initializer
        if t.name == name and t.data_type == onnx.TensorProto.FLOAT
    )
    values = numpy_helper.to_array(scales).copy()
    values[5] *= np.float32(1.02)
    scales.CopyFrom(numpy_helper.from_array(values, scales.name))


def truncation(model: ModelProto) -> None:
    """Codes are rounded down."""
    last = _makers(model, "QuantizeLinear")[-1]
    _insert(
        model,
        last,
        _constant("half", np.array(0.5, np.float32)),
        helper.make_node("Mul", ["half", last.input[1]], ["half_a_step"]),
        helper.make_node("Sub", [last.input[0], "half_a_step"], ["less"]),
    )


def residual(model: ModelProto) -> None:
    """The scale of the residual is a hundredth too small."""
    _attribute(_node(model), "epilogue_params").floats[3] *= 0.99


def result(model: ModelProto) -> None:
    """The zero point of the result is one less."""
    _attribute(_node(model), "epilogue_params").floats[6] -= 1


FAULTS: list[Plant] = [zero_point, border, pair, channel, truncation, residual, result]


def test_without_faults_it_passes(case: Case, optimized: ModelProto) -> None:
    found = verify(case.model, optimized, providers=[CPU])
    assert found.passed, found.text()
    assert {row.level for row in found.rows} == {"model", "segment", "node"}


@pytest.mark.parametrize("plant", FAULTS, ids=lambda plant: plant.__name__)
def test_a_fault_is_found(plant: Plant, case: Case, optimized: ModelProto) -> None:
    broken = ModelProto()
    broken.CopyFrom(optimized)
    plant(broken)
    onnx.checker.check_model(broken)
    found = verify(case.model, broken, providers=[CPU]).failures
    assert {row.level for row in found} & {"segment", "node"}
    assert all("does not run" not in row.reason for row in found)


@pytest.mark.parametrize(("step", "passed"), [(2e-5, True), (2.0, False)])
def test_codes_of_a_whole_model_are_compared_as_values(
    step: float, passed: bool, case: Case
) -> None:
    """A code that differs within a model changes others."""
    other = ModelProto()
    other.CopyFrom(case.model)
    (bias,) = [tensor for tensor in other.graph.initializer if tensor.name == "b"]
    values = numpy_helper.to_array(bias) + np.float32(step) * case.numbers["sy"]
    bias.CopyFrom(numpy_helper.from_array(values, bias.name))
    (row,) = verify(case.model, other, providers=[CPU]).at("model")
    assert row.passed is passed
    assert row.error > 0


def test_zero_points_of_outputs(case: Case) -> None:
    assert zero_points(case.model) == {"y": float(case.numbers["zy"])}
    assert not zero_points(Net({"x": (1, 8)}).model("x"))


def test_two_pairs_in_a_row_round_twice() -> None:
    """ONNX Runtime would make one of them, but not where others read what is between."""
    net = Net({"x": (4, 1000)}, seed=2)
    pairs = [(net.const(scale), net.const(0, np.uint8)) for scale in (0.0235, 0.0156)]
    last = "x"
    for numbers in pairs:
        codes = net.node("QuantizeLinear", last, *numbers)
        last = net.node("DequantizeLinear", codes, *numbers)
    model = net.model(last)
    between = model.graph.node[1].output[0]
    feeds = {"x": net.rng.standard_normal((4, 1000)).astype(np.float32)}
    alone, all_read = (Runner(model, CPU).run(feeds, [last, *more]) for more in ([], [between]))
    np.testing.assert_array_equal(alone[last], all_read[last])


# --- right models that round ----------------------------------------------------------------------


class _Rounding:
    """Models whose codes may differ: in front of a Q, values of 16 bits, or means, of which many
    lie in the middle of two codes."""

    def __init__(self, seed: int) -> None:
        self.net = Net({"x": (2, 16, 4, 5)}, opset=17, seed=seed)

    def codes(self, x: str, scale: float, zero: int) -> str:
        numbers = self.net.const(scale), self.net.const(zero, np.uint8)
        return self.net.node("QuantizeLinear", x, *numbers)

    def pair(self, x: str, scale: float, zero: int) -> str:
        numbers = self.net.const(scale), self.net.const(zero, np.uint8)
        return self.net.node("DequantizeLinear", self.codes(x, scale, zero), *numbers)

    def conv(self, x: str) -> str:
        net = self.net
        weight = net.const(net.rng.integers(-127, 128, (16, 16, 1, 1)), np.int8)
        return net.node("Conv", x, net.node("DequantizeLinear", weight, net.const(0.00213)))

    def values(self) -> str:
        """They get 16 bits where the model does."""
        x = self.conv(self.pair("x", 0.0231, 120))
        return self.net.node("Add", self.net.node("HardSwish", x), x)


def padded(seed: int) -> ModelProto:
    """Pad moves to the codes."""
    model = _Rounding(seed)
    pads = model.net.const([0, 0, 1, 1, 0, 0, 1, 1], np.int64)
    moved = model.net.node("Pad", model.pair(model.values(), 0.0137, 50), pads)
    return model.net.model(model.codes(model.conv(moved), 0.03, 100))


def converted(seed: int) -> ModelProto:
    """Codes are an output, and so converted to NCHW."""
    model = _Rounding(seed)
    values = model.pair(model.values(), 0.0137, 50)
    return model.net.model(
        model.codes(values, 0.0137, 50), model.net.node("Relu", model.conv(values))
    )


def averaged(seed: int) -> ModelProto:
    """Means of 20 codes, on a scale of which the codes' is twice as large."""
    model = _Rounding(seed)
    values = model.pair(model.conv(model.pair("x", 0.0231, 3)), 0.0417, 120)
    mean = model.net.node("GlobalAveragePool", values)
    return model.net.model(model.codes(mean, 0.0417 / 2, 100))


ROUNDING = [(padded, "fp16"), (converted, "fp16"), (averaged, "keep")]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    ("make", "precision"), ROUNDING, ids=[make.__name__ for make, _ in ROUNDING]
)
def test_models_that_round_pass_and_their_faults_are_found(
    make: Callable[[int], ModelProto], precision: str, seed: int, tmp_path: Path
) -> None:
    """The faults: of a Q that stays, the zero point is off by one, or the scale by a fiftieth."""
    model = make(seed)
    fused = fusing.fused(model, tmp_path, precision)
    result = verify(model, fused, providers=[CPU])
    assert result.passed, result.text()
    assert not result.unjudged
    *_, node = (node for node in fused.graph.node if node.op_type == "QuantizeLinear")
    for place in (1, 2):
        broken = ModelProto()
        broken.CopyFrom(fused)
        (tensor,) = [t for t in fused.graph.initializer if t.name == node.input[place]]
        values = numpy_helper.to_array(tensor)
        wrong = values + 1 if place == 2 else values * np.float32(1.02)
        broken.graph.initializer.append(
            numpy_helper.from_array(np.asarray(wrong, values.dtype), "wrong")
        )
        for other in broken.graph.node:
            if other.output == node.output:
                other.input[place] = "wrong"
        found = verify(model, broken, providers=[CPU]).failures
        assert {row.level for row in found} & {"segment", "node"}


# --- with ONNX Runtime's own fusions --------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in stored.names() if "fp8" not in name])
def test_codes_of_bodies_lie_two_steps_apart_at_most(name: str, tmp_path: Path) -> None:
    """Plain ONNX Runtime makes operators of integers of bodies that are inlined: each node by
    itself, on the original's tensors."""
    model = fusing.fused(stored.graph(name), tmp_path)
    runner = Runner(model, CPU)
    feeds = drawn(model, {v.name: _shape(v) for v in model.graph.input}, 3)
    ours = [node for node in model.graph.node if node.domain == FUSED_DOMAIN]
    names = {name for node in ours for name in (*node.input, *node.output) if name}
    constants = {tensor.name for tensor in model.graph.initializer}
    values = runner.run(feeds, sorted(names - constants - feeds.keys())) | feeds if ours else {}
    for node in ours:
        if not node.op_type.startswith("FusedQuantized"):
            continue
        given = {name: values[name] for name in node.input if name not in constants}
        for name, found in zip(node.output, _plain(model, node, given), strict=True):
            right = values[name]
            assert found.dtype == right.dtype
            if right.dtype.kind in "iu":
                assert np.abs(found.astype(int) - right).max() <= 2
            else:
                assert np.abs(found - right).max() <= 2.0**-18 * np.abs(right).max()


def _plain(model: ModelProto, node: NodeProto, given: dict[str, np.ndarray]) -> list[np.ndarray]:
    """A node's results in a session without options."""
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for name, a in given.items()
    ]
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output]
    constants = [tensor for tensor in model.graph.initializer if tensor.name in node.input]
    alone = helper.make_model(
        helper.make_graph([node], "node", inputs, outputs, constants),
        functions=model.functions,
        opset_imports=model.opset_import,
        ir_version=model.ir_version,
    )
    session = ort.InferenceSession(alone.SerializeToString(), providers=[CPU])
    found: list[np.ndarray] = session.run(None, given)
    return found


def _shape(value: onnx.ValueInfoProto) -> tuple[int, ...]:
    return tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
