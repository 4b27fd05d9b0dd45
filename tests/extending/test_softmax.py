"""An extension's op is matched, planned, written as a node with a function body, rendered, compiled
with its C++ part, inspected, locked and verified."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import onnxbolt
from onnxbolt import Report
from onnxbolt.archs import get
from onnxbolt.codegen.artifacts import Unit, compile_units
from onnxbolt.codegen.nvcc import find_toolchain
from onnxbolt.codegen.render import Instance, include_dirs_of, render_unit
from onnxbolt.dtypes import DType
from onnxbolt.errors import InputError
from onnxbolt.inspection import inspect_model
from onnxbolt.library import manifest_of_model, units
from onnxbolt.measurements.keys import plain, problem_from
from onnxbolt.plan.cost import ranked
from tests.codegen.compilation import DeviceToolchain, slow_code, watchful
from tests.extending import extended_by
from tests.extending.softmax import EXTENSION, ROW_SOFTMAX
from tests.extending.softmax.family import RowSoftmaxConfig
from tests.extending.softmax.problem import ScaledSoftmaxProblem
from tests.support import Net

SHAPE = (2, 3, 50, 70)
PROBLEM = ScaledSoftmaxProblem(18912, 197, DType.F16, DType.F16)


@pytest.fixture
def extended() -> Iterator[None]:
    """The op as an extension adds it."""
    with extended_by(EXTENSION):
        yield


def _source(shape: tuple[int | str, ...] = SHAPE, axis: int = -1) -> onnx.ModelProto:
    net = Net({"x": shape})
    return net.model(net.node("Softmax", net.node("Mul", net.const(0.125), "x"), axis=axis))


def _optimized(out: Path, source: onnx.ModelProto | None = None, **options: object) -> Report:
    chosen = {"archs": "sm_80", "library": False} | options
    return onnxbolt.optimize(source or _source(), out, **chosen)  # type: ignore[arg-type]


def _expected(x: np.ndarray) -> np.ndarray:
    powers = np.exp(0.125 * x - (0.125 * x).max(-1, keepdims=True))
    result: np.ndarray = powers / powers.sum(-1, keepdims=True)
    return result


@pytest.mark.usefixtures("extended")
@pytest.mark.parametrize(
    ("precision", "op"), [("keep", "ScaledSoftmax_f32"), ("fp16", "ScaledSoftmax_f16")]
)
def test_it_is_matched_and_verified(precision: str, op: str, tmp_path: Path) -> None:
    report = _optimized(tmp_path / "out.onnx", precision=precision)
    assert report.passed
    assert [(node.op, node.rule) for node in report.fused] == [(op, "scaled_softmax")]
    nodes = [node.op_type for node in onnx.load(tmp_path / "out.onnx").graph.node]
    assert [name for name in nodes if name != "Cast"] == [op]


@pytest.mark.usefixtures("extended")
def test_its_body_runs_in_plain_onnx_runtime(tmp_path: Path) -> None:
    _optimized(tmp_path / "out.onnx", precision="keep")
    x = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
    session = onnxruntime.InferenceSession(
        tmp_path / "out.onnx", providers=["CPUExecutionProvider"]
    )
    np.testing.assert_allclose(session.run(None, {"x": x})[0], _expected(x), rtol=1e-5)


@pytest.mark.usefixtures("extended")
def test_rows_may_be_of_any_number(tmp_path: Path) -> None:
    report = _optimized(tmp_path / "out.onnx", _source(("batch", 50, 70)))
    assert report.passed
    assert [node.op for node in report.fused] == ["ScaledSoftmax_f16"]


@pytest.mark.usefixtures("extended")
def test_near_misses_are_in_the_report(tmp_path: Path) -> None:
    report = _optimized(tmp_path / "out.onnx", _source(axis=1))
    assert not report.fused
    assert "it is not over the last axis" in report.text()


@pytest.mark.usefixtures("extended")
def test_it_is_in_reports_and_lock_files(tmp_path: Path) -> None:
    out, again, lock = (tmp_path / name for name in ("out.onnx", "again.onnx", "model.lock"))
    _optimized(out, lock=lock)
    _optimized(again, lock=lock, frozen=True)
    assert out.read_bytes() == again.read_bytes()
    assert '"kind": "ScaledSoftmaxProblem"' in lock.read_text()
    (node,) = inspect_model(onnx.load(out)).nodes
    assert (node.op_type, node.source_nodes) == ("ScaledSoftmax_f16", ("mul0", "softmax1"))
    assert isinstance(node.configs[0], RowSoftmaxConfig)


def test_a_lock_file_with_it_needs_it(tmp_path: Path) -> None:
    lock = tmp_path / "model.lock"
    with extended_by(EXTENSION):
        _optimized(tmp_path / "out.onnx", lock=lock)
    with pytest.raises(InputError, match="needs the extension softmax, which is not installed"):
        _optimized(tmp_path / "again.onnx", lock=lock)


@pytest.mark.usefixtures("extended")
def test_its_problem_is_kept_as_json() -> None:
    fields = plain(PROBLEM)
    assert isinstance(fields, dict)
    assert problem_from("ScaledSoftmaxProblem", fields) == PROBLEM


@pytest.mark.usefixtures("extended")
def test_its_time_is_predicted() -> None:
    times = [ranked(dataclasses.replace(PROBLEM, m=m), get(80))[0][0] for m in (1000, 20000, 40000)]
    assert times == sorted(times)
    assert times[2] < dataclasses.replace(PROBLEM, m=40000).onnxruntime_us(get(80))


@pytest.mark.usefixtures("extended")
def test_its_library_has_its_sources(tmp_path: Path) -> None:
    _optimized(tmp_path / "out.onnx")
    found = {u.name: u for u in units(manifest_of_model(onnx.load(tmp_path / "out.onnx")))}
    assert found["row_softmax_sm80_0.cu"].include_dirs == EXTENSION.include_dirs
    assert found["scaled_softmax.cc"].text == EXTENSION.sources[0].read_text()
    assert '"scaled_softmax"' in found["manifest.cc"].text


@pytest.mark.usefixtures("extended")
def test_its_kernels_and_sources_compile(tmp_path: Path) -> None:
    configs = ROW_SOFTMAX.candidates(PROBLEM, get(80))
    instances = [Instance(config, DType.BF16, DType.BF16) for config in configs]
    kernels = Unit("softmax.cu", render_unit(instances), 80, include_dirs_of(instances))
    (compiled,) = compile_units([kernels], watchful(DeviceToolchain))
    assert slow_code(compiled) == []
    text = EXTENSION.sources[0].read_text()
    compile_units([Unit("softmax.cc", text, include_dirs=EXTENSION.include_dirs)], find_toolchain())


def test_without_it_the_nodes_stay_as_they_are(tmp_path: Path) -> None:
    report = _optimized(tmp_path / "out.onnx")
    assert not report.fused
