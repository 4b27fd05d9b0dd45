"""Codes in verification: a code differs where the bound of its value reaches the middle of two, and
1 of 10,000 at most; what kernels might do wrong is found."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from onnxbolt import optimize
from onnxbolt.dtypes import DType
from onnxbolt.graph.exporter import FUSED_DOMAIN
from onnxbolt.graph.importer import load_model
from onnxbolt.verify.bounds import Bounded
from onnxbolt.verify.code_rules import quantize_linear
from onnxbolt.verify.codes import dequantized, nearest, quantized
from onnxbolt.verify.elementwise import compared
from onnxbolt.verify.limits import Arithmetic
from onnxbolt.verify.models import Models
from onnxbolt.verify.nodes import Nodes
from onnxbolt.verify.result import Row
from onnxbolt.verify.rules import Analysis
from onnxbolt.verify.session import CPU, Runner
from onnxbolt.verify.standard import Standard
from tests.quantized import kernels
from tests.quantized.arithmetic import Case, Fault, Way
from tests.support import Net

U8, E4M3 = np.dtype(np.uint8), np.dtype(ml_dtypes.float8_e4m3fn)
_MODELS = cast(Models, SimpleNamespace(where="CUDA", element_cap=0.05))


@pytest.fixture(autouse=True)
def _kernels() -> Iterator[None]:
    with kernels.registered():
        yield


def judged(got: Any, expected: Any, limit: Any, level: str = "node", given: Any = None) -> Row:
    """The row of codes."""
    got, expected = np.asarray(got), np.asarray(expected)
    limit = np.broadcast_to(np.float32(limit), expected.shape)
    return compared(_MODELS, "y", got, expected, limit, level, given=given)


# --- rules ----------------------------------------------------------------------------------------


def test_codes_within_a_kernel_have_the_error_of_an_approximate_activation() -> None:
    """Behind GELU in 16 bits a value near the middle of two codes may have the other one."""
    x = Bounded(np.array([0.1, 0.149999, 0.149]), np.dtype(np.float32), 0.0, 0.0)
    scale = Bounded(np.array(0.1), np.dtype(np.float32))
    zero = Bounded(np.array(0, np.int8), np.dtype(np.int8))
    for published, errors in ((0.0, [0, 0, 0]), (6e-5, [0, 1, 0])):
        arithmetic = Arithmetic(np.dtype(np.float16), published=published, codes=DType.I8)
        found = quantize_linear([x, scale, zero], {}, arithmetic)
        assert found is not None
        np.testing.assert_array_equal(np.broadcast_to(found.arithmetic, 3), errors)


def test_codes_are_those_of_even_numbers_in_the_middle_and_saturate() -> None:
    steps = np.array([0.5, 1.5, -0.5, 300.0, -300.0, 2.4])
    np.testing.assert_array_equal(nearest(steps, 7.0, U8), [7, 9, 7, 255, 0, 9])
    np.testing.assert_array_equal(nearest(steps, 0.0, np.dtype(np.int8)), [0, 2, 0, 127, -128, 2])
    # E4M3FN has 16 and 18, and 448 is its last number
    np.testing.assert_array_equal(
        nearest(np.array([17.0, 19.0, 1e9, 17.1]), 0.0, E4M3), [16, 20, 448, 18]
    )


@pytest.mark.parametrize(("error", "reached"), [(0.05, [0, 0, 0]), (0.2, [0, 1, 0])])
def test_a_code_may_differ_where_the_bound_reaches_the_middle(
    error: float, reached: list[int]
) -> None:
    x = np.array([3.0, 3.4, 400.0]) * 0.25
    values = Bounded(x, np.dtype(np.float32), np.full(3, error * 0.25))
    found = quantized(values, np.array(0.25), np.array(2.0), U8, 0.0)
    np.testing.assert_array_equal(found.value, [5, 5, 255])
    np.testing.assert_array_equal(found.arithmetic, reached)
    assert found.operands == 0.0


def test_errors_of_operands_count_for_themselves() -> None:
    """A middle that only both kinds of errors together reach counts for the second one."""
    x = Bounded(np.array([0.42]), np.dtype(np.float32), np.array([0.05]), np.array([0.05]))
    found = quantized(x, np.array(1.0), np.array(0.0), U8, 0.0)
    assert (found.arithmetic, found.operands) == (0.0, 1.0)


def test_values_in_the_middle_of_two_codes_do_not_count() -> None:
    """The scale's own rounding decides there: 250 * 0.002 is 0.5."""
    x = Bounded(np.arange(0, 1000, 50) * 0.002, np.dtype(np.float32))
    found = quantized(x, np.array(1.0), np.array(0.0), U8, 4 * 2.0**-24)
    middle = np.isin(np.arange(0, 1000, 50), (250, 750))
    np.testing.assert_array_equal(found.arithmetic, 0)
    np.testing.assert_array_equal(found.operands, middle)
    other = found.value + np.where(middle, 1 - 2 * (found.value % 2), 0).astype(np.uint8)
    limit = np.where(middle, 1.0, 0.0)
    assert not judged(other, found.value, limit).passed
    assert judged(other, found.value, limit, given=limit).passed


