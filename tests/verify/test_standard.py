"""One operator by itself has the answers that it has in a model."""

from __future__ import annotations

import numpy as np
from onnx import helper

from onnxbolt.precision import rounded_original
from onnxbolt.verify import verify
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
