"""The analysis of errors: values against independent float64, bounds that hold and are not
loose."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import NodeProto, TensorProto, helper

from onnxbolt.epilogues.numerics import erf
from onnxbolt.verify.bounds import Bounded, bounded
from onnxbolt.verify.functions import functions
from onnxbolt.verify.limits import Arithmetic, unit
from onnxbolt.verify.rules import Analysis, Env
from onnxbolt.verify.standard import Standard
from tests.support import Net, fused, run

STANDARD_ARITHMETIC = Arithmetic()
RNG = np.random.default_rng(0)
FUNCTIONS = functions()
STANDARD = Standard(
    helper.make_model(
        onnx.GraphProto(name="g"), opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
)


def analysed(
    node: NodeProto,
    *operands: np.ndarray,
    arithmetic: Arithmetic = STANDARD_ARITHMETIC,
    error: float = 0.0,
) -> Bounded:
    env: Env = {
        name: Bounded.of(values, error) for name, values in zip(node.input, operands, strict=True)
    }
    Analysis(STANDARD, {}).run([node], env, arithmetic)
    return env[node.output[0]]


def by_runtime(node: NodeProto, *operands: np.ndarray) -> np.ndarray:
    return STANDARD.run(node, operands, {}, np.float32)[0]


def test_erf() -> None:
    x = np.concatenate([np.linspace(-7, 7, 3001), [np.inf, -np.inf]])
    np.testing.assert_allclose(erf(x), [math.erf(value) for value in x], atol=2e-13)
    assert np.isnan(erf(np.array([np.nan]))).all()
    assert erf(np.array([-np.inf, np.inf])).tolist() == [-1, 1]
    single = x.astype(np.float32)
    np.testing.assert_array_equal(
        erf(single), erf(single.astype(float)).astype(np.float32), strict=True
    )


@pytest.mark.parametrize("op", sorted(FUNCTIONS))
def test_functions_are_those_of_onnx_within_their_bounds(op: str) -> None:
    """In fp32, whose errors the bound is about; Gelu and the like where this opset has them."""
    count = {
        "Add": 2,
        "Clip": 1,
        "Div": 2,
        "Max": 3,
        "Min": 2,
        "Mul": 2,
        "PRelu": 2,
        "Pow": 2,
        "Sub": 2,
    }.get(op, 1)
    node = helper.make_node(op, [f"x{i}" for i in range(count)], ["y"])
    if not onnx.defs.has(op) or onnx.defs.get_schema(op).since_version > 17:
        pytest.skip("not in opset 17")
    operands = [RNG.standard_normal((64, 64)).astype(np.float32) * 3 for _ in range(count)]
    if op in ("Sqrt", "Pow"):
        operands[0] = np.abs(operands[0])
    if op == "Pow":
        operands[1] = np.full((), 3, np.float32)
    result = analysed(node, *operands)
    difference = np.abs(by_runtime(node, *operands) - result.value)
    limit = result.absolute(result.arithmetic)
    assert (difference <= limit).all()
    assert (limit <= 1e-4 * (1 + np.abs(result.value))).all()


@pytest.mark.parametrize("op", sorted(set(FUNCTIONS) - {"Pow", "Div", "Sqrt", "Exp"}))
def test_operands_move_results_by_no_more_than_their_bound(op: str) -> None:
    count = {"Add": 2, "Max": 3, "Min": 2, "Mul": 2, "PRelu": 2, "Sub": 2}.get(op, 1)
    operands = [RNG.standard_normal(4096) * 4 for _ in range(count)]
    moved = [x * (1 + RNG.uniform(-1e-2, 1e-2, x.shape)) for x in operands]
    function = FUNCTIONS[op]
    y, other = function.value({}, *operands), function.value({}, *moved)
    bound = function.error({}, y, operands, [np.abs(x) * 1e-2 for x in operands])
    assert (np.abs(other - y) <= bound * (1 + 1e-12) + 1e-15).all()


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32])
@pytest.mark.parametrize(
    ("shape", "weight", "attributes"),
    [
        ((2, 8, 9, 7), (6, 8, 3, 3), {"pads": [1, 0, 2, 1], "strides": [2, 1]}),
        ((1, 12, 8, 8), (12, 1, 3, 3), {"group": 12, "pads": [1, 1, 1, 1]}),
        ((1, 3, 17, 17), (8, 3, 5, 5), {"dilations": [2, 1]}),
        ((1, 64, 5, 5), (32, 32, 1, 1), {"group": 2}),
        ((2, 4, 11), (4, 4, 3), {"strides": [2]}),
    ],
)
def test_convolutions(
    shape: tuple[int, ...], weight: tuple[int, ...], attributes: dict[str, Any], dtype: type
) -> None:
    """The value is onnx's, and the operands' rounding is within its bound."""
    x, w = (RNG.standard_normal(sizes).astype(np.float32) for sizes in (shape, weight))
    node = helper.make_node("Conv", ["x", "w"], ["y"], **attributes)
    exact = by_runtime(node, x, w)
    stored = [values.astype(dtype).astype(np.float32) for values in (x, w)]
    result = analysed(node, *stored, error=max(unit(np.dtype(dtype)), 2.0**-20))
    difference = np.abs(result.value - exact)
    limit = result.absolute(result.operands) + result.absolute(result.arithmetic)
    assert (difference <= limit).all()
    assert difference.max() > 1e-3 * limit.max()
    assert float(np.abs(limit).max()) < 60 * unit(np.dtype(dtype)) * np.abs(exact).max() + 1e-3


@pytest.mark.parametrize(
    "op",
    [
        "MatMul",
        "Softmax",
        "LayerNormalization",
        "ReduceMean",
        "GlobalAveragePool",
        "MaxPool",
        "Einsum",
    ],
)
def test_rounded_operands_of_other_operators(op: str) -> None:
    """Einsum has no rule: its limit is measured."""
    x = RNG.standard_normal((2, 3, 16, 16)).astype(np.float32)
    weights = {"MatMul": RNG.standard_normal((16, 8)), "LayerNormalization": 1 + RNG.random(16)}
    others = [weights[op].astype(np.float32)] if op in weights else []
    attributes: dict[str, dict[str, Any]] = {
        "MaxPool": {"kernel_shape": [3, 3]},
        "Einsum": {"equation": "bcij->bc"},
        "ReduceMean": {"axes": [3]},
    }
    node = helper.make_node(op, ["x", "w"][: 1 + len(others)], ["y"], **attributes.get(op, {}))
    result = analysed(node, x.astype(np.float16).astype(np.float32), *others, error=2.0**-11)
    difference = np.abs(result.value - by_runtime(node, x, *others))
    limit = result.absolute(result.operands) + result.absolute(result.arithmetic)
    assert (difference <= limit).all()
    assert limit.max() < 0.2


def test_errors_are_reversed_with_their_sequences() -> None:
    nodes = [
        helper.make_node("Exp", ["x"], ["e"]),
        helper.make_node("ReverseSequence", ["e", "lengths"], ["y"]),
    ]
    x, lengths = RNG.standard_normal((5, 2, 3)).astype(np.float32), np.array([5, 3], np.int64)
    env: Env = {"x": Bounded.of(x, 1e-3), "lengths": Bounded.of(lengths)}
    analysis = Analysis(STANDARD, {})
    analysis.run(nodes, env, STANDARD_ARITHMETIC)
    assert not analysis.measured
    order = np.array([[4, 3, 2, 1, 0], [2, 1, 0, 3, 4]]).T[:, :, None]
    for kind in (0, 1):
        before, after = (env[name].absolute(env[name].errors[kind]) for name in ("e", "y"))
        np.testing.assert_array_equal(after, np.take_along_axis(before, order, 0))


def test_infinities_of_operators_without_a_rule() -> None:
    """A mask of -inf is no change of the finite values, and no warning."""
    mask = np.where(np.tri(4, dtype=bool), 1.5, -np.inf)
    node = helper.make_node("Einsum", ["x"], ["y"], equation="ij->ji")
    found = analysed(node, mask.astype(np.float32), error=1e-3)
    limit = found.absolute(found.arithmetic) + found.absolute(found.operands)
    assert np.isfinite(limit).all()
    assert (limit[np.isfinite(found.value)] >= 1e-3).all()


def test_tf32_operands_are_rounded_to_nearest_as_kernels_do() -> None:
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    one = np.ones((1, 1), np.float32)
    kernel = Arithmetic(np.dtype(np.float32), tf32=True, nearest=True)
    for step, expected in (
        (2.0**-11 + 2.0**-12, 1 + 2.0**-10),
        (2.0**-12, 1.0),
        (-(2.0**-12) - 2.0**-13, 1 - 2.0**-11),
    ):
        result = analysed(node, one + np.float32(step), one, arithmetic=kernel)
        assert result.value == expected
        assert float(result.absolute(result.arithmetic)[0, 0]) < 1e-5
    tie = analysed(node, one + np.float32(2.0**-11), one, arithmetic=kernel)
    assert 2.0**-10 <= float(tie.absolute(tie.arithmetic)[0, 0]) < 2.0**-9
    infinite = analysed(node, np.full((1, 1), np.inf, np.float32), one, arithmetic=kernel)
    assert np.isinf(infinite.value).all()
    unknown = analysed(node, one + np.float32(2.0**-12), one, arithmetic=Arithmetic(tf32=True))
    assert float(unknown.absolute(unknown.arithmetic)[0, 0]) >= 2 * 2.0**-10


def test_a_part_in_bfloat16_is_rounded_to_the_type_it_is_stored_in() -> None:
    """The body of a node that writes part of a Concat pads in fp32 and casts behind that."""
    model = fused(joined_in_bfloat16(), "bf16", fuse="all", arch=90)
    functions = {function.name: function for function in model.functions}
    weights = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    nodes = [node for node in model.graph.node if node.op_type.endswith(("_part", "_into"))]
    assert len(nodes) == 2
    for node in nodes:
        x = RNG.standard_normal((1, 8, 8, 16)).astype(ml_dtypes.bfloat16)
        env: Env = {name: Bounded.of(weights.get(name, x)) for name in node.input}
        Analysis(Standard(model), functions).run(
            [node], env, Arithmetic(np.dtype(ml_dtypes.bfloat16))
        )
        result = env[node.output[0]]
        assert result.dtype == ml_dtypes.bfloat16
        assert (result.absolute(result.arithmetic) >= 2.0**-8 * np.abs(result.value)).all()


def joined_in_bfloat16() -> onnx.ModelProto:
    """Two convolutions of one pooled tensor, joined for a third one."""
    net = Net({"x": (1, 16, 16, 16)})
    x = net.node("MaxPool", net.conv("x", 16, 16), kernel_shape=[2, 2], strides=[2, 2])
    parts = [net.node("Relu", net.conv(x, 16, 16)) for _ in range(2)]
    return net.model(net.conv(net.node("Concat", *parts, axis=1), 32, 16))


def test_a_model_of_operators_stays_within_the_bound_of_its_rounding() -> None:
    net = Net({"x": (4, 32)})
    model = net.model(
        net.node("Softmax", net.linear(net.node("Tanh", net.linear("x", 32, 64)), 64, 16))
    )
    x = RNG.standard_normal((4, 32)).astype(np.float32)
    env: Env = {"x": Bounded.of(x)} | {
        t.name: Bounded.of(onnx.numpy_helper.to_array(t)) for t in model.graph.initializer
    }
    Analysis(Standard(model), {}).run(list(model.graph.node), env, Arithmetic())
    result = env[model.graph.output[0].name]
    difference = np.abs(run(model, {"x": x})[0] - result.value)
    assert (difference <= result.absolute(result.arithmetic)).all()


def test_errors_of_a_scalar_are_absolute() -> None:
    """numpy makes a number of them, and a number would be a relative error."""
    total = analysed(
        helper.make_node("ReduceSum", ["x"], ["y"], keepdims=0),
        np.full(8, 100, np.float32),
        error=2.0**-10,
    )
    moved = bounded(
        total.value + 0,
        total.dtype,
        total.absolute(total.arithmetic),
        total.absolute(total.operands) + 0,
    )
    for result in (total, moved):
        assert isinstance(result.operands, np.ndarray)
        assert result.operands == pytest.approx(800 / 1024)
        assert result.value.shape == result.operands.shape == ()


def test_what_is_not_finite_has_no_error() -> None:
    x = Bounded.of(np.array([np.nan, np.inf, -np.inf, 2.0]), 2.0**-10)
    assert (x.absolute(x.operands) <= [2.0**-24, 2.0**-24, 2.0**-24, 2.0**-9]).all()
    masked = analysed(
        helper.make_node("Softmax", ["x"], ["y"]),
        np.array([[1.0, 2.0, -np.inf]], np.float32),
        error=2.0**-10,
    )
    assert (masked.absolute(masked.operands) < 0.01).all()


def test_bounds_beyond_the_range_of_float32_are_infinite() -> None:
    """A warning would be an error here."""
    large = analysed(
        helper.make_node("Exp", ["x"], ["y"]), np.array([1.0, 500.0], np.float32), error=0.5
    )
    assert np.isfinite(large.absolute(large.operands)).tolist() == [True, False]


@pytest.mark.parametrize("kernel", [True, False])
def test_constants_of_a_body_are_rounded_where_a_kernel_s_are_not(kernel: bool) -> None:
    """A kernel for fp16 multiplies by 1.702 in fp32, its node's body by 1.702 rounded to fp16."""
    value = onnx.numpy_helper.from_array(np.array(1.702, np.float16))
    nodes = [
        helper.make_node("Constant", [], ["c"], value=value),
        helper.make_node("Mul", ["x", "c"], ["y"]),
    ]
    x = RNG.standard_normal(100).astype(np.float16)
    env: Env = {"x": Bounded.of(x)}
    arithmetic = Arithmetic(np.dtype(np.float16)) if kernel else STANDARD_ARITHMETIC
    Analysis(STANDARD, {}).run(nodes, env, arithmetic)
    y = env["y"]
    moved = np.abs(x.astype(float) * 1.702 - y.value)
    assert moved.max() > 1e-4
    within = moved <= y.absolute(y.arithmetic if kernel else y.operands)
    assert within.all()