def test_so_do_values_that_three_rounded_numbers_bring_there() -> None:
    """The last one is twice the product of the others, but for the rounding of each to fp32."""
    numbers = 17 / 500, 18 / 70, 2 * 17 / 500 * 18 / 70
    scale, factor, next_scale = (float(np.float32(number)) for number in numbers)
    values = np.arange(1, 200) * scale * factor
    x = Bounded(values, np.dtype(np.float32), 8 * 2.0**-24 * values)
    found = quantized(x, np.array(next_scale), np.array(0.0), U8, 2.0**-24)
    odd = np.arange(1, 200) % 2 == 1
    np.testing.assert_array_equal(found.operands, odd)
    np.testing.assert_array_equal(found.arithmetic, 0)
    steps = values / next_scale
    away = np.abs(steps - np.floor(steps) - 0.5)[odd] / steps[odd]
    assert 2.0**-24 < away.max() < 3 * 2.0**-24


def test_neighbours_in_fp8_lie_apart_as_numbers() -> None:
    x = Bounded(np.array([16.9, 240.0]), np.dtype(np.float32), np.array([0.2, 9.0]))
    found = quantized(x, np.array(1.0), np.array(0.0), E4M3, 0.0)
    np.testing.assert_array_equal(found.value.astype(float), [16, 240])
    np.testing.assert_array_equal(found.arithmetic, [2, 16])


def test_values_of_codes_have_the_errors_of_these() -> None:
    codes = Bounded(np.array([5, 9], np.uint8), U8, np.array([0.0, 2.0]))
    scale = Bounded(np.array(0.5), np.dtype(np.float32))
    found = dequantized(codes, scale, 3.0, 0.0)
    np.testing.assert_array_equal(found.value, [1.0, 3.0])
    np.testing.assert_array_equal(found.arithmetic, [0.0, 1.0])


def test_any_integer_is_right_for_nan() -> None:
    x = Bounded(np.array([np.nan, 1.0]), np.dtype(np.float32))
    found = quantized(x, np.array(1.0), np.array(3.0), U8, 0.0)
    assert np.isinf(cast(np.ndarray, found.arithmetic)).tolist() == [True, False]
    assert judged(np.array([0, 4], np.uint8), found.value, found.arithmetic).passed


