"""An extension's kernel family is planned, predicted, rendered, compiled, inspected, locked, tuned,
and verified."""

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
from onnxbolt.codegen.render import Instance, include_dirs_of, render_unit
from onnxbolt.dtypes import DType
from onnxbolt.errors import FrozenError, InputError
from onnxbolt.families import config_from
from onnxbolt.inspection import inspect_model
from onnxbolt.library import manifest_of_model, units
from onnxbolt.measurements.records import Measurement, Status
from onnxbolt.plan.cost import ranked
from onnxbolt.problems import GemmProblem
from onnxbolt.tune.database import Database
from onnxbolt.tune.soundness import check_problem
from onnxbolt.tune.tasks import tasks_of
from tests.codegen.compilation import DeviceToolchain, slow_code, watchful
from tests.extending import extended_by
from tests.extending.gemm_fma import EXTENSION, GEMM_FMA, GemmFmaConfig
from tests.support import Net

ROWS, INNER, COLUMNS = 96, 70, 50
PROBLEM = GemmProblem(4096, 512, 512, DType.F32, DType.F32, ("Bias", "Relu"))


@pytest.fixture
def extended() -> Iterator[None]:
    """The family as an extension adds it."""
    with extended_by(EXTENSION):
        yield


def _source() -> onnx.ModelProto:
    net = Net({"x": (ROWS, INNER)})
    return net.model(net.node("Relu", net.linear("x", INNER, COLUMNS)))


def _optimized(out: Path, **options: object) -> Report:
    """fp32 on sm_75, whose tensor cores lack the type."""
    chosen = {"archs": "sm_75", "precision": "keep", "fuse": "all", "library": False} | options
    return onnxbolt.optimize(_source(), out, **chosen)  # type: ignore[arg-type]


def test_without_it_there_is_no_kernel(tmp_path: Path) -> None:
    report = _optimized(tmp_path / "out.onnx")
    assert not report.fused
    assert "sm_75 has no tensor-core kernel for f32" in report.text()


@pytest.mark.usefixtures("extended")
def test_it_is_planned_and_verified(tmp_path: Path) -> None:
    report = _optimized(tmp_path / "out.onnx")
    assert report.passed
    assert [node.op for node in report.fused] == ["FusedGemm_Bias_Relu_f32"]
    (node,) = inspect_model(onnx.load(tmp_path / "out.onnx")).nodes
    (config,) = node.configs
    assert isinstance(config, GemmFmaConfig)
    assert inspect_model(onnx.load(tmp_path / "out.onnx")).text().count("sm_75 gemm_fma tile ") == 1


@pytest.mark.usefixtures("extended")
def test_its_nodes_run_in_plain_onnx_runtime(tmp_path: Path) -> None:
    _optimized(tmp_path / "out.onnx")
    x = np.random.default_rng(0).standard_normal((ROWS, INNER)).astype(np.float32)
    results = [
        onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, {"x": x})
        for model in (_source().SerializeToString(), tmp_path / "out.onnx")
    ]
    np.testing.assert_allclose(results[1][0], results[0][0], rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("extended")
def test_its_units_include_its_header(tmp_path: Path) -> None:
    _optimized(tmp_path / "out.onnx")
    (unit,) = [u for u in units(manifest_of_model(onnx.load(tmp_path / "out.onnx"))) if u.arch]
    assert unit.name == "gemm_fma_sm75_0.cu"
    assert '#include "families/gemm_fma/kernel.h"\n' in unit.text
    assert unit.include_dirs == EXTENSION.include_dirs


@pytest.mark.usefixtures("extended")
def test_its_kernels_compile() -> None:
    configs = GEMM_FMA.candidates(PROBLEM, get(80))
    chain = ("Bias", "Add", "Relu")
    instances = [Instance(config, DType.F16, DType.F32, chain) for config in configs]
    unit = Unit("gemm_fma.cu", render_unit(instances), 80, include_dirs_of(instances))
    (compiled,) = compile_units([unit], watchful(DeviceToolchain))
    assert slow_code(compiled) == []


@pytest.mark.usefixtures("extended")
def test_its_time_is_predicted_beside_others() -> None:
    best: dict[str, float] = {}
    for us, config in ranked(PROBLEM, get(80)):
        best.setdefault(config.family.name, us)
    assert best["gemm_2x"] < best["gemm_fma"]  # tensor cores multiply TF32 eight times as fast
    larger = dataclasses.replace(PROBLEM, k=1024)
    assert ranked(larger, get(75))[0][0] > ranked(PROBLEM, get(75))[0][0]


@pytest.mark.usefixtures("extended")
def test_its_configurations_are_in_lock_files(tmp_path: Path) -> None:
    out, again, lock = (tmp_path / name for name in ("out.onnx", "again.onnx", "model.lock"))
    _optimized(out, lock=lock)
    _optimized(again, lock=lock, frozen=True)
    assert out.read_bytes() == again.read_bytes()
    assert '"kernel": "sm_75 gemm_fma tile ' in lock.read_text()


def test_another_version_of_it_needs_another_lock_file(tmp_path: Path) -> None:
    lock, folder = tmp_path / "model.lock", tmp_path / "include" / "families" / "gemm_fma"
    with extended_by(EXTENSION):
        _optimized(tmp_path / "out.onnx", lock=lock)
    folder.mkdir(parents=True)
    folder.joinpath("kernel.h").write_text("// another one\nint x;")
    other = dataclasses.replace(EXTENSION, include_dirs=(tmp_path / "include",))
    with (
        extended_by(other),
        pytest.raises(FrozenError, match="with the extensions gemm_fma, whose"),
    ):
        _optimized(tmp_path / "again.onnx", lock=lock, frozen=True)
    with pytest.raises(InputError, match="needs the extension gemm_fma, which is not installed"):
        _optimized(tmp_path / "again.onnx", lock=lock, frozen=True)


@pytest.mark.usefixtures("extended")
def test_it_is_tuned_beside_others(tmp_path: Path) -> None:
    ((task),) = tasks_of([PROBLEM], get(80), trials=6)
    mine = [ranked.config for ranked in task.candidates if ranked.config.family.number == 1000]
    assert mine
    with Database(tmp_path / "tuning.sqlite") as database:
        database.add(Measurement("key", mine[0], Status.OK, us=3.0, runs=5))
        best = database.best("key")
    assert best is not None
    assert best.config == mine[0]
    check_problem(PROBLEM, mine[0])


def test_its_measurements_need_it(tmp_path: Path) -> None:
    (config, *_) = GEMM_FMA.candidates(PROBLEM, get(80))
    with Database(tmp_path / "tuning.sqlite") as database:
        database.add(Measurement("key", config, Status.OK, us=3.0, runs=5))
        with pytest.raises(InputError, match=r"no kernel family 1000; .* install the package"):
            database.measurements("key")
        database.export(tmp_path / "export.jsonl")
        assert database.clear() == 1
        with pytest.raises(InputError, match=r"export.* extension's kernel .*, then merge"):
            database.merge(tmp_path / "export.jsonl")


@pytest.mark.usefixtures("extended")
@pytest.mark.parametrize("fields", [{"tile": (64, 62, 16)}, {"thread": (1, 1)}, {"thread": (0, 4)}])
def test_rows_that_no_kernel_has_are_refused(fields: dict[str, tuple[int, ...]]) -> None:
    (config, *_) = GEMM_FMA.candidates(PROBLEM, get(80))
    with pytest.raises(ValueError, match="no kernel of gemm_fma has such"):
        config_from(dataclasses.replace(config, **fields).row())  # type: ignore[arg-type]
