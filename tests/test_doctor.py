"""Findings about a machine and a model: what is broken, what is only missing, and the remedies."""

from __future__ import annotations

import importlib.metadata
import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

import onnxbolt
from onnxbolt import doctor, extensions, gpu, library
from onnxbolt.cli import main
from onnxbolt.codegen import nvcc
from onnxbolt.doctor import Finding, State, diagnose
from onnxbolt.errors import InputError, ToolchainError
from onnxbolt.library import metadata
from onnxbolt.library_file import Library, exported
from onnxbolt.ops.functions import DOMAIN
from onnxbolt.runtime import CUDA
from tests.conftest import ROOT
from tests.support import Net

COMPILES = doctor._does_not_compile


@pytest.fixture(autouse=True)
def compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trial of the compiler takes seconds, so that only its own tests make it."""
    monkeypatch.setattr(doctor, "_does_not_compile", lambda _: "")


def of(subject: str, model: Path | None = None) -> list[Finding]:
    return [each for each in diagnose(model).findings if each.subject == subject]


def only(subject: str, model: Path | None = None) -> Finding:
    (found,) = of(subject, model)
    assert bool(found.remedy) == (found.state is not State.OK), found
    return found


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model of one product, without a library."""
    return written(tmp_path / "out.onnx")


def written(out: Path) -> Path:
    net = Net({"x": [4, 64]})
    source = net.model(net.node("Relu", net.linear("x", 64, 32)))
    onnxbolt.optimize(source, out, fuse="all", archs="sm_90a", library=False, verify=False)
    return out


