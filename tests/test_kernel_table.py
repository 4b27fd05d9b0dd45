"""The table of ONNX Runtime's CUDA kernels: what it says of releases, how it is chosen, and that
it is what the releases register."""

from __future__ import annotations

import json
import shutil
from importlib import metadata
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnxruntime.capi import onnxruntime_pybind11_state

from onnxbolt import pipeline
from onnxbolt.cli import main
from onnxbolt.dtypes import DType
from onnxbolt.errors import InputError
from onnxbolt.graph.importer import import_model
from onnxbolt.graph.shapes import infer
from onnxbolt.precision import Kept, convert
from onnxbolt.precision import kernel_table as table
from onnxbolt.tune.lockfile import Lock
from tests import ort_kernels

ATTENTION = onnx.parser.parse_model(
    """<ir_version: 10, opset_import: ["": 23]>
    g (float[1,2,4,8] q, float[1,2,4,8] k, float[1,2,4,8] v)
    => (float[1,2,4,8] y) { y = Attention(q, k, v) }"""
)


@pytest.mark.parametrize(
    ("release", "precision", "stays"),
    [
        ("1.24", "fp16", True),
        ("1.25", "fp16", False),
        ("1.25.1", "bf16", False),
        ("1.24.4", "bf16", True),
    ],
)
def test_attention_has_16_bit_kernels_since_1_25(release: str, precision: str, stays: bool) -> None:
    graph = import_model(ATTENTION)
    infer(graph)
    kept = convert(graph, precision, table.kernels_of(release))
    reason = f"ONNX Runtime 1.24 has no {'f16' if precision == 'fp16' else 'bf16'} CUDA kernel"
    assert kept == ([Kept(kept[0].node, "Attention", reason)] if stays else [])
    assert all(
        (t.dtype == np.float32) == stays
        for node in graph.nodes
        if node.op == "Attention"
        for t in node.inputs
    )


def test_an_open_kernel_is_for_the_version_that_it_names() -> None:
    assert table.Kernel("Conv", 11, table.OPEN, "f16").serves(11)
    assert not table.Kernel("Conv", 11, table.OPEN, "f16").serves(22)
    assert table.Kernel("Conv", 1, 10, "f16").serves(6)
    assert not table.Kernel("Conv", 11, 21, "f16").serves(22)


@pytest.mark.parametrize(
    ("op", "opset", "dtype", "release", "expected"),
    [
        ("Clip", 11, DType.F16, "1.31", False),  # version 11 has one for fp32 alone
        ("Clip", 13, DType.F16, "1.31", True),
        # on the CPU in any type, since none is for version 22
        ("Conv", 22, DType.F16, "1.20", True),
        ("Conv", 22, DType.BF16, "1.24", True),
        ("Conv", 21, DType.BF16, "1.24", False),
        ("Erf", 13, DType.BF16, "1.31", True),
        ("HardSwish", 14, DType.F16, "1.20", True),  # a function
        ("Asin", 22, DType.F16, "1.31", False),
    ],
)
def test_the_table_has_a_kernel_for_operator_opset_and_type(
    op: str, opset: int, dtype: DType, release: str, expected: bool
) -> None:
    assert table.kernels_of(release).has(op, opset, dtype) is expected


def test_the_installed_onnxruntime_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "installed", lambda: "1.24.4")
    assert table.kernels_of().release == "1.24"
    assert table.kernels_of("1.22").release == "1.22"
    monkeypatch.setattr(table, "installed", lambda: "")
    assert table.kernels_of().release == table.releases()[-1]


def test_later_releases_count_as_the_newest_known() -> None:
    assert table.kernels_of("99.0").release == table.releases()[-1]


