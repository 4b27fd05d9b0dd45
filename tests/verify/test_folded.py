"""Constants that nodes of the original compute: two computations of them may differ by more than
a few roundings."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto, numpy_helper

from onnxbolt.verify import verify
from onnxbolt.verify.folded import Folded
from onnxbolt.verify.models import Models
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
    errors = Folded(Models(model, model, runner, runner), {})
    assert errors.error(names[case], (4, 2) if case == "of another shape" else (4, 4)) is None
    computed = errors.error(names["of another shape"], (4, 4))
    assert computed is not None
    assert (computed > 0).all()
