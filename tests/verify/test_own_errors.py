"""The original's own roundings, which may be many units of a small result: of constants that its
nodes compute, and of the shift of a BatchNormalization."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, numpy_helper

from onnxbolt.verify import verify
from onnxbolt.verify.models import Models
from onnxbolt.verify.own_errors import OwnErrors
from onnxbolt.verify.session import CPU, Runner
from tests.support import Net

TERMS = 256


def cancelling() -> tuple[ModelProto, str, np.ndarray]:
    """y = x + (k v - c) with k v and c nearly equal: the model, the difference's name, and its
    value but for fp32's roundings."""
    rng = np.random.default_rng(0)
    k, v = (rng.uniform(0.5, 1.5, shape).astype(np.float32) for shape in ((8, TERMS), (TERMS, 16)))
    exact = k.astype(np.float64) @ v
    near = (exact + rng.normal(0, 1e-2, exact.shape)).astype(np.float32)
    net = Net({"x": (8, 16)})
    difference = net.node("Sub", net.node("MatMul", net.const(k), net.const(v)), net.const(near))
    return net.model(net.node("Add", "x", difference)), difference, exact - near


def folded(model: ModelProto, name: str, values: np.ndarray) -> ModelProto:
    """The model with `values` for what its nodes compute as `name`."""
    result = ModelProto()
    result.CopyFrom(model)
    del result.graph.node[:]
    result.graph.node.extend(node for node in model.graph.node if node.op_type == "Add")
    result.graph.initializer.append(numpy_helper.from_array(values.astype(np.float32), name))
    return result


def test_constants_that_were_folded_with_other_roundings_pass() -> None:
    model, name, exact = cancelling()
    got = Runner(model, CPU).run({"x": np.zeros((8, 16), np.float32)}, [name])[name]
    assert (np.abs(got - exact) > 2.0**-20 * np.abs(exact)).any()  # else a few roundings would do
    result = verify(model, folded(model, name, exact), providers=[CPU])
    assert result.at("segment")
    assert not [row.name for row in result.at("segment") if not row.passed]


def test_constants_that_were_folded_wrongly_fail() -> None:
    model, name, exact = cancelling()
    exact[3, 5] += 0.01
    assert [
        row.passed
        for row in verify(model, folded(model, name, exact), providers=[CPU]).at("segment")
    ] == [False]


@pytest.mark.parametrize("case", ["from an input", "moved", "of another shape", "not there"])
def test_what_is_no_computed_constant_has_no_such_error(case: str) -> None:
    net = Net({"x": (4, 4)})
    weight = net.const(np.full((4, 4), 0.1, np.float32))
    names = {
        "from an input": net.node("MatMul", "x", weight),
        "moved": net.node("Transpose", weight, perm=[1, 0]),
        "of another shape": net.node("Exp", weight),
        "not there": "nothing",
    }
    model = net.model(*[name for name in names.values() if name != "nothing"])
    runner = Runner(model, CPU)
    errors = OwnErrors(Models(model, model, runner, runner), {})
    shape = (4, 2) if case == "of another shape" else (4, 4)
    assert errors.of_constant(names[case], shape) is None
    computed = errors.of_constant(names["of another shape"], (4, 4))
    assert computed is not None
    assert (computed > 0).all()


CHANNELS = 64


def normalized(
    wrong: float = 0.0, size: float = 1.0, large: float = 0.0
) -> tuple[ModelProto, ModelProto]:
    """y = BatchNormalization(x), and y = x * s + shift with a shift that is exact but for `wrong`
    in one channel. Where x is zero y is the shift, whose two terms, about `size`, are nearly equal;
    another channel's shift is `large`."""
    rng = np.random.default_rng(0)
    scale, mean, variance = (rng.uniform(0.9, 1.1, CHANNELS).astype(np.float32) for _ in range(3))
    mean *= np.float32(size)
    factor = scale.astype(np.float64) / np.sqrt(variance.astype(np.float64) + 1e-5)
    bias = (mean * factor + 1e-4 * size).astype(np.float32)
    bias[9] += large
    shift = bias.astype(np.float64) - mean * factor
    shift[5] += wrong

    def model(*parameters: np.ndarray) -> ModelProto:
        net = Net({"x": (1, CHANNELS, 4, 4)})
        if len(parameters) == 4:
            return net.model(net.node("BatchNormalization", "x", *map(net.const, parameters)))
        s, t = (net.const(a.astype(np.float32).reshape(-1, 1, 1)) for a in parameters)
        return net.model(net.node("Add", net.node("Mul", "x", s), t))

    original = model(scale, bias, mean, variance)
    optimized = model(factor, shift)
    made = original.graph.node[-1].output[0]
    optimized.graph.node[-1].output[0] = optimized.graph.output[0].name = made
    return original, optimized


def test_the_shift_of_a_batch_normalization_has_the_errors_of_its_terms(tmp_path: Path) -> None:
    original, optimized = normalized()
    zeros = {"x": np.zeros((1, CHANNELS, 4, 4), np.float32)}
    ours, theirs = (
        Runner(model, CPU).run(zeros, [model.graph.output[0].name]).popitem()[1]
        for model in (optimized, original)
    )
    assert (np.abs(ours - theirs) > 2.0**-19 * np.abs(ours)).any()  # else a few roundings would do
    np.savez(tmp_path / "x.npz", x=zeros["x"])
    result = verify(original, optimized, providers=[CPU], inputs=tmp_path / "x.npz")
    assert [row.passed for row in result.at("segment")] == [True]