@pytest.mark.parametrize(
    ("version", "message"),
    [
        ("1.19.2", "the kernels of ONNX Runtime 1.20 to"),
        ("new", "give a release"),
        ("1", "give a release"),
    ],
)
def test_unknown_versions(version: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        table.kernels_of(version)


def test_the_table_is_written_as_it_is_read() -> None:
    assert (
        table.text({name: table.kernels_of(name).kernels for name in table.releases()})
        == table.PATH.read_text()
    )


@pytest.mark.parametrize(
    ("op", "version", "parameter"),
    [
        ("Attention", 23, "T1"),
        ("Conv", 11, "T"),
        ("OneHot", 11, "T3"),
        ("Resize", 19, "T1"),
        ("ConstantOfShape", 9, "T2"),
        ("Shape", 13, "T"),
    ],
)
def test_the_type_that_decides_is_that_of_the_data(op: str, version: int, parameter: str) -> None:
    assert table.deciding_parameter(op, version) == parameter


def test_operators_of_onnxruntime_alone_are_left_out() -> None:
    assert ort_kernels.kernels("MemcpyToHost", 1, table.OPEN, {"T": ["tensor(float)"]}) == set()
    assert {
        kernel.dtype
        for kernel in ort_kernels.kernels(
            "Relu", 14, table.OPEN, {"T": ["tensor(float16)", "tensor(double)"]}
        )
    } == {"f16"}


def test_the_table_is_what_the_installed_onnxruntime_registers() -> None:
    try:
        gpu = metadata.distribution("onnxruntime-gpu")
    except metadata.PackageNotFoundError:
        pytest.skip("onnxruntime-gpu is not installed")
    name = table.release(gpu.version)
    if name not in table.releases():
        pytest.skip(f"the table does not have {name}: renew it, see tests/ort_kernels.py")
    try:
        found = ort_kernels.registered(Path(str(gpu.locate_file(""))))
    except ort_kernels.UnreadableError as error:
        pytest.skip(f"the registry cannot be read: {error}")
    assert found == table.kernels_of(name).kernels


def test_a_registry_without_the_cuda_provider_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "onnxruntime" / "capi").mkdir(parents=True)
    with pytest.raises(ort_kernels.UnreadableError):
        ort_kernels.registered(tmp_path)


def test_a_crash_is_no_empty_registry(tmp_path: Path) -> None:
    """The package is one whose reading ends the process, and any library stands for CUDA's
    provider."""
    capi = tmp_path / "onnxruntime" / "capi"
    capi.mkdir(parents=True)
    (tmp_path / "onnxruntime" / "__init__.py").write_text("import os\nos.abort()\n")
    shutil.copy(onnxruntime_pybind11_state.__file__, capi / ort_kernels.CUDA)
    with pytest.raises(ort_kernels.UnreadableError, match="ended with -6"):
        ort_kernels.registered(tmp_path)


def optimize(directory: Path, *flags: str) -> int:
    onnx.save(ATTENTION, directory / "in.onnx")
    files = str(directory / "in.onnx"), str(directory / "out.onnx")
    return main(["optimize", *files, "--arch", "sm_90a", "--no-library", "--no-verify", *flags])


def test_report_and_lock_name_the_release(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lock, report = tmp_path / "onnxbolt.lock", tmp_path / "report.json"
    assert (
        optimize(tmp_path, "--ort-version", "1.24.4", "--lock", str(lock), "--report", str(report))
        == 0
    )
    assert "follows from the CUDA kernels of ONNX Runtime 1.24\n" in capsys.readouterr().out
    values = json.loads(report.read_text())
    assert (values["onnxruntime"], values["kept"][0]["op"]) == ("1.24", "Attention")
    assert Lock.read(lock).onnxruntime == "1.24"


def test_frozen_takes_the_release_of_the_lock(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lock = str(tmp_path / "onnxbolt.lock")
    assert optimize(tmp_path, "--ort-version", "1.24", "--lock", lock) == 0
    first = (tmp_path / "out.onnx").read_bytes()
    assert optimize(tmp_path, "--lock", lock, "--frozen") == 0
    assert (tmp_path / "out.onnx").read_bytes() == first
    capsys.readouterr()
    assert optimize(tmp_path, "--lock", lock, "--frozen", "--ort-version", "1.25") == 5
    assert "was written for ONNX Runtime 1.24, not 1.25" in capsys.readouterr().err


def test_locks_without_a_release_are_read(tmp_path: Path) -> None:
    lock = tmp_path / "onnxbolt.lock"
    assert optimize(tmp_path, "--lock", str(lock)) == 0
    values = json.loads(lock.read_text())
    del values["onnxruntime"]
    lock.write_text(json.dumps(values))
    assert Lock.read(lock).onnxruntime == ""


def test_tuning_is_for_the_installed_release() -> None:
    with pytest.raises(
        InputError,
        match=(
            r"tune=True compares with the installed ONNX Runtime .* ort_version='1\.20' names"
            r" another"
        ),
    ):
        pipeline.tune(ATTENTION, ort_version="1.20")
