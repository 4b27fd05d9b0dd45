"""One operator by itself has the answers that it has in a model."""

from __future__ import annotations

import numpy as np
from onnx import helper

from onnxbolt.precision import rounded_original
from onnxbolt.verify import verify
from onnxbolt.verify.elementwise import _within_range
from onnxbolt.verify.session import CPU
from onnxbolt.verify.standard import Standard
from tests.test_verify import drawn, model_of


def test_a_scalar_stays_one() -> None:
    """By a scalar Gather takes away an axis, by a list of one index it keeps it."""
    model = model_of(
        "(float[3,5,8] x) => (float[3,8] y)", "y = Gather<axis=1>(x, i)", {"i": np.int64(0)}
    )
    x = drawn(0, 3, 5, 8)
    for index, shape in ((np.int64(2), (3, 8)), (np.array([2], np.int64), (3, 1, 8))):
        (y,) = Standard(model).run(model.graph.node[0], [x, np.asarray(index)], {})
        assert y.shape == shape
    node = helper.make_node("Add", ["a", "b"], ["c"])
    (c,) = Standard(model).run(node, [np.asarray(1.0), np.asarray(2.0)], {})
    assert (c.shape, float(c)) == ((), 3.0)


def test_the_class_token_of_a_vision_transformer_is_judged() -> None:
    """Several images, of each of which a scalar index takes one token: limits have the shape of
    what they limit."""
    body = "a = MatMul(x, w) g = Gather<axis=1>(a, i) y = MatMul(g, v)"
    model = model_of(
        "(float[3,5,16] x) => (float[3,8] y)",
        body,
        {"w": drawn(0, 16, 16), "v": drawn(1, 16, 8), "i": np.int64(0)},
    )
    rounded = rounded_original(model, "fp16")
    rounded.metadata_props.add(key="onnxbolt.precision", value="fp16")
    result = verify(model, rounded, providers=[CPU])
    assert result.passed, result.text()
    assert "g" in {row.name for row in result.at("segment")}


def test_numbers_beyond_the_range_are_infinite_without_a_warning() -> None:
    """Two masks of float32's lowest number, summed in float64; pytest makes errors of warnings."""
    node = helper.make_node("Relu", ["x"], ["y"])
    model = model_of("(float[1] x) => (float[1] y)", "y = Relu(x)")
    (y,) = Standard(model).run(node, [np.array([6.8e38])], {}, np.float32)
    assert y.dtype == np.float32
    assert y[0] == np.inf
    values, limits = np.array([-3e38, -3e38], np.float32), np.array([3e38, 1], np.float32)
    found = _within_range(values, limits, np.dtype(np.float32))
    np.testing.assert_array_equal(found, np.array([np.inf, 1], np.float32))
