"""Models that have moved by one rounding error: what moves, and which verdicts follow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import ModelProto, numpy_helper

from onnxbolt.graph.importer import load_model
from onnxbolt.verify import Row, verify
from onnxbolt.verify.nudges import nudged, nudged_feeds
from onnxbolt.verify.result import NOT_JUDGED
from onnxbolt.verify.session import CPU
from tests.test_verify import drawn, model_of
from tests.verify.test_whole import detector

FP32 = 2.0**-24


def weights_of(model: ModelProto) -> dict[str, np.ndarray]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("dtype", "unit"), [(np.float32, 2.0**-11), (np.float32, FP32), (np.float16, 2.0**-11)]
)
def test_weights_move_by_one_rounding_error_both_ways(seed: int, dtype: type, unit: float) -> None:
    values: Any = drawn(seed, 40, 50).astype(dtype)
    model = model_of("(float[40] x) => (float[40] y)", "y = Relu(x)", {"w": values})
    moved = weights_of(nudged(model, unit, seed))["w"]
    step = (moved.astype(np.float64) - values) / np.abs(values)
    bound = unit + np.finfo(dtype).eps
    assert moved.dtype == dtype
    assert np.abs(step).max() <= bound
    assert 0.2 < np.mean(step > 0) < 0.8
    assert np.mean(step == 0) < 0.5
    assert np.array_equal(weights_of(model)["w"], values)  # the model itself stays
    assert not np.array_equal(weights_of(nudged(model, unit, seed + 1))["w"], moved)


def test_what_rounding_leaves_alone_stays() -> None:
    """Masks, grids, sizes, integers; and infinities, which a sum would make NaNs."""
    lowest = np.finfo(np.float32).min
    stay: dict[str, Any] = {
        "mask": np.where(np.tri(20), 0, -np.inf).astype(np.float32),
        "finite": np.full(20, lowest),
        "grid": np.arange(20, dtype=np.float32) + np.float32(0.5),
        "scales": np.array([1, 1, 1.1, 2.2], np.float32),
        "index": np.arange(20),
        "nothing": np.zeros((0, 20), np.float32),
    }
    model = model_of("(float[20] x) => (float[20] y)", "y = Relu(x)", stay)
    for seed in range(4):
        for name, values in weights_of(nudged(model, FP32, seed)).items():
            exact = name != "finite"  # it moves towards zero, but not to infinity
            assert np.array_equal(values, stay[name]) or not exact
            assert np.isfinite(values).all() or not np.isfinite(stay[name]).all()


def test_weights_of_few_bits_stay() -> None:
    """Their bytes, too: numpy has no such types."""
    numbers = np.arange(32) % 7
    kinds = (ml_dtypes.int4, ml_dtypes.uint4, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)
    stay: dict[str, Any] = {kind.__name__: numbers.astype(kind) for kind in kinds}
    stay |= {"bools": numbers > 3, "words": np.array([*"abcdefghijklmnopq"], object)}
    model = model_of("(float[20] x) => (float[20] y)", "y = Relu(x)", stay)
    assert nudged(model, FP32, 0).SerializeToString() == model.SerializeToString()


def test_weights_in_files_stay_there(tmp_path: Path) -> None:
    model = model_of(
        "(float[1024] x) => (float[1024] y)",
        "h = MatMul(x, w) y = Add(h, b)",
        {"w": drawn(0, 1024, 512), "b": drawn(1, 1024)},
    )
    onnx.save(model, path := tmp_path / "m.onnx", save_as_external_data=True, location="w")
    before = load_model(path)
    after = nudged(before, FP32, 0)
    kept, moved = (t.SerializeToString() for t in after.graph.initializer)
    assert kept == before.graph.initializer[0].SerializeToString()
    assert moved != before.graph.initializer[1].SerializeToString()


def test_inputs_move_and_indices_stay() -> None:
    feeds: dict[str, Any] = {
        "x": drawn(0, 30),
        "h": drawn(1, 30).astype(ml_dtypes.bfloat16),
        "ids": np.arange(30),
        "scalar": np.float32(0.1),
    }
    moved = nudged_feeds(feeds, 2.0**-11, 0)
    assert {name: np.asarray(v).dtype for name, v in moved.items()} == {
        name: np.asarray(v).dtype for name, v in feeds.items()
    }
    assert not np.array_equal(moved["x"], feeds["x"])
    # every number of bfloat16 is one that rounding to it leaves alone
    assert np.array_equal(moved["h"], feeds["h"])
    assert np.array_equal(moved["ids"], feeds["ids"])


# --- verdicts ---------------------------------------------------------------------------------


def otherwise_rounded(model: ModelProto) -> ModelProto:
    """A right model in fp32 that rounds otherwise: its filters are others by one rounding error."""
    copy, rng = ModelProto(), np.random.default_rng(99)
    copy.CopyFrom(model)
    for tensor in copy.graph.initializer:
        if len(tensor.dims) > 1:
            values = numpy_helper.to_array(tensor)
            towards = values * rng.choice(np.array([0, 2], np.float32), values.shape)
            tensor.CopyFrom(numpy_helper.from_array(np.nextafter(values, towards), tensor.name))
    return copy


def times(model: ModelProto, factor: float) -> ModelProto:
    """The model with its last node's result multiplied."""
    copy = ModelProto()
    copy.CopyFrom(model)
    copy.graph.node[-1].output[0] = "before"
    copy.graph.node.add(op_type="Mul", input=["before", "factor"], output=["y"])
    copy.graph.initializer.append(numpy_helper.from_array(np.array(factor, np.float32), "factor"))
    return copy


