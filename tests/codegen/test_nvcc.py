"""Finding a toolchain: the order of places, versions, and errors that name what to install."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from onnxbolt.codegen import nvcc
from onnxbolt.codegen.nvcc import Toolchain, find_toolchain
from onnxbolt.errors import ToolchainError


def fake_nvcc(root: Path, version: str = "13.0.88") -> Path:
    """A toolkit whose nvcc only tells its version."""
    path = root / "bin" / "nvcc"
    path.parent.mkdir(parents=True)
    path.write_text(
        f"#!/bin/sh\necho 'Cuda compilation tools, release {version.rpartition('.')[0]},"
        f" V{version}'\n"
    )
    path.chmod(0o755)
    return path


def fake_wheels(site: Path, *, without: str = "") -> Path:
    """The compiler's wheels, unpacked."""
    root = site / "nvidia" / "cu13"
    fake_nvcc(root)
    for wheel, file in nvcc._WHEEL_FILES.items():
        if wheel != without and not (root / file).exists():
            (root / file).parent.mkdir(parents=True, exist_ok=True)
            (root / file).touch()
    return root


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine with g++, CUTLASS's headers and no CUDA anywhere; its site-packages is the
    directory that is returned."""
    monkeypatch.delenv("CUDA_HOME", raising=False)
    path = tmp_path / "path"
    path.mkdir()
    for tool in ("g++", "sh"):
        (path / tool).symlink_to(
            next(p for d in os.get_exec_path() if (p := Path(d) / tool).exists())
        )
    monkeypatch.setenv("PATH", str(path))
    site = tmp_path / "site"
    version = site / "cutlass_library" / "source" / "include" / "cutlass" / "version.h"
    version.parent.mkdir(parents=True)
    version.touch()

    def find_spec(name: str) -> importlib.machinery.ModuleSpec | None:
        spec = importlib.machinery.ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = [str(site / name)]
        return spec if (site / name).is_dir() else None

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    return site


def test_the_toolkit_that_the_user_chose_comes_first(
    machine: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake_wheels(machine)
    system = fake_nvcc(tmp_path / "system")
    monkeypatch.setenv("PATH", f"{system.parent}:{os.environ['PATH']}")
    chosen = fake_nvcc(tmp_path / "chosen", "12.9.41")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "chosen"))
    assert find_toolchain() == Toolchain(chosen, "12.9.41", machine / "cutlass_library" / "source")
    monkeypatch.delenv("CUDA_HOME")
    assert find_toolchain().nvcc == system


def test_wheels_serve_where_the_system_has_none_or_an_old_one(
    machine: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    root = fake_wheels(machine)
    assert find_toolchain() == Toolchain(
        root / "bin" / "nvcc", "13.0.88", machine / "cutlass_library" / "source", root / "lib"
    )
    old = fake_nvcc(tmp_path / "old", "11.8.89")
    monkeypatch.setenv("PATH", f"{old.parent}:{os.environ['PATH']}")
    assert find_toolchain().nvcc == root / "bin" / "nvcc"


def test_no_compiler(machine: Path) -> None:
    with pytest.raises(
        ToolchainError,
        match=r"no CUDA compiler found.*pip install 'onnxbolt\[cuda\]'.*library=False",
    ):
        find_toolchain()


def test_old_compiler_alone(machine: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    old = fake_nvcc(tmp_path / "old", "12.4.131")
    monkeypatch.setenv("PATH", f"{old.parent}:{os.environ['PATH']}")
    with pytest.raises(ToolchainError, match=r"is CUDA 12\.4\.131: 12\.8 or later is needed"):
        find_toolchain()


@pytest.mark.parametrize(
    ("version", "message"),
    [("12.4.131", r"12\.8 or later is needed"), ("", r"does not exist. Correct CUDA_HOME")],
)
def test_chosen_toolkit_is_not_replaced(
    machine: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str, message: str
) -> None:
    fake_wheels(machine)
    if version:
        fake_nvcc(tmp_path / "chosen", version)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "chosen"))
    with pytest.raises(ToolchainError, match=message):
        find_toolchain()


@pytest.mark.parametrize(
    "wheel", [wheel for wheel in nvcc._WHEEL_FILES if wheel != "nvidia-cuda-nvcc"]
)
def test_wheel_that_is_missing_is_named(machine: Path, wheel: str) -> None:
    fake_wheels(machine, without=wheel)
    with pytest.raises(ToolchainError, match=rf"{wheel} is missing.*onnxbolt\[cuda\]"):
        find_toolchain()


def test_no_host_compiler(machine: Path, tmp_path: Path) -> None:
    fake_wheels(machine)
    (tmp_path / "path" / "g++").unlink()
    with pytest.raises(ToolchainError, match=r"g\+\+ on the PATH.*apt-get install g\+\+"):
        find_toolchain()


def test_no_cutlass(machine: Path) -> None:
    fake_wheels(machine)
    (machine / "cutlass_library").rename(machine / "elsewhere")
    with pytest.raises(ToolchainError, match=r"nvidia-cutlass.*onnxbolt\[cuda\]"):
        find_toolchain()


@pytest.mark.parametrize("text", ["exit 1", "echo something else"])
def test_compiler_that_does_not_run(machine: Path, text: str) -> None:
    path = fake_wheels(machine) / "bin" / "nvcc"
    path.write_text(f"#!/bin/sh\n{text}\n")
    with pytest.raises(ToolchainError, match=r"bin/nvcc.*(cannot be run|prints no version)"):
        find_toolchain()


def test_targets() -> None:
    toolchain = Toolchain(Path("/nvcc"), "13.0.88", Path("/cutlass"))
    assert "-gencode=arch=compute_90a,code=sm_90a" in toolchain.compile_command("a.cu", "a.o", 90)
    assert "-gencode=arch=compute_86,code=sm_86" in toolchain.compile_command("a.cu", "a.o", 86)
    assert not any("gencode" in word for word in toolchain.compile_command("a.cc", "a.o"))
    # without it ptxas serializes wgmma
    assert "-DNDEBUG" in toolchain.compile_command("a.cu", "a.o", 90)


def test_installed_wheels_compile_and_link(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The real wheels, where they are installed: their layout is not a toolkit's."""
    monkeypatch.delenv("CUDA_HOME", raising=False)
    root = nvcc._wheel_root()
    if root is None:
        pytest.skip("the wheels of onnxbolt[cuda] are not installed")
    toolchain = Toolchain(
        root / "bin" / "nvcc",
        nvcc._version(root / "bin" / "nvcc"),
        nvcc._find_cutlass(),
        root / "lib",
    )
    (tmp_path / "a.cu").write_text(
        '#include "cutlass/numeric_types.h"\n'
        "__global__ void f(cutlass::half_t* x) { *x = cutlass::half_t(1); }\n"
        'extern "C" void RegisterCustomOps() { f<<<1, 1>>>(nullptr); }\n'
    )
    for command in (
        toolchain.compile_command("a.cu", "a.o", 80),
        toolchain.link_command(["a.o"], "a.so"),
    ):
        result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert result.returncode == 0, result.stderr
    needed = subprocess.run(
        ["ldd", "a.so"], cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout
    assert "libcuda" not in needed
    assert "libstdc++" not in needed


@pytest.mark.parametrize("folder", ["f'g", 'h"i', "j`touch Y`k", "c,d", "line\nbreak"])
def test_paths_that_a_shell_would_read_otherwise_are_refused(folder: str) -> None:
    toolchain = Toolchain(Path("nvcc"), "13.0.88", Path("cutlass"), include_dirs=(Path(folder),))
    with pytest.raises(ToolchainError, match="path without quotes, backticks, commas"):
        toolchain.compile_command("unit.cu", "unit.o")


@pytest.mark.parametrize("folder", ["a b", "e$(touch X)", "l(m)", "p$HOME", "q;r&s", "t*u?"])
def test_other_paths_reach_the_compiler_as_they_are(folder: str, tmp_path: Path) -> None:
    (tmp_path / folder).mkdir()
    (tmp_path / folder / "mine.h").write_text("int mine;")
    (tmp_path / "unit.cc").write_text('#include "mine.h"')
    toolchain = replace(find_toolchain(), include_dirs=(tmp_path / folder,))
    command = toolchain.compile_command("unit.cc", "unit.o")
    subprocess.run(command, cwd=tmp_path, check=True)
    assert {path.name for path in tmp_path.iterdir()} == {folder, "unit.cc", "unit.o"}
