"""Runs of the GPU tests begin with those that take long, a failure says why at once, and tests that
take most of a GPU's memory leave it to others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from onnxbolt.tune import cuda
from tests.conftest import ROOT
from tests.gpu.runs import LONG_FILES
from tests.gpu.test_memory import GIB, need

_FILES = {
    "conftest.py": """
from tests.gpu.runs import GpuRun

def pytest_configure(config):
    config.pluginmanager.register(GpuRun())
""",
    "test_kernels.py": """
import pytest

def test_gemm(): pass

@pytest.mark.parametrize("form", ["pool", "norm"])
def test_compute_sanitizer_finds_nothing(form): pass
""",
    "test_models.py": """
def test_right(): pass

def test_wrong():
    error = 19.5
    assert error <= 0.001, "of ResNet"
""",
}


def _run(directory: Path, *options: str) -> str:
    """The output of a run of these files, apart from the one that is under way."""
    for name, text in _FILES.items():
        (directory / name).write_text(text)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", *options]
    result = subprocess.run(
        [*command, "--rootdir", str(directory), str(directory)],
        cwd=directory,
        env={**kept, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 1, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The output of a run by one process."""
    return _run(tmp_path_factory.mktemp("alone"))


@pytest.fixture(scope="module")
def with_workers(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The output of a run by two workers."""
    return _run(tmp_path_factory.mktemp("workers"), "-n", "2")


def test_long_tests_begin_first(alone: str) -> None:
    lines = [line for line in alone.splitlines() if line.endswith("%]")]
    assert [line.split()[0].partition("::")[2] for line in lines] == [
        "test_compute_sanitizer_finds_nothing[pool]",
        "test_compute_sanitizer_finds_nothing[norm]",
        "test_right",
        "test_wrong",
        "test_gemm",
    ]


def test_long_files_are_there() -> None:
    files = {path.stem for path in (ROOT / "tests" / "gpu").glob("test_*.py")}
    assert files >= set(LONG_FILES)


@pytest.mark.parametrize("run", ["alone", "with_workers"])
def test_a_failure_says_why_before_the_end(run: str, request: pytest.FixtureRequest) -> None:
    during, end, _ = request.getfixturevalue(run).partition("= FAILURES =")
    assert end
    assert during.count("test_models.py::test_wrong failed in call") == 1
    assert during.count("AssertionError: of ResNet") == 1
    assert "assert 19.5 <= 0.001" in during


def test_workers_take_tests_from_each_other(with_workers: str, tmp_path: Path) -> None:
    assert "scheduling tests via WorkStealingScheduling" in with_workers
    chosen = _run(tmp_path, "-n", "2", "--dist", "loadfile")
    assert "scheduling tests via LoadFileScheduling" in chosen


def test_large_tests_leave_memory_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "free_memory", lambda: 72 * GIB)
    need(64 * GIB)
    with pytest.raises(pytest.skip.Exception, match=r"takes 65 GiB and leaves 8 .* 72\.0 free"):
        need(65 * GIB)
