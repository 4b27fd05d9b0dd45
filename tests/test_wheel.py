"""The wheel holds all that is needed: installed outside the repository, it optimizes a model and
compiles its library."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import onnx
import pytest

from onnxbolt.codegen.digest import EQUAL
from onnxbolt.tune.published import FOLDER
from tests.conftest import ROOT
from tests.support import Net


def run(*command: str | Path, cwd: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("wheel")
    pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation")
    run(*pip, "--wheel-dir", directory, ROOT, cwd=directory)
    (path,) = directory.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def python(wheel: Path) -> Path:
    """The interpreter of a fresh environment with the wheel; its dependencies are those of this
    environment."""
    environment = wheel.parent / "environment"
    run(sys.executable, "-m", "venv", "--without-pip", environment, cwd=wheel.parent)
    python = environment / "bin" / "python"
    run(
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        wheel,
        cwd=wheel.parent,
    )
    (own,) = environment.glob("lib/python*/site-packages")
    # a path file's lines are searched after the environment's own packages, and .pth files in there
    # are not followed
    (own / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def test_wheel_holds_the_page_and_the_schema_of_reports(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    page = [f"onnxbolt/report/page/report.{kind}" for kind in ("css", "html.j2", "js")]
    assert {*page, "onnxbolt/report/schema.json"} <= names


def test_wheel_holds_measurements_and_the_sources_that_they_hold_for(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    published = {path.relative_to(ROOT).as_posix() for path in FOLDER.glob("*.gz")}
    assert published
    assert {*published, EQUAL.relative_to(ROOT).as_posix()} <= names


def test_wheel_holds_sources_of_the_library(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    sources = [
        path
        for folder in ("templates", "custom_ops")
        for path in (ROOT / folder).rglob("*")
        if path.is_file()
    ]
    assert sources
    assert {f"onnxbolt/{path.relative_to(ROOT)}" for path in sources} <= names
    assert not any(
        name.startswith(("models/", "tests/", "templates/", "custom_ops/")) for name in names
    )


def test_installed_wheel_optimizes_a_model(python: Path, tmp_path: Path) -> None:
    """One kernel, whose headers and those of CUTLASS have to be found. No other test compiles this
    one."""
    elsewhere = tmp_path
    net = Net({"x": (16, 64)})
    onnx.save(net.model(net.node("Relu", net.linear("x", 64, 64))), elsewhere / "small.onnx")
    assert str(ROOT) not in run(
        python, "-c", "import onnxbolt; print(onnxbolt.__file__)", cwd=elsewhere
    )
    command = python.with_name("onnxbolt")
    run(
        command,
        "optimize",
        "small.onnx",
        "fast.onnx",
        "--fuse",
        "all",
        "--arch",
        "sm_80",
        cwd=elsewhere,
    )
    onnx.checker.check_model(elsewhere / "fast.onnx")
    assert (elsewhere / "fast.onnxbolt.so").stat().st_size > 0