def test_codes_keep_their_errors_when_they_are_moved() -> None:
    """By what moves values, and by max pooling."""
    error = np.zeros((1, 2, 2, 2))
    error[0, 1, 0, 1] = 1.0
    codes = Bounded(np.arange(8, dtype=np.uint8).reshape(1, 2, 2, 2), U8, error)
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[0, 2, 3, 1]),
        helper.make_node("MaxPool", ["x"], ["m"], kernel_shape=[2, 2]),
        helper.make_node("Reshape", ["x", "shape"], ["r"]),
    ]
    model = helper.make_model(
        helper.make_graph([], "g", [], []),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    for dtype in (U8, E4M3):
        given = Bounded(codes.value.astype(dtype), dtype, codes.arithmetic)
        env = {"x": given, "shape": Bounded.of(np.array([8]))}
        last = nodes if dtype == U8 else [nodes[0], nodes[2]]
        Analysis(Standard(model), {}).run(last, env, Arithmetic())
        for name in ("t", "r"):
            assert env[name].dtype == dtype
            assert env[name].value.dtype == dtype
        assert env["t"].absolute(env["t"].arithmetic)[0, 0, 1, 1] == 1
        assert env["r"].absolute(env["r"].arithmetic).tolist() == [0] * 5 + [1] + [0] * 2
    Analysis(Standard(model), {}).run(nodes, env := {**env, "x": codes}, Arithmetic())
    assert env["m"].absolute(env["m"].arithmetic).ravel().tolist() == [0, 1]


def test_errors_of_codes_stay_where_these_are_padded_and_cast() -> None:
    error = np.array([[0.0, 1.0]])
    nodes = [
        helper.make_node("Pad", ["x", "pads", "zero"], ["p"]),
        helper.make_node("Cast", ["x"], ["same"], to=helper.np_dtype_to_tensor_dtype(U8)),
        helper.make_node("Cast", ["x"], ["f"], to=onnx.TensorProto.FLOAT),
        helper.make_node("Cast", ["x"], ["i"], to=onnx.TensorProto.INT32),
    ]
    model = helper.make_model(
        helper.make_graph([], "g", [], []),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    env = {
        "x": Bounded(np.array([[5, 9]], np.uint8), U8, 0.0, error),
        "pads": Bounded.of(np.array([0, 1, 0, 0])),
        "zero": Bounded.of(np.array(7, np.uint8)),
    }
    Analysis(Standard(model), {}).run(nodes, env, Arithmetic())
    assert env["p"].value.tolist() == [[7, 5, 9]]
    assert env["p"].absolute(env["p"].operands).tolist() == [[0, 0, 1]]
    for name in ("same", "f"):
        assert env[name].absolute(env[name].operands).tolist() == [[0, 1]]
    # integers are compared for equality
    assert env["i"].absolute(env["i"].operands).tolist() == [[0, np.inf]]


# --- rows -----------------------------------------------------------------------------------------


def test_one_of_10_000_codes_may_differ() -> None:
    right = np.zeros(20_000, np.uint8)
    for differ, passed in ((2, True), (3, False)):
        got = right.copy()
        got[:differ] = 1
        row = judged(got, right, 1.0)
        assert row.passed is passed
        assert row.error == differ / 2
    assert "more than 1 of 10,000" in row.reason


def test_no_code_differs_where_the_bound_does_not_reach() -> None:
    right, got = np.zeros(20_000, np.uint8), np.zeros(20_000, np.uint8)
    got[77] = 2
    row = judged(got, right, np.where(np.arange(20_000) == 78, 2.0, 1.0))
    assert not row.passed
    assert row.reason.startswith("code (77,) is 2 instead of 0, and may lie 1 apart")


def test_codes_of_segments_may_differ_wherever_the_bound_reaches() -> None:
    """Values may have been rounded to 16 bits before them."""
    right = np.zeros(100, np.int8)
    got = np.where(np.arange(100) < 20, 1, 0).astype(np.int8)
    assert not judged(got, right, 1.0).passed
    assert judged(got, right, 1.0, "segment").passed
    assert judged(got, right, 0.0, "segment").failed


def test_limits_that_let_many_codes_differ_do_not_judge() -> None:
    """A model's own operators may widen them: Floor in front of a rounding."""
    row = judged(np.ones(100, np.int8), np.zeros(100, np.int8), 1.0, "segment")
    assert not row.failed
    assert row.unjudged == "rounding may change more than 25% of its codes"


def test_codes_of_fp8_may_differ_wherever_the_bound_reaches() -> None:
    """Their sums are not exact."""
    right = np.full(100, 16, E4M3)
    got = right.copy()
    got[:10] = np.float32(18)
    assert judged(got, right, 2.0).passed
    assert not judged(got, right, 1.0).passed
    got[0] = np.float32(np.nan)
    assert not judged(got, right, 2.0).passed


# --- kernels in numpy -----------------------------------------------------------------------------


@lru_cache
def _reference(case: Case) -> Bounded:
    """The fused node's codes by numpy, in NHWC, with the bounds of a kernel."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "out.onnx")
        optimize(case.model, out, library=False, verify=False, archs=("sm_90a",), fuse="all")
        model = load_model(out)
    (node,) = [n for n in model.graph.node if n.op_type.startswith("FusedQuantizedConv")]
    env = {t.name: Bounded.of(numpy_helper.to_array(t)) for t in model.graph.initializer}
    read = [name for name in node.input if name not in env]
    for name, key in zip(read, ("x", "r"), strict=True):
        env[name] = Bounded.of(case.numbers[key].transpose(0, 2, 3, 1))
    arithmetic = Arithmetic(np.dtype(np.float32), codes=DType.U8)
    functions = {f.name: f for f in model.functions}
    Analysis(Standard(model), functions).run([node], env, arithmetic)
    return env[node.output[0]]


def _row(case: Case, way: Way, fault: Fault | None = None) -> Row:
    right = _reference(case)
    got = case.codes(way, fault).transpose(0, 2, 3, 1)
    own, given = (right.absolute(error) for error in right.errors)
    return judged(got, right.value, own + given, given=given)


@pytest.mark.parametrize("one_sided", [False, True])
@pytest.mark.parametrize("way", [Way.INTEGERS, Way.RECIPROCAL])
def test_kernels_of_integers_pass(way: Way, one_sided: bool) -> None:
    row = _row(Case(64, 32, 3, one_sided, seed=0), way)
    assert row.passed, row.reason


def test_a_zero_point_in_the_bias_is_found() -> None:
    row = _row(Case(64, 32, 3, one_sided=True, seed=0), Way.IN_BIAS)
    assert not row.passed


@pytest.mark.parametrize("fault", Fault)
def test_faults_are_found(fault: Fault) -> None:
    row = _row(Case(64, 32, 3, one_sided=False, seed=0), Way.RECIPROCAL, fault)
    assert not row.passed
    assert "further apart than they may" in row.reason


@pytest.mark.parametrize("handed", [np.int8, np.float32], ids=["codes", "numbers"])
def test_a_node_s_code_in_the_middle_has_its_limit_however_it_is_handed_out(handed: type) -> None:
    """Sessions of models with bfloat16 hand out tensors of unknown types as float32."""
    model = Net({"x": (1,)}).model("x")
    runner = Runner(model, CPU)
    nodes = Nodes(Models(model, model, runner, runner))
    node = helper.make_node("FusedQuantize", ["x"], ["y"], domain=FUSED_DOMAIN)
    scale = np.array(np.float32(0.01), np.float64)
    x = Bounded(np.array([0.125]), np.dtype(ml_dtypes.bfloat16))
    reference = quantized(x, scale, np.zeros(()), np.dtype(np.int8), 2.0**-22)
    row = nodes._row(node, "y", np.array([12], handed), reference, {})
    assert reference.value == [13]
    assert row.passed, row.reason


@pytest.mark.parametrize(("terms", "lost"), [(16, 2.31), (112, 12.4), (128, 14.5), (8192, 14.5)])
def test_bounds_of_fp8_sums_hold_what_an_h200_lost(terms: int, lost: float) -> None:
    """In units of 2^-13: the largest error of 768,000 sums whose products all have one sign."""
    bound = Arithmetic(np.dtype(np.float32), codes=DType.E4M3).accumulation(terms)
    assert lost < bound * 2**13 < 5 * lost
