"""Models that need a custom-op library of somebody else are optimized, compared and measured
with it, and with it alone."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import onnx
import pytest
from onnx import ModelProto, helper

from onnxbolt import bench
from onnxbolt.cli import main
from onnxbolt.errors import InputError, LibraryError
from onnxbolt.pipeline import optimize
from onnxbolt.runtime import CUDA
from onnxbolt.verify import verify
from onnxbolt.verify.session import CPU
from tests.test_verify import drawn, model_of

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def twice(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library of tests::Twice."""
    library = tmp_path_factory.mktemp("twice") / "twice.so"
    source = ROOT / "tests" / "custom_ops" / "host" / "twice.cc"
    subprocess.run(
        [
            "g++",
            "-std=c++17",
            "-shared",
            "-fPIC",
            "-I",
            str(ROOT / "custom_ops"),
            str(source),
            "-o",
            str(library),
        ],
        check=True,
    )
    return library


def doubled(known: bool) -> ModelProto:
    """Two products with Twice between them; `known`: the model says what it makes."""
    body = "a = MatMul(x, w) b = Relu(a) c = Abs(b) d = Add(c, v) e = MatMul(d, u) y = Relu(e)"
    model = model_of(
        "(float[4,64] x) => (float[4,32] y)",
        body,
        {"w": drawn(0, 64, 128), "v": drawn(1, 128), "u": drawn(2, 128, 32)},
    )
    node = next(node for node in model.graph.node if node.op_type == "Abs")
    node.op_type, node.domain, node.name = "Twice", "tests", "twice"
    model.opset_import.append(helper.make_opsetid("tests", 1))
    if known:
        model.graph.value_info.append(
            helper.make_tensor_value_info("c", onnx.TensorProto.FLOAT, [4, 128])
        )
    return model


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("precision", ["fp16", "bf16", "keep"])
def test_models_with_operators_of_others(
    precision: str, known: bool, twice: Path, tmp_path: Path
) -> None:
    model = doubled(known)
    report = optimize(
        model,
        tmp_path / "out.onnx",
        precision=precision,
        fuse="all",
        library=False,
        custom_ops=[twice],
    )
    assert report.passed
    assert report.fused
    (node,) = (
        node for node in onnx.load(tmp_path / "out.onnx").graph.node if node.domain == "tests"
    )
    assert node.op_type == "Twice"
    result = verify(model, tmp_path / "out.onnx", providers=[CPU], custom_ops=[twice])
    assert result.passed
    # the library is not kept
    with pytest.raises(InputError, match="ONNX Runtime cannot load the original model"):
        verify(model, tmp_path / "out.onnx", providers=[CPU])


def test_a_wrong_model_with_operators_of_others_fails(twice: Path) -> None:
    wrong = doubled(known=True)
    next(node for node in wrong.graph.node if node.domain == "tests").input[0] = "a"
    assert not verify(doubled(known=True), wrong, providers=[CPU], custom_ops=[twice]).passed


def test_the_command_line(twice: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = str(tmp_path / "in.onnx"), str(tmp_path / "out.onnx")
    onnx.save(doubled(known=False), source)
    flags = ["--custom-ops", str(twice), "--log-format", "json"]
    assert main(["optimize", source, out, "--no-library", *flags]) == 0
    assert main(["verify", source, out, *flags]) == 0
    assert [json.loads(line)["event"] for line in capsys.readouterr().out.splitlines()] == [
        "report",
        "verification",
    ]
    assert main(["verify", source, out]) == 1


def test_bench_registers_them(twice: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU in the GPU's place."""
    source, out = tmp_path / "in.onnx", tmp_path / "out.onnx"
    onnx.save(doubled(known=True), source)
    optimize(source, out, library=False, precision="keep", archs=("sm_90a",), custom_ops=[twice])
    monkeypatch.setattr(bench, "Stream", lambda: None)
    monkeypatch.setattr(bench, "available_providers", lambda: (CPU, CUDA))
    assert bench.bench(source, out, runs=10, custom_ops=[twice]).speedup > 0


@pytest.mark.parametrize("kind", ["missing", "text", "other library"])
def test_files_that_are_no_such_library(kind: str, twice: Path, tmp_path: Path) -> None:
    path = tmp_path / "ops.so"
    if kind == "text":
        path.write_text("no library")
    if kind == "other library":
        subprocess.run(
            ["g++", "-shared", "-fPIC", "-x", "c++", "-", "-o", str(path)],
            input=b"int x;",
            check=True,
        )
    with pytest.raises(
        LibraryError,
        match=r"custom_ops='.*ops\.so': ONNX Runtime cannot load it as a custom-op library",
    ):
        optimize(doubled(known=True), library=False, custom_ops=[path])
    with pytest.raises(LibraryError, match=r"ops\.so"):
        verify(doubled(known=True), doubled(known=True), custom_ops=[twice, path])