@pytest.fixture(scope="module")
def library_file(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The library of `model`."""
    path = tmp_path_factory.mktemp("library") / "out.onnx"
    return library.build_for(written(path)).read_bytes()


def with_gpu(patch: pytest.MonkeyPatch, capability: tuple[int, int] = (9, 0)) -> None:
    arch = {(9, 0): "sm_90a", (8, 0): "sm_80"}.get(capability)
    patch.setattr(gpu, "compute_capability", lambda: capability)
    patch.setattr(gpu, "driver_version", lambda: (13, 0))
    patch.setattr(gpu, "local_arch", lambda: arch)
    patch.setattr(gpu, "name", lambda: "NVIDIA H200")


def test_this_machine_is_sound(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_does_not_compile", COMPILES)
    found = diagnose()
    assert found.sound, found.text()
    findings = {each.subject: each for each in found.findings}
    assert findings["compiler"].state is State.OK
    assert findings["CUTLASS"].words.startswith("4.")
    assert "CPUExecutionProvider" in findings["ONNX Runtime"].words
    assert main(["doctor"]) == 0
    assert capfd.readouterr().out.endswith("nothing is broken\n")


def test_each_finding_that_is_not_in_order_has_a_remedy() -> None:
    for each in diagnose().findings:
        assert bool(each.remedy) == (each.state is not State.OK), each


def test_no_compiler_is_missing_and_a_bad_one_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> None:
        raise ToolchainError(f"no CUDA compiler found. {nvcc.remedy()}")

    monkeypatch.setattr(doctor, "find_toolchain", none)
    monkeypatch.setattr(doctor, "is_absent", lambda: True)
    assert only("compiler") == Finding(
        "compiler", State.MISSING, "no CUDA compiler found", nvcc.remedy()
    )
    monkeypatch.setattr(doctor, "is_absent", lambda: False)
    assert only("compiler").state is State.BROKEN
    assert diagnose().sound is False


def test_a_compiler_that_compiles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_does_not_compile", COMPILES)
    monkeypatch.setattr(doctor, "_SOURCE", "#error no header\n")
    found = only("compiler")
    assert found.state is State.BROKEN
    assert "no header" in found.words


def test_the_compiler_is_absent_only_where_there_is_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.setattr(nvcc, "_wheel_root", lambda: None)
    assert nvcc.is_absent()
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert not nvcc.is_absent()


def test_an_onnxruntime_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def providers() -> list[str]:
        raise ImportError("libonnxruntime.so: cannot open")

    monkeypatch.setattr(doctor, "_providers", providers)
    found = only("ONNX Runtime")
    assert found.state is State.BROKEN
    assert "libonnxruntime.so" in found.words
    assert of("CUDA provider") == []


def test_the_doctor_starts_without_onnxruntime() -> None:
    """Else it could not say that it is missing."""
    code = (
        "import sys; sys.modules['onnxruntime'] = None; from onnxbolt import doctor;"
        " doctor._does_not_compile = lambda _: ''; sys.exit(doctor.diagnose().sound)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_two_packages_of_onnxruntime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "1.31.0")
    found = only("ONNX Runtime")
    assert found.state is State.BROKEN
    assert "two packages share one folder" in found.words


@pytest.mark.parametrize(
    ("providers", "failure", "state", "words"),
    [
        (["CPUExecutionProvider"], "", State.BROKEN, "has none"),
        ([CUDA], "libcudnn.so.9 is missing", State.BROKEN, "libcudnn.so.9"),
        ([CUDA], "", State.OK, "runs on the GPU"),
    ],
)
def test_the_cuda_provider_on_a_machine_with_a_gpu(
    providers: list[str],
    failure: str,
    state: State,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with_gpu(monkeypatch)
    monkeypatch.setattr(doctor, "_providers", lambda: providers)
    monkeypatch.setattr(doctor, "cuda_failure", lambda: failure)
    found = only("CUDA provider")
    assert found.state is state
    assert words in found.words
    assert only("GPU").words == "NVIDIA H200, sm_90, served by kernels for sm_90a"


def test_drivers_and_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "driver_version", lambda: None)
    monkeypatch.setattr(gpu, "compute_capability", lambda: None)
    assert only("driver").state is State.MISSING
    monkeypatch.setattr(gpu, "driver_version", lambda: (13, 0))
    assert only("GPU").state is State.BROKEN
    with_gpu(monkeypatch, (6, 1))
    assert only("GPU").state is State.MISSING
    with_gpu(monkeypatch)
    assert only("driver").words == "runs programs of CUDA 13.0"
    monkeypatch.setattr(gpu, "driver_version", lambda: (12, 8))
    first, second = of("driver")
    assert (first.state, second.state) == (State.OK, State.BROKEN)
    assert "update the driver" in second.remedy


def test_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ONNXBOLT_CACHE_SIZE", "much")
    assert "ONNXBOLT_CACHE_SIZE is 'much'" in only("cache").words
    monkeypatch.setenv("ONNXBOLT_CACHE_SIZE", "1GiB")
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    monkeypatch.setenv("ONNXBOLT_CACHE_DIR", str(shared))
    assert only("cache").state is State.BROKEN
    shared.chmod(0o700)
    assert only("cache").words == f"{shared}, 0 MiB of at most 1024"
    usage = shutil.disk_usage(tmp_path)._replace(free=2**20)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    assert "only 1 MiB of the disk are free" in only("cache").words


def test_a_finding_has_the_remedy_of_its_error_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = only("model", tmp_path / "none.onnx")
    assert found.words.endswith("cannot be read: No such file or directory")
    assert found.remedy == "name a file that exists"

    def no_gcc() -> None:
        raise ToolchainError("nvcc needs g++ on the PATH. Install it (apt-get install g++)")

    monkeypatch.setattr(doctor, "find_toolchain", no_gcc)
    found = only("compiler")
    assert (found.words, found.remedy) == (
        "nvcc needs g++ on the PATH",
        "Install it (apt-get install g++)",
    )
    monkeypatch.setenv("ONNXBOLT_CACHE_DIR", "/proc/nothing")
    found = only("cache")
    assert found.words.startswith("/proc/nothing cannot be created or used")
    assert found.remedy == "set ONNXBOLT_CACHE_DIR to another directory"


def test_commands_of_remedies_can_be_pasted(tmp_path: Path) -> None:
    path = tmp_path / "a model's copy.onnx"
    net = Net({"x": [4, 64]})
    onnx.save(net.model(net.node("Relu", "x")), path)
    assert shlex.split(only("model", path).remedy) == [
        "onnxbolt",
        "optimize",
        str(path),
        "OUT.onnx",
    ]


def test_extensions_that_do_not_load(monkeypatch: pytest.MonkeyPatch) -> None:
    def load() -> None:
        raise InputError("extension x needs another version")

    monkeypatch.setattr(extensions, "load", load)
    assert only("extensions").words == "extension x needs another version"


def test_models(model: Path, tmp_path: Path) -> None:
    assert only("model", model).words == f"{model}: 1 fused node"
    missing = only("library", model)
    assert (missing.state, missing.remedy) == (State.MISSING, f"onnxbolt build {model}")
    assert only("model", tmp_path / "none.onnx").state is State.BROKEN
    plain = tmp_path / "plain.onnx"
    net = Net({"x": [4, 64]})
    onnx.save(net.model(net.node("Relu", "x")), plain)
    assert "was not optimized" in only("model", plain).words
    onnxbolt.optimize(plain, tmp_path / "nothing.onnx", library=False, verify=False)
    assert only("model", tmp_path / "nothing.onnx").state is State.OK


def test_a_model_of_another_version(model: Path) -> None:
    other = onnx.load(model)
    entries = {"onnxbolt.digest": "0" * 64, "onnxbolt.version": "0.0.9"}
    onnx.helper.set_model_props(other, metadata(other) | entries)
    onnx.save(other, model)
    found = only("model", model)
    assert found.state is State.MISSING
    assert "written by onnxbolt 0.0.9" in found.words
    assert only("library", model).remedy.startswith("write it anew: onnxbolt optimize")


def test_a_damaged_model(model: Path) -> None:
    other = onnx.load(model)
    node = next(node for node in other.graph.node if node.domain == DOMAIN)
    node.attribute.remove(next(a for a in node.attribute if a.name == "format"))
    onnx.save(other, model)
    assert only("model", model).state is State.BROKEN
    assert of("library", model) == []


def test_libraries(model: Path, library_file: bytes, capfd: pytest.CaptureFixture[str]) -> None:
    path = onnxbolt.get_library_path(model)
    path.write_bytes(b"no library")
    assert "damaged or not an onnxbolt library" in only("library", model).words
    assert main(["doctor", str(model), "--log-format", "json"]) == 1
    values = json.loads(capfd.readouterr().out)
    assert (values["event"], values["sound"]) == ("diagnosis", False)
    assert values["findings"][-1]["state"] == "broken"
    path.write_bytes(library_file)
    found = only("library", model)
    assert found.state is State.OK
    assert found.words.endswith("kernels for sm_90")
    content = library_file
    assert exported(content) == frozenset(doctor._SYMBOLS)
    path.write_bytes(content.replace(b"onnxbolt_probe\0", b"onnxbolt_prabe\0"))
    assert only("library", model).words.endswith("lacks onnxbolt_probe")
    digest = metadata(onnx.load(model))["onnxbolt.digest"].encode()
    path.write_bytes(content.replace(digest, b"1" * 64))
    assert "belongs to another model" in only("library", model).words
    path.write_bytes(content[: len(content) // 2])
    assert only("library", model).state is State.BROKEN


def test_a_library_that_does_not_run_on_the_gpu(
    model: Path, library_file: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    onnxbolt.get_library_path(model).write_bytes(library_file)
    with_gpu(monkeypatch, (8, 0))
    monkeypatch.setattr(doctor, "cuda_failure", lambda: "")
    answer = (0, "it holds kernels for sm_90a alone")
    monkeypatch.setattr(Library, "probe", lambda _: answer)
    held, found = of("library", model)
    assert (held.state, found.state) == (State.OK, State.BROKEN)
    assert found.remedy == "onnxbolt optimize with --arch sm_80"
    answer = (80, "")
    assert of("library", model)[1].words == "kernels for sm_80 run on this GPU"


def test_hostile_names(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a \x1b[2J.onnx"
    net = Net({"x": [4, 64]})
    onnx.save(net.model(net.node("Relu", "x")), path)
    assert main(["doctor", str(path)]) == 0
    assert "\x1b" not in capfd.readouterr().out