def test_fp32_is_not_judged_where_its_own_rounding_decides() -> None:
    """Sines of sines change the answer to any input by over 1%."""
    model = detector(noisy_from=-1.1, gain=40)
    result = verify(model, otherwise_rounded(model), providers=[CPU])
    assert result.verdict.startswith(NOT_JUDGED)
    (row,) = result.at("model")
    assert row.error > 1e-4
    assert row.unjudged.startswith("rounding alone changes the original by")


def test_fp32_is_judged_on_other_inputs_where_noise_cannot() -> None:
    model = detector(noisy_from=0.2, gain=40)
    result = verify(model, otherwise_rounded(model), providers=[CPU])
    assert result.verdict.startswith("PASSED: ")
    assert "judged on inputs that are image-like" in result.notes[0]


@pytest.mark.parametrize("noisy_from", [-1.1, 0.2])
@pytest.mark.parametrize("factor", [0.0, 0.5, 1.02])
def test_a_wrong_answer_in_fp32_is_found_all_the_same(factor: float, noisy_from: float) -> None:
    """By segment where no inputs can judge the whole model."""
    model = detector(noisy_from, gain=40)
    result = verify(model, times(otherwise_rounded(model), factor), providers=[CPU])
    assert result.verdict.startswith("FAILED")


def labels(distance: float) -> ModelProto:
    """Labels of 300 pixels. There are two scores for each label, which lie `distance` apart."""
    w = drawn(0, 64, 5)
    return model_of(
        "(float[300,64] x) => (int64[300] y)",
        """h = MatMul(x, w) a = MatMul(x, v) c = Concat<axis=1>(h, a)
           y = ArgMax<axis=1, keepdims=0>(c)""",
        {"w": w, "v": w * np.float32(1 + distance)},
    )


def labeled(found: ModelProto, given: ModelProto) -> Row:
    (row,) = verify(given, found, providers=[CPU]).at("model")
    return row


def test_labels_that_fp32_may_choose_are_not_judged() -> None:
    """Both scores are the same but for rounding errors, so that either is the label."""
    model = labels(2e-8)
    row = labeled(otherwise_rounded(model), model)
    assert row.error > 0
    assert row.unjudged.startswith("rounding alone changes")


def test_more_labels_than_rounding_chooses_are_wrong() -> None:
    row = labeled(labels(0.01), labels(-0.01))
    assert row.failed
    assert row.reason.startswith("share of unequal values")
    assert labeled(otherwise_rounded(labels(0.01)), labels(0.01)).passed


def test_scales_of_codes_move_to_the_next_number() -> None:
    """So that a value in the middle of two codes gets the other one; other scalars stay."""
    scale = np.float32(0.02)
    model = model_of(
        "(float[20] x) => (uint8[20] y)",
        "y = QuantizeLinear(x, scale, zero) z = Mul(x, other)",
        {"scale": scale, "zero": np.uint8(3), "other": scale},
    )
    moved = [weights_of(nudged(model, 2.0**-11, seed)) for seed in range(8)]
    near = {np.nextafter(scale, np.float32(end)) for end in (0.0, 1.0)}
    assert {float(found["scale"]) for found in moved} == {float(value) for value in near}
    assert all(found["other"] == scale and found["zero"] == 3 for found in moved)


def test_scales_of_codes_move_to_a_next_number() -> None:
    """Those of operators on codes move by the roundings of their quotient of scales."""
    text = "q = QuantizeLinear(x, s, z)  y = QLinearMatMul(q, s, z, w, t, v, u, z)"
    numbers = {"s": 0.1, "t": 0.2, "u": 0.3}
    scales: dict[str, Any] = {name: np.float32(value) for name, value in numbers.items()}
    codes: dict[str, Any] = {"z": np.uint8(3), "v": np.int8(0), "w": np.ones((20, 20), np.int8)}
    model = model_of("(float[2, 20] x) => (uint8[2, 20] y)", text, {**scales, **codes})
    for seed in range(4):
        found = weights_of(nudged(model, FP32, seed))
        steps = {
            name: abs(int(found[name].view(np.int32)) - int(value.view(np.int32)))
            for name, value in scales.items()
        }
        assert steps == {"s": 1, "t": 0, "u": 3}
        assert all(np.array_equal(found[name], value) for name, value in codes.items())