def test_values_without_weight_have_no_part_in_a_softmax_s_error() -> None:
    """A mask of -65504 in fp16 is right to 32, as a bound of its rounding says."""
    scores = np.array([[1.0, 2.0, -65504.0], [-65504.0, -65504.0, -65504.0]])
    errors = np.array([[1e-3, 1e-3, 32.0], [1e-3, 1e-3, 1e-3]], np.float32)
    env: Env = {"x": Bounded(scores, np.dtype(np.float32), errors)}
    node = helper.make_node("Softmax", ["x"], ["y"], axis=-1)
    Analysis(STANDARD, {}).run([node], env, STANDARD_ARITHMETIC)
    y = env["y"]
    limit = y.absolute(y.arithmetic)
    assert np.all(limit <= 3e-3)
    assert np.all(limit[:, :2] >= 1e-3 * y.value[:, :2])
    np.testing.assert_allclose(y.value[1], 1 / 3)


def chosen(values: np.ndarray, error: float) -> Bounded:
    """The indices of the five largest `values`."""
    node = helper.make_node("TopK", ["x", "k"], ["values", "indices"])
    env: Env = {
        "x": Bounded.of(values.astype(np.float32), error),
        "k": Bounded.of(np.array([5], np.int64)),
    }
    Analysis(STANDARD, {}).run([node], env, STANDARD_ARITHMETIC)
    return env["indices"]


