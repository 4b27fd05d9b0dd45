"""An extension's architectures are planned for by their facts, compiled for, inspected, locked, and
verified."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import onnxbolt
from onnxbolt import Report
from onnxbolt.archs import Arch, Capability
from onnxbolt.codegen.artifacts import compile_units
from onnxbolt.errors import InputError
from onnxbolt.families import FAMILIES
from onnxbolt.inspection import inspect_model
from onnxbolt.library import manifest_of_model, units
from tests.codegen.compilation import DeviceToolchain, slow_code, watchful
from tests.extending import extended_by
from tests.extending.architectures import BLACKWELL, EIGHTH, EXTENSION
from tests.support import Net

ROWS, INNER, COLUMNS = 512, 128, 256


@pytest.fixture
def extended() -> Iterator[None]:
    """The architectures as an extension adds them."""
    with extended_by(EXTENSION):
        yield


def _source() -> onnx.ModelProto:
    net = Net({"x": (ROWS, INNER)})
    return net.model(net.node("Relu", net.linear("x", INNER, COLUMNS)))


def _optimized(out: Path, archs: object, **options: object) -> Report:
    chosen = {"archs": archs, "fuse": "all", "library": False} | options
    return onnxbolt.optimize(_source(), out, **chosen)  # type: ignore[arg-type]


@pytest.mark.usefixtures("extended")
@pytest.mark.parametrize("arch", [BLACKWELL, EIGHTH], ids=lambda arch: arch.name)
def test_it_is_planned_for_compiled_and_verified(arch: Arch, tmp_path: Path) -> None:
    report = _optimized(tmp_path / "out.onnx", arch.name)
    assert report.passed
    model = onnx.load(tmp_path / "out.onnx")
    (node,) = inspect_model(model).nodes
    (config,) = node.configs
    assert config.arch == arch.number
    assert arch.capabilities >= config.family.needs
    (unit,) = [unit for unit in units(manifest_of_model(model)) if unit.arch]
    toolchain = watchful(DeviceToolchain)
    target = f"-gencode=arch=compute_{arch.nvcc},code=sm_{arch.nvcc}"
    assert target in unit.command(toolchain, "unit.cu", "unit.o")
    (compiled,) = compile_units([unit], toolchain)
    assert slow_code(compiled) == []


@pytest.mark.usefixtures("extended")
def test_families_serve_it_by_what_it_can_do() -> None:
    served = {family.name for family in FAMILIES.values() if BLACKWELL.has(*family.needs)}
    assert {"gemm_2x", "conv_2x", "b2b_gemm_2x", "elementwise"} <= served
    hopper = {f.name for f in FAMILIES.values() if Capability.WGMMA in f.needs}
    assert not served & hopper
    assert all(EIGHTH.has(*family.needs) for family in FAMILIES.values())


@pytest.mark.usefixtures("extended")
def test_its_facts_predict_times(tmp_path: Path) -> None:
    (node,) = _optimized(tmp_path / "out.onnx", ("sm_90a", EIGHTH.name)).fused
    whole, eighth = node.predicted
    assert (whole.arch, eighth.arch) == (90, EIGHTH.number)
    assert eighth.ours_us > whole.ours_us


@pytest.mark.usefixtures("extended")
def test_its_model_runs_in_plain_onnx_runtime(tmp_path: Path) -> None:
    _optimized(tmp_path / "out.onnx", BLACKWELL.name, precision="keep")
    x = np.random.default_rng(0).standard_normal((ROWS, INNER)).astype(np.float32)
    results = [
        onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, {"x": x})
        for model in (_source().SerializeToString(), tmp_path / "out.onnx")
    ]
    np.testing.assert_allclose(results[1][0], results[0][0], rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("extended")
def test_it_is_in_lock_files(tmp_path: Path) -> None:
    out, again, lock = (tmp_path / name for name in ("out.onnx", "again.onnx", "model.lock"))
    _optimized(out, (BLACKWELL.name, EIGHTH.name), lock=lock)
    _optimized(again, (), lock=lock, frozen=True)
    assert out.read_bytes() == again.read_bytes()


def test_its_models_and_lock_files_need_it(tmp_path: Path) -> None:
    out, lock = tmp_path / "out.onnx", tmp_path / "model.lock"
    with extended_by(EXTENSION):
        _optimized(out, BLACKWELL.name, lock=lock)
    with pytest.raises(InputError, match="needs the extension architectures, which is not inst"):
        inspect_model(onnx.load(out))
    with pytest.raises(InputError, match="needs the extension architectures, which is not inst"):
        _optimized(out, (), lock=lock, frozen=True)
