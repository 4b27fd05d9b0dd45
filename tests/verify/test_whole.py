"""The whole model: inputs that cannot judge it are told from those that can, and no model that
answers zero passes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, helper, numpy_helper

from onnxbolt.cli import main
from onnxbolt.dtypes import DType
from onnxbolt.errors import AccuracyError
from onnxbolt.pipeline import optimize
from onnxbolt.precision import rounded_original
from onnxbolt.tolerances import JUDGES, RATIO
from onnxbolt.verify import Row, VerifyResult, verify
from onnxbolt.verify.draws import NORMAL, OTHERS, image
from onnxbolt.verify.result import NOT_JUDGED
from onnxbolt.verify.session import CPU
from tests.test_verify import drawn, model_of


def detector(noisy_from: float, gain: float = 8) -> ModelProto:
    """Conditions like PP-OCR's detector: steps between pixels above `noisy_from` reach sines of
    sines of `gain` times them, so that fp16 changes the answer to noise by 0.7 and the answer to a
    smooth image by 2e-4. Each sine by itself changes little.
    """
    body = """a = Conv<pads=[1,1,1,0]>(x, w) h = Relu(a) y1 = Conv(h, v)
              d = Conv(x, step) b = Abs(d) o = Sub(b, from) n0 = Relu(o) """
    body += (
        " ".join(f"g{i} = Mul(n{i - 1}, gain) n{i} = Sin(g{i})" for i in range(1, 8))
        + " y = Add(y1, n7)"
    )
    step = np.zeros((1, 3, 1, 2), np.float32)
    step[0, 0, 0] = -0.9, 0.9
    weights: dict[str, Any] = {
        "w": drawn(0, 8, 3, 3, 3),
        "v": drawn(1, 1, 8, 1, 1) / 4,
        "step": step,
        "from": np.float32(noisy_from),
        "gain": np.float32(gain),
    }
    return model_of("(float[2,3,64,64] x) => (float[2,1,64,63] y)", body, weights)


@pytest.fixture(scope="module")
def on_images() -> ModelProto:
    """Noise reaches the sine, images do not."""
    return detector(noisy_from=0.2)


@pytest.fixture(scope="module")
def on_nothing() -> ModelProto:
    """A model in which any random input, noise or image, reaches the sine."""
    return detector(noisy_from=-1.1)


def in_fp16(model: ModelProto, times: float = 1.0) -> ModelProto:
    """The model as a perfect optimizer would write it in fp16, or with its only output multiplied
    by `times`."""
    rounded = rounded_original(model, "fp16")
    rounded.metadata_props.add(key="onnxbolt.precision", value="fp16")
    if times != 1.0:
        (output,) = rounded.graph.output
        node = next(node for node in rounded.graph.node if output.name in node.output)
        node.output[list(node.output).index(output.name)] = "before"
        rounded.graph.initializer.append(
            numpy_helper.from_array(np.asarray(times, np.float32), "times")
        )
        rounded.graph.node.append(helper.make_node("Mul", ["before", "times"], [output.name]))
    return rounded


def test_inputs_that_cannot_judge_give_way_to_others(on_images: ModelProto) -> None:
    result = verify(on_images, in_fp16(on_images), providers=[CPU])
    (row,) = result.at("model")
    assert (row.passed, result.judged) == (True, True)
    assert row.error < 1e-2
    note = result.notes[0]
    assert "CPU, y: judged on inputs that are image-like (smooth, from 0 to 1)" in note
    assert "rounding alone changes the original by" in note


@pytest.mark.parametrize("times", [0.0, 0.5])
def test_a_wrong_answer_is_found_by_other_inputs(times: float, on_images: ModelProto) -> None:
    result = verify(on_images, in_fp16(on_images, times), providers=[CPU])
    assert result.verdict.startswith("FAILED")
    assert result.rows[0].error == pytest.approx(1 - times, rel=0.01)


def test_a_model_that_no_inputs_can_judge_is_not_called_passed_as_a_whole(
    on_nothing: ModelProto,
) -> None:
    result = verify(on_nothing, in_fp16(on_nothing), providers=[CPU])
    assert (result.judged, result.failures) == (False, ())
    assert result.text().splitlines()[-1].startswith(NOT_JUDGED)
    assert "not judged: rounding alone changes the original by" in result.text()


def test_segments_judge_where_no_inputs_can(on_nothing: ModelProto) -> None:
    """The output is zeroed behind the last segment that is right."""
    result = verify(on_nothing, in_fp16(on_nothing, 0.0), providers=[CPU])
    assert [(row.level, row.name) for row in result.failures] == [("segment", "y")]
    assert result.verdict.startswith("FAILED")


def test_given_inputs_that_cannot_judge_stay_as_they_are(
    on_images: ModelProto, tmp_path: Path
) -> None:
    np.savez(
        tmp_path / "noise.npz",
        x=np.random.default_rng(0).standard_normal((2, 3, 64, 64)).astype(np.float32),
    )
    assert verify(
        on_images, in_fp16(on_images), inputs=tmp_path / "noise.npz", providers=[CPU]
    ).verdict.startswith(NOT_JUDGED)
    np.savez(
        tmp_path / "image.npz", x=image(np.random.default_rng(0), (2, 3, 64, 64)).astype(np.float32)
    )
    result = verify(on_images, in_fp16(on_images), inputs=tmp_path / "image.npz", providers=[CPU])
    assert result.verdict.startswith("PASSED: ")
    assert verify(
        on_images, in_fp16(on_images, 0.0), inputs=tmp_path / "image.npz", providers=[CPU]
    ).verdict.startswith("FAILED")


def test_zeros_prove_nothing() -> None:
    """Standard normal inputs stay below the threshold, bytes do not."""
    body = "h = Sub(x, b) y = Relu(h)"
    model = model_of("(float[2,3,8,8] x) => (float[2,3,8,8] y)", body, {"b": np.float32(20)})
    result = verify(model, model, providers=[CPU])
    assert result.verdict.startswith("PASSED: ")
    assert "because on standard normal ones the original's output has only zeros" in result.notes[0]
    assert verify(model, in_fp16(model, 0.0), providers=[CPU]).verdict.startswith("FAILED")
    never = model_of("(float[2,3,8,8] x) => (float[2,3,8,8] y)", body, {"b": np.float32(1e6)})
    assert verify(never, never, providers=[CPU]).verdict.startswith(NOT_JUDGED)


def test_zeros_that_hang_on_no_input_are_an_answer() -> None:
    model = model_of(
        "(float[2] x) => (float[2] y, float[2] z)",
        "y = Relu(zero) z = Abs(x)",
        {"zero": np.zeros(2, np.float32)},
    )
    assert verify(model, model, providers=[CPU]).verdict.startswith("PASSED: ")


def test_strict_exits_with_3_where_nothing_can_judge(
    on_nothing: ModelProto, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = tmp_path / "in.onnx", tmp_path / "out.onnx"
    onnx.save(on_nothing, source)
    onnx.save(in_fp16(on_nothing), tmp_path / "right.onnx")
    assert main(["verify", str(source), str(tmp_path / "right.onnx")]) == 0
    assert main(["verify", str(source), str(tmp_path / "right.onnx"), "--strict"]) == 3
    assert NOT_JUDGED in capsys.readouterr().out
    assert main(["optimize", str(source), str(out), "--no-library", "--strict"]) == 3
    assert not out.exists()
    printed = capsys.readouterr()
    assert (
        "the whole model could not be judged: output y: rounding alone changes the original"
        in printed.err
    )
    assert (
        main(
            [
                "optimize",
                str(source),
                str(out),
                "--no-library",
                "--report",
                str(tmp_path / "r.json"),
            ]
        )
        == 0
    )
    verification = json.loads((tmp_path / "r.json").read_text())["verification"]
    assert (verification["passed"], verification["judged"]) == (True, False)
    assert verification["verdict"].startswith(NOT_JUDGED)


def test_strict_from_python(on_nothing: ModelProto) -> None:
    with pytest.raises(AccuracyError, match="give inputs that allow a verdict with inputs"):
        optimize(on_nothing, library=False, strict=True)
    report = optimize(on_nothing, library=False)
    assert report.passed
    assert report.markdown().splitlines()[-1].startswith(NOT_JUDGED)


@pytest.mark.parametrize(
    ("error", "yardstick", "reason", "state"),
    [
        (0.5, 0.748, "", "unjudged"),
        (0.5, 0.04, "", "failed"),
        (0.05, 0.04, "", "passed"),
        (0.5, 0.748, "shape", "failed"),
    ],
)
def test_a_yardstick_above_its_cap_judges_nothing(
    error: float, yardstick: float, reason: str, state: str
) -> None:
    row = Row("y", "output", "CPU", error, 1e-2, 0.0, 1.0, reason=reason).judged(
        yardstick, JUDGES[DType.F16]
    )
    assert [name for name in ("passed", "failed", "unjudged") if getattr(row, name)] == [state]
    result = VerifyResult("fp16", (row,))
    assert (result.passed, result.judged) == (state != "failed", state != "unjudged")


@pytest.mark.parametrize(
    ("levels", "verdict"),
    [
        (["model"], NOT_JUDGED),
        (["segment"], "PASSED as a whole; 1 tensor not judged by segment or node (give --inputs)"),
        (
            ["segment", "node"],
            "PASSED as a whole; 2 tensors not judged by segment or node (give --inputs)",
        ),
        (
            ["model", "node"],
            (
                "PASSED in part; whole model and 1 tensor not judged by segment or node (give"
                " --inputs)"
            ),
        ),
    ],
)
def test_the_last_line_says_what_was_not_judged(levels: list[str], verdict: str) -> None:
    right = Row("y", "output", "CPU", 0.0, 1e-2, 0.0, 1.0).judged()
    unjudged = [
        replace(right, level=level, passed=False, unjudged="its limit is too wide")
        for level in levels
    ]
    assert VerifyResult("fp16", (right, *unjudged, *unjudged)).verdict == verdict
    wrong = replace(right, passed=False, reason="shape")
    assert VerifyResult("fp16", (wrong, *unjudged)).verdict == "FAILED"


def test_the_caps_are_those_of_the_documentation() -> None:
    assert JUDGES == {DType.F16: 0.05, DType.BF16: 0.20, DType.F32: 0.01}
    assert all(RATIO * cap < 1 for cap in JUDGES.values())  # zeros have an error of 1


def test_nothing_compared_is_no_success() -> None:
    assert VerifyResult("keep", ()).verdict == "FAILED"


@pytest.mark.parametrize("draw", [NORMAL, *OTHERS], ids=lambda draw: draw.name)
@pytest.mark.parametrize(
    "shape",
    [(), (4,), (2, 5), (2, 3, 40), (2, 3, 40, 33), (2, 40, 33, 3), (1, 2, 3, 20, 20), (0, 3, 4, 4)],
    ids=str,
)
def test_draws_have_any_shape(draw: object, shape: tuple[int, ...]) -> None:
    values = draw.values(np.random.default_rng(0), shape)  # type: ignore[attr-defined]
    assert np.shape(values) == shape
    assert np.isfinite(values).all()


def test_images_are_smooth_along_height_and_width() -> None:
    for shape, axes in (((3, 2, 64, 48), (2, 3)), ((3, 64, 48, 2), (1, 2))):
        values = image(np.random.default_rng(0), shape)
        assert (values.min() >= 0, values.max() <= 1) == (True, True)
        steps = [np.abs(np.diff(values, axis=axis)).max() for axis in range(4)]
        assert max(steps[axis] for axis in axes) <= 1 / 16
        assert min(steps[axis] for axis in {0, 1, 2, 3} - {*axes}) > 1 / 16


def canceling(sums: str = "s = Add(p, q) y = Add(s, b)") -> ModelProto:
    """In fp16 from end to end; its own rounding changes its answers by 3e-2. (On the CPU ONNX
    Runtime rounds what is in a sequence.)"""
    weights: dict[str, Any] = {
        "w": (50 + drawn(0, 64, 8)).astype(np.float16),
        "n": np.full((64, 8), -50, np.float16),
        "b": drawn(1, 8).astype(np.float16),
        "k0": np.int64(0),
        "k1": np.int64(1),
    }
    body = (
        "a = MatMul(x, w) c = MatMul(x, n) l = SequenceConstruct(a, c) p = SequenceAt(l, k0) q ="
        f" SequenceAt(l, k1) {sums}"
    )
    return model_of("(float16[4,64] x) => (float16[4,8] y)", body, weights)


def test_a_model_in_fp16_is_compared_with_itself_in_fp32() -> None:
    model = canceling()
    # sums in another order: as good as the original, whose own answers it does not give
    other = canceling("t = Add(p, b) u = SequenceConstruct(t) r = SequenceAt(u, k0) y = Add(r, q)")
    (row,) = verify(model, other, providers=[CPU]).at("model")
    assert 1e-2 < row.error < row.limit
    assert row.passed
    wrong = canceling()
    wrong.graph.initializer[2].CopyFrom(numpy_helper.from_array(np.ones(8, np.float16) * 4, "b"))
    assert not verify(model, wrong, providers=[CPU]).passed


@pytest.mark.parametrize("precision", ["fp16", "keep"])
def test_optimizing_a_model_in_fp16(precision: str) -> None:
    assert optimize(canceling(), precision=precision, fuse="all", library=False).passed


def test_what_overflows_in_the_type_of_the_original_may_overflow() -> None:
    model = model_of(
        "(float16[64] x) => (float16[64] y, float16[64] z)",
        "a = Abs(x) b = Exp(a) c = Mul(b, w) y = Mul(c, w) z = Abs(x)",
        {"w": np.float16(150)},
    )
    result = verify(model, model, providers=[CPU])
    assert result.passed
    assert {row.name: row.unjudged != "" for row in result.at("model")} == {"y": False, "z": False}


def test_an_index_may_be_the_one_that_the_original_chooses() -> None:
    """In fp16 1 and 1.0001 are equal, and the first of them is the largest."""
    weights: dict[str, Any] = {"one": np.float16(1), "b": np.array([0, 1e-4, 0, 0], np.float16)}
    model = model_of(
        "(float16[2,4] x) => (int64[2] y)",
        "z = Sub(x, x) o = Add(z, one) h = Add(o, b) y = ArgMax<axis=1, keepdims=0>(h)",
        weights,
    )
    assert not verify(model, model, providers=[CPU]).failures


def test_a_model_that_does_not_load_in_fp32_is_compared_in_its_own_type(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nothing = model_of("(float[2] x) => (float[2] y)", "y = Nothing(x)")
    monkeypatch.setattr("onnxbolt.verify.models.widened", lambda model, types: (nothing, {}))
    model = canceling()
    result = verify(model, model, providers=[CPU])
    assert result.passed
    assert "does not load it in fp32" in result.notes[0]