@pytest.mark.parametrize("gap", [0.0, 2.0**-11, 2.0**-10.1])
def test_one_pair_that_rounding_may_exchange_is_seen_wherever_it_lies(gap: float) -> None:
    """Its two values change places in one of four draws of signs, the first one too seldom."""
    for place in range(60):
        values = np.arange(64.0, 0.0, -1.0)
        values[2] = values[3] * (1 + gap)
        found = chosen(np.roll(values, place), 2.0**-11)
        assert np.isinf(found.absolute(found.operands)).all()


def test_indices_of_values_that_lie_apart_are_certain() -> None:
    found = chosen(np.arange(64.0, 0.0, -1.0), 2.0**-11)
    assert not found.absolute(found.operands).any()
    assert not found.absolute(found.arithmetic).any()


@pytest.mark.parametrize(("apart", "certain"), [(1e-5, False), (1.0, True)])
def test_indices_that_rounding_may_choose_stay_uncertain_where_they_are_moved(
    apart: float, certain: bool
) -> None:
    values = np.stack([np.ones((3, 2)), np.ones((3, 2)) - apart]).astype(np.float32)
    env: Env = {"x": Bounded.of(values, 2.0**-11), "axes": Bounded.of(np.array([0], np.int64))}
    nodes = [
        helper.make_node("ArgMax", ["x"], ["chosen"], axis=0, keepdims=0),
        helper.make_node("Transpose", ["chosen"], ["turned"]),
        helper.make_node("Unsqueeze", ["turned", "axes"], ["y"]),
    ]
    Analysis(STANDARD, {}).run(nodes, env, STANDARD_ARITHMETIC)
    assert env["y"].value.shape == (1, 2, 3)
    assert env["y"].exact == certain


