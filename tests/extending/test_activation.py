"""An extension's activations are recognized, fused, rendered, compiled, run as functions' bodies
and verified."""

from __future__ import annotations

import dataclasses
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import onnxbolt
from onnxbolt import Report
from onnxbolt.archs import get
from onnxbolt.codegen.artifacts import Unit, compile_units, unit_key
from onnxbolt.codegen.nvcc import find_toolchain
from onnxbolt.codegen.render import Instance, include_dirs_of, reference_steps, render_unit
from onnxbolt.dtypes import DType
from onnxbolt.epilogues.step import Definition
from onnxbolt.errors import InputError
from onnxbolt.families import only
from onnxbolt.inspection import inspect_model
from onnxbolt.library import manifest_of_model, units
from onnxbolt.plan.cost import ranked
from onnxbolt.problems import GemmProblem
from onnxbolt.tune.acceptance import limits_of
from tests.codegen.compilation import DeviceToolchain, compile_program, slow_code, watchful
from tests.epilogues.written import write
from tests.extending import extended_by
from tests.extending.activation import CELU, EXTENSION, STEEP_SWISH
from tests.support import Net

ROWS, INNER, COLUMNS = 512, 128, 256
STEP = STEEP_SWISH.name


_REFERENCE = """
#include <cstdio>
#include "profiler/steps.h"
using namespace onnxbolt::profiler;
int main() {
  const float alpha = 0.5f;
  for (int i = 0; i <= 32; ++i) {
    const double x = -4 + i / 4.0;
    std::printf("%.17g %.17g %.17g\\n", x, ReferenceStep(kSteepSwish, x, 0, nullptr),
                ReferenceStep(kCelu, x, 0, &alpha));
  }
}
"""


@pytest.fixture
def extended() -> Iterator[None]:
    with extended_by(EXTENSION):
        yield


def _unit() -> Unit:
    """A small kernel with both steps, for sm_80."""
    chain = ("Bias", STEP, CELU.name)
    instance = Instance(only("elementwise", 80), DType.F16, DType.F16, chain)
    return Unit("activations.cu", render_unit([instance]), 80, include_dirs_of([instance]))


def _source() -> onnx.ModelProto:
    net = Net({"x": (ROWS, INNER)})
    return net.model(write(net, STEEP_SWISH.forms[0], net.linear("x", INNER, COLUMNS)))


def _optimized(out: Path, source: onnx.ModelProto | None = None, **options: object) -> Report:
    chosen = {"archs": "sm_80", "precision": "fp16", "library": False} | options
    return onnxbolt.optimize(source or _source(), out, **chosen)  # type: ignore[arg-type]