def test_a_wrong_shift_fails(tmp_path: Path) -> None:
    original, optimized = normalized(wrong=4e-6)
    zeros = {"x": np.zeros((1, CHANNELS, 4, 4), np.float32)}
    np.savez(tmp_path / "x.npz", x=zeros["x"])
    result = verify(original, optimized, providers=[CPU], inputs=tmp_path / "x.npz")
    assert [row.passed for row in result.at("segment")] == [False]


@pytest.mark.parametrize(("wrong", "passed"), [(0.0, True), (0.1, False)])
def test_a_wrong_shift_does_not_hide_behind_large_terms(
    wrong: float, passed: bool, tmp_path: Path
) -> None:
    """Roundings may change a shift by 0.5 here, and did change it by less. The tensor's large
    channel makes the cap on its limits wide."""
    original, optimized = normalized(wrong, size=1e6, large=1e5)
    np.savez(tmp_path / "x.npz", x=np.zeros((1, CHANNELS, 4, 4), np.float32))
    result = verify(original, optimized, providers=[CPU], inputs=tmp_path / "x.npz")
    assert [row.passed for row in result.at("segment")] == [passed]


@pytest.mark.parametrize(("wrong", "passed"), [(0.0, True), (4e-7, False)])
def test_sums_of_embeddings_have_the_errors_of_their_terms(
    wrong: float, passed: bool, tmp_path: Path
) -> None:
    """Rows of segments and positions are nearly opposite. The original finds the segment by an
    input of integers that the optimized model does not read."""
    rng = np.random.default_rng(0)
    words = rng.normal(0, 1e-4, (7, CHANNELS)).astype(np.float32)
    segment = rng.uniform(0.5, 1, CHANNELS).astype(np.float32)
    positions = (rng.normal(0, 1e-4, (5, CHANNELS)) - segment).astype(np.float32)
    both = positions.astype(np.float64) + segment
    both[2, 3] += wrong
    inputs: dict[str, Sequence[int | str]] = {"ids": (1, 5), "mask": (1, 5)}

    def model(folded: bool) -> ModelProto:
        net = Net(inputs, types=dict.fromkeys(inputs, TensorProto.INT64))
        total = net.node("Gather", net.const(words), "ids")
        if folded:
            return net.model(net.node("Add", total, net.const(both)))
        zeros = net.node("Expand", net.const([[0]], np.int64), net.node("Shape", "mask"))
        total = net.node("Add", total, net.node("Gather", net.const(segment[None]), zeros))
        return net.model(net.node("Add", total, net.const(positions)))

    original, optimized = model(False), model(True)
    made = original.graph.node[-1].output[0]
    optimized.graph.node[-1].output[0] = optimized.graph.output[0].name = made
    np.savez(tmp_path / "x.npz", ids=np.ones((1, 5), np.int64), mask=np.ones((1, 5), np.int64))
    result = verify(original, optimized, providers=[CPU], inputs=tmp_path / "x.npz")
    assert [row.passed for row in result.at("segment")] == [passed]


@pytest.mark.parametrize("op", ["Einsum", "AveragePool"])
def test_behind_operators_in_fp32_the_bound_alone_is_known(op: str) -> None:
    """Einsum has no rule, and ONNX Runtime has no float64 kernel for AveragePool."""
    attributes: dict[str, Any] = {
        "Einsum": {"equation": "abij->abji"},
        "AveragePool": {"kernel_shape": [2, 2]},
    }
    net = Net({"x": (1, 1, 4, 4)})
    inner = net.node("Add", "x", net.const(np.float32(0.1)))
    y = net.node(op, inner, **attributes[op])
    model = net.model(y)
    runner = Runner(model, CPU)
    errors = OwnErrors(Models(model, model, runner, runner), {})
    x = np.full((1, 1, 4, 4), 0.3, np.float32)
    got = runner.run({"x": x}, [y])[y]
    found = errors.between(y, {"x": x, y: got})
    assert found is not None
    assert (found > 2.0**-24 * got).all()  # at least the roundings of the sum and of the result


@pytest.mark.parametrize("scale", [0.01, 0.02], ids=["equal", "other"])
def test_equal_codes_are_known_by_the_name_of_one(scale: float) -> None:
    """The optimized model has one QuantizeLinear of several that are equal."""
    net = Net({"x": (4, 8)})

    def codes(scale: float) -> str:
        return net.node("QuantizeLinear", "x", net.const(scale), net.const(0, np.int8))

    first, second = codes(0.01), codes(scale)
    values = net.node("DequantizeLinear", second, net.const(scale))
    y = net.node("MatMul", values, net.normal(8, 4))
    model = net.model(first, y)
    runner = Runner(model, CPU)
    errors = OwnErrors(Models(model, model, runner, runner), {})
    x = np.random.default_rng(0).normal(0, 1, (4, 8)).astype(np.float32)
    found = errors.between(y, runner.run({"x": x}, [first, y]))
    assert (found is not None) == (scale == 0.01)