def test_a_shape_has_no_errors() -> None:
    found = analysed(helper.make_node("Shape", ["x"], ["y"]), np.ones((2, 3)), error=2.0**-11)
    assert found.exact
    assert found.value.tolist() == [2, 3]


def test_a_normalization_reads_the_sum_that_it_stores() -> None:
    """A kernel rounds the sum of x and the residual before it normalizes it, if others read the
    sum, too; the body in fp16 rounds without a Cast."""
    net, width = Net({"x": (64, 256), "r": (64, 256)}), 256
    total = net.node("Add", net.node("Tanh", "x"), net.node("Tanh", "r"))
    gamma, beta = net.normal(width), net.normal(width)
    y = net.node("LayerNormalization", total, gamma, beta, epsilon=1e-5)
    model = fused(net.model(net.node("Relu", y), net.node("Tanh", total)), "fp16", "all", arch=90)
    (node,) = (node for node in model.graph.node if "_Store" in node.op_type)
    weights = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    x, r = RNG.standard_normal((2, 64, 256)).astype(np.float16)
    env: Env = {
        name: Bounded.of(weights.get(name, values))
        for name, values in zip(node.input, (x, r, None, None), strict=True)
    }
    functions = {function.name: function for function in model.functions}
    Analysis(Standard(model), functions).run([node], env, Arithmetic(np.dtype(np.float16)))
    normalized, stored = (env[name] for name in node.output)

    def kernel(total: np.ndarray) -> np.ndarray:
        centered = total - total.mean(-1, keepdims=True)
        scaled = centered / np.sqrt((centered**2).mean(-1, keepdims=True) + np.float32(1e-5))
        return (scaled * weights[node.input[2]] + weights[node.input[3]]).astype(np.float16)

    exact = x.astype(np.float32) + r
    rounded = exact.astype(np.float16)
    _assert_within(rounded, stored)
    _assert_within(kernel(rounded.astype(np.float32)), normalized)
    with pytest.raises(AssertionError):  # a sum with one digit less
        _assert_within(kernel(np.round(exact * 64) / 64), normalized)


def _assert_within(values: np.ndarray, found: Bounded) -> None:
    limit = found.absolute(found.arithmetic) + found.absolute(found.operands)
    assert (np.abs(values - found.value) <= limit).all()


def test_a_cast_like_another_tensor_is_a_cast() -> None:
    """Value and bounds, rather than those that changes of operands would show."""
    x, like = RNG.standard_normal((16, 16)).astype(np.float32), np.ones(1, np.float16)
    cast = helper.make_node("Cast", ["x0"], ["y"], to=TensorProto.FLOAT16)
    expected = analysed(cast, x)
    found = analysed(helper.make_node("CastLike", ["x0", "x1"], ["y"]), x, like)
    assert found.dtype == expected.dtype == np.dtype(np.float16)
    for one, other in zip(found.errors, expected.errors, strict=True):
        np.testing.assert_array_equal(found.absolute(one), expected.absolute(other))
    np.testing.assert_array_equal(found.value, expected.value)