def _result(model: Path | bytes, x: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    result: np.ndarray = session.run(None, {"x": x})[0]
    return result


@pytest.mark.usefixtures("extended")
def test_it_is_recognized_fused_and_verified(tmp_path: Path) -> None:
    report = _optimized(tmp_path / "out.onnx")
    assert report.passed
    assert [node.op for node in report.fused] == [f"FusedGemm_Bias_{STEP}_CastF32_f16"]
    written = onnx.load(tmp_path / "out.onnx").graph.node
    assert [node.domain for node in written if node.op_type != "Cast"] == ["com.onnxbolt"]


@pytest.mark.usefixtures("extended")
def test_its_body_runs_in_plain_onnx_runtime(tmp_path: Path) -> None:
    _optimized(tmp_path / "out.onnx", precision="keep")
    source = _source()
    x = np.random.default_rng(0).standard_normal((ROWS, INNER)).astype(np.float32)
    weight, bias = (
        onnx.numpy_helper.to_array(t).astype(float) for t in source.graph.initializer[:2]
    )
    expected = STEEP_SWISH.reference(x.astype(float) @ weight + bias, None)
    for model in (source.SerializeToString(), tmp_path / "out.onnx"):
        assert np.linalg.norm(_result(model, x) - expected) <= 1e-5 * np.linalg.norm(expected)


@pytest.mark.usefixtures("extended")
def test_parameters_are_the_operators_attributes(tmp_path: Path) -> None:
    net = Net({"x": (ROWS, INNER)})
    source = net.model(net.node("Celu", net.linear("x", INNER, COLUMNS), alpha=0.5))
    report = _optimized(tmp_path / "out.onnx", source, precision="keep")
    assert report.passed
    assert [node.rule for node in report.fused] == ["gemm+Bias+Celu"]
    (node,) = onnx.load(tmp_path / "out.onnx").graph.node
    params = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    assert params["epilogue_params"] == [0.5]
    x = np.random.default_rng(0).standard_normal((ROWS, INNER)).astype(np.float32)
    weight, bias = (onnx.numpy_helper.to_array(t) for t in source.graph.initializer[:2])
    expected = CELU.reference(x.astype(float) @ weight + bias, None, 0.5)
    got = _result(tmp_path / "out.onnx", x)
    assert np.linalg.norm(got - expected) <= 1e-5 * np.linalg.norm(expected)


@pytest.mark.usefixtures("extended")
def test_its_units_include_its_header(tmp_path: Path) -> None:
    _optimized(tmp_path / "out.onnx")
    kernels = [u for u in units(manifest_of_model(onnx.load(tmp_path / "out.onnx"))) if u.arch]
    assert kernels
    for unit in kernels:
        assert unit.include_dirs == EXTENSION.include_dirs
        assert '\n#include "activations.h"\n' in unit.text
        assert "Chain<onnxbolt::epilogue::Bias, extending::SteepSwish>" in unit.text


@pytest.mark.usefixtures("extended")
def test_the_functors_compile() -> None:
    (compiled,) = compile_units([_unit()], watchful(DeviceToolchain))
    assert slow_code(compiled) == []


@pytest.mark.usefixtures("extended")
def test_the_tuner_s_reference_has_their_definitions(tmp_path: Path) -> None:
    """The generated rows in front of the reference, compiled for the host."""
    steps, include_dirs = reference_steps()
    program = compile_program(tmp_path / "steps.cu", steps + _REFERENCE, include_dirs)
    lines = subprocess.run([str(program)], capture_output=True, text=True, check=True).stdout
    found = np.array([line.split() for line in lines.splitlines()], dtype=float)
    x = np.linspace(-4, 4, 33)
    assert found[:, 0] == pytest.approx(x)
    assert found[:, 1] == pytest.approx(STEEP_SWISH.reference(x, None), rel=1e-12, abs=1e-15)
    assert found[:, 2] == pytest.approx(CELU.reference(x, None, 0.5), rel=1e-12, abs=1e-15)


def test_without_extensions_the_reference_is_as_it_lies() -> None:
    assert reference_steps() == ("", ())


@pytest.mark.parametrize("wrong", [("f()", "a.h"), ("f", "folder/a.h"), ("", "a.h")])
def test_definitions_are_names(wrong: tuple[str, str]) -> None:
    with pytest.raises(ValueError, match=r"name of a C\+\+ function"):
        Definition(*wrong)


@pytest.mark.usefixtures("extended")
def test_objects_are_made_anew_where_its_header_changes(tmp_path: Path) -> None:
    text = (EXTENSION.include_dirs[0] / STEEP_SWISH.header).read_text()
    keys = []
    for name, factor in (("a", "1.5f"), ("b", "1.4f")):
        (tmp_path / name).mkdir()
        (tmp_path / name / STEEP_SWISH.header).write_text(text.replace("1.5f", factor))
        # one directory, so that the command is the same
        (tmp_path / "include").unlink(missing_ok=True)
        (tmp_path / "include").symlink_to(tmp_path / name)
        unit = dataclasses.replace(_unit(), include_dirs=(tmp_path / "include",))
        keys.append(unit_key(unit, find_toolchain()))
    assert keys[0] != keys[1]


@pytest.mark.usefixtures("extended")
def test_its_cost_is_predicted() -> None:
    """Its instructions count: a cheaper step's kernel is not slower."""
    problem = GemmProblem(8192, 4096, 64, DType.F16, DType.F16, ("Bias", STEP))
    relu = dataclasses.replace(problem, chain=("Bias", "Relu"))
    ours, cheaper = (ranked(each, get(80))[0][0] for each in (problem, relu))
    assert ours > cheaper
    *_, own = limits_of(problem, problem.reference)
    assert own == STEEP_SWISH.accuracy.own


@pytest.mark.usefixtures("extended")
def test_it_is_in_reports_and_lock_files(tmp_path: Path) -> None:
    out, again, lock = (tmp_path / name for name in ("out.onnx", "again.onnx", "model.lock"))
    _optimized(out, lock=lock)
    _optimized(again, lock=lock, frozen=True)
    assert out.read_bytes() == again.read_bytes()
    (node,) = inspect_model(onnx.load(out)).nodes
    assert STEP in node.op_type


def test_a_model_that_has_it_needs_it(tmp_path: Path) -> None:
    with extended_by(EXTENSION):
        _optimized(tmp_path / "out.onnx")
    model = onnx.load(tmp_path / "out.onnx")
    with pytest.raises(InputError, match="needs the extension activations, which is not installed"):
        manifest_of_model(model)


def test_without_it_the_nodes_stay_as_they_are(tmp_path: Path) -> None:
    report = _optimized(tmp_path / "out.onnx")
    assert report.passed
    written = [node.op_type for node in onnx.load(tmp_path / "out.onnx").graph.node]
    assert "Sigmoid" in written
    assert all(STEP not in op for op in written)
