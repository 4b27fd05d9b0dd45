"""Options for several GPUs: which are refused, and what they need."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from onnxbolt.cli import main
from onnxbolt.errors import InputError
from onnxbolt.options import Choices, Options
from onnxbolt.tune.cluster import standing_in
from tests.tune.local_gpu import Gpu, net


@pytest.mark.parametrize(
    ("choices", "why"),
    [
        (Choices(gpus="all"), "it needs tune=True"),
        (Choices(scheduler="tls://host:8786"), "it needs tune=True"),
        (Choices(gpus=0, tune=True), "a number from 1 on, or all"),
        (Choices(gpus="most", tune=True), "a number from 1 on, or all"),
        (Choices(gpus=2, scheduler="tls://host:8786", tune=True), "give only one of them"),
        (Choices(insecure=True, tune=True), "insecure=True is about scheduler"),
    ],
)
def test_options_that_contradict_each_other_are_refused(choices: Choices, why: str) -> None:
    with pytest.raises(InputError, match=why):
        Options(**choices)


def test_without_the_extra_the_error_names_it(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("onnxbolt.gpu.uuids", lambda: ("GPU-0", "GPU-1"))
    monkeypatch.delitem(sys.modules, "onnxbolt.tune.cluster.connecting", raising=False)
    monkeypatch.setitem(sys.modules, "dask", None)
    monkeypatch.setattr(standing_in, "profiler_library", lambda _: pytest.fail("compiled before"))
    onnx.save(net(), tmp_path / "net.onnx")
    assert main(["tune", str(tmp_path / "net.onnx"), "--gpus", "all"]) == 1
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("error: --gpus all needs dask, which is not installed")
    assert error.endswith("pip install 'onnxbolt[cluster]'")


def test_one_gpu_needs_no_extra(gpu: Gpu, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("onnxbolt.gpu.uuids", lambda: ("GPU-0",))
    monkeypatch.setitem(sys.modules, "dask", None)
    onnx.save(net(), tmp_path / "net.onnx")
    assert main(["tune", str(tmp_path / "net.onnx"), "--gpus", "all", "-q"]) == 0
    assert gpu.measured


def test_more_gpus_than_there_are_is_an_error(
    gpu: Gpu, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    onnx.save(net(), tmp_path / "net.onnx")
    assert main(["tune", str(tmp_path / "net.onnx"), "--gpus", "4"]) == 1
    assert "--gpus 4: this machine has " in capsys.readouterr().err


def test_dask_is_imported_by_nobody_else() -> None:
    program = "import sys, onnxbolt.pipeline, onnxbolt.runtime; print(*sys.modules)"
    printed = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.split()
    assert "onnxbolt.tune.stage" in printed
    assert not {"dask", "distributed", "psutil"} & set(printed)
