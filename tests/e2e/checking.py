"""One model through the main job: nothing raised, a valid output, the original's answers, the
original left as it was."""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import ModelProto

import onnxbolt
from onnxbolt.graph.sizes import Sizes
from onnxbolt.tolerances import error, is_float, same_non_finite
from onnxbolt.verify.feeds import Feeds, random_feeds, working_feeds
from onnxbolt.verify.session import CPU, RUNTIME_ERRORS, Runner

ARCHS = ("sm_80", "sm_90a")
HOPPER = ("sm_90a",)  # the only one with b2b GEMMs, and with stem convolutions that read NCHW
# Limits of outputs besides verification: shapes and types alone would accept outputs of zeros.
# Verification judges rounding.
LIMITS = {"keep": 1e-4, "fp16": 0.05}
# sizes that verification does not draw for symbolic dimensions
OTHER_SIZES = Sizes(batch=3, image=(40, 40), other=7)


def check(
    model: ModelProto, directory: Path, precision: str, fuse: str, archs: tuple[str, ...] = ARCHS
) -> onnxbolt.Report:
    """Optimize `model`, verification included, and run the result once more, in ONNX Runtime as
    it comes."""
    out = directory / "out.onnx"
    before = model.SerializeToString(deterministic=True)
    report = onnxbolt.optimize(
        model, out, precision=precision, fuse=fuse, library=False, archs=archs
    )
    assert report.passed
    assert model.SerializeToString(deterministic=True) == before
    optimized = onnx.load(out)
    if is_valid(model):
        onnx.checker.check_model(optimized, full_check=True)
    if precision in LIMITS and not uses_type(model, onnx.TensorProto.BFLOAT16):
        _same_answers(
            model,
            optimized,
            LIMITS["fp16" if uses_type(model, onnx.TensorProto.FLOAT16) else precision],
        )
    return report


def _same_answers(model: ModelProto, optimized: ModelProto, limit: float) -> None:
    runner, candidate = Runner(model, CPU), Runner(optimized, CPU)
    for feeds in (working_feeds(model, runner, seed=0), random_feeds(model, 1, OTHER_SIZES)):
        try:
            expected = runner.run(feeds, [])
        except RUNTIME_ERRORS:  # a symbolic size may be one that the model does not take
            continue
        _compare(candidate.run(feeds, []), expected, limit)


def _compare(got: Feeds, expected: Feeds, limit: float) -> None:
    assert list(got) == list(expected)
    for name, values in expected.items():
        assert (got[name].shape, got[name].dtype) == (values.shape, values.dtype), name
        if is_float(values):
            assert same_non_finite(got[name], values), name
        assert error(got[name], values) <= limit, name


def is_valid(model: ModelProto) -> bool:
    """True if onnx.checker accepts the model in full; ONNX Runtime accepts some that it does
    not."""
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
        return False
    return True


def uses_type(model: ModelProto, kind: int) -> bool:
    """True if weights or inputs have this type."""
    types = {tensor.data_type for tensor in model.graph.initializer} | {
        value.type.tensor_type.elem_type for value in model.graph.input
    }
    return kind in types
