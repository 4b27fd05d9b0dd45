"""examples/cpp: built by the page's command, run on the CPU, and on a GPU with the library.

On a machine with a GPU: `python -m pytest -m gpu tests/examples/test_cpp.py`, with ORT_LIB where
the wheel's libonnxruntime.so was left out (tests/examples/ort_release.py).
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import onnxbolt
from tests.conftest import ROOT
from tests.examples import ort_release
from tests.examples.pages import command
from tests.support import Net, run

Feeds = dict[str, np.ndarray]


class Program:
    """The compiled example."""

    def __init__(self, directory: Path) -> None:
        self.environment = ort_release.environment(ort_release.unpacked(directory))
        (directory / "examples").symlink_to(ROOT / "examples")
        written = command("docs/deploy/cpp.md", "g++")
        strict = written.replace("g++", "g++ -Wall -Wextra -Werror", 1)
        done = subprocess.run(
            ["bash", "-c", strict],
            cwd=directory,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        self.path = directory / "run_model"

    def run(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.path, *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )

    def outputs(
        self, model: Path, device: str, feeds: Feeds, *more: str | Path
    ) -> tuple[list[np.ndarray], str]:
        """The model's outputs on `feeds`, and what the program printed."""
        for name, values in feeds.items():
            values.tofile(model.parent / f"{name}.input")
        inputs = [
            f"--input={name}={'x'.join(map(str, values.shape))}:{model.parent / name}.input"
            for name, values in feeds.items()
        ]
        split = [part for each in inputs for part in each.split("=", 1)]
        done = self.run(model, device, *split, "--out", model.parent, *more)
        assert done.returncode == 0, done.stderr
        shapes = dict(re.findall(r"^output (.*): ([\dx]*)$", done.stdout, re.MULTILINE))
        return [
            np.fromfile(model.parent / f"{name}.bin", np.float32).reshape(
                [int(size) for size in shape.split("x")]
            )
            for name, shape in shapes.items()
        ], done.stdout + done.stderr


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    return Program(tmp_path_factory.mktemp("cpp"))


def net() -> onnx.ModelProto:
    """Two convolutions with activations and a product, for images of any size in any number."""
    made = Net({"x": ("N", 3, "H", "W"), "scale": ("N", 16)})
    hidden = made.node("Relu", made.conv("x", 3, 16, 3, pads=[1, 1, 1, 1], strides=[2, 2]))
    hidden = made.node("Relu", made.conv(hidden, 16, 16, 3, pads=[1, 1, 1, 1]))
    pooled = made.node("Flatten", made.node("GlobalAveragePool", hidden))
    return made.model(made.node("Relu", made.linear(made.node("Mul", pooled, "scale"), 16, 24)))


def feeds(batch: int, height: int, width: int) -> Feeds:
    random = np.random.default_rng(3)
    return {
        "x": random.standard_normal((batch, 3, height, width)).astype(np.float32),
        "scale": random.standard_normal((batch, 16)).astype(np.float32),
    }


@pytest.fixture(scope="module")
def optimized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An optimized model without a library."""
    out = tmp_path_factory.mktemp("model") / "fast.onnx"
    report = onnxbolt.optimize(net(), out, fuse="all", archs=("sm_90a",), library=False)
    assert "Conv" in report.text()
    return out


def test_the_cpu_runs_function_bodies(program: Program, optimized: Path) -> None:
    for sizes in ((1, 32, 32), (3, 40, 24)):
        (got,), printed = program.outputs(optimized, "cpu", feeds(*sizes))
        (expected,) = run(optimized, feeds(*sizes))
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)
        assert "median of 20 runs" in printed
        assert "warning" not in printed


def test_fixed_sizes_need_no_input(program: Program, tmp_path: Path) -> None:
    made = Net({"x": (4, 24), "ids": (4,)}, types={"ids": onnx.TensorProto.INT64})
    rows = made.node("Gather", made.normal(8, 24), "ids")
    onnx.save(made.model(made.linear(made.node("Add", "x", rows), 24, 16)), tmp_path / "fixed.onnx")
    done = program.run(tmp_path / "fixed.onnx", "cpu", "--runs", "1")
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r"output \S+: 4x16\nmedian of 1 runs .*: [\d.]+ ms\n", done.stdout)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["cpu"], 2, "input x has open sizes (-1x3x-1x-1): give them by --input x=1x3x224x224"),
        (["cpu", "--input", "y=1x3"], 2, "input x has open sizes"),
        (["cpu", "--input", "x=1x3"], 1, "Invalid rank for input: x"),
        (["cpu", "--input", "x=1x3x"], 2, "'1x3x' is no shape"),
        (["cpu", "--input", "x=1x-3"], 2, "'1x-3' is no shape"),
        (["cpu", "--input", "x=1x3x8x8:none.bin"], 1, "none.bin has 0 bytes where 768 are needed"),
        (["cpu", "--runs", "0"], 2, "--runs needs a number of at least 1"),
        (["cpu", "--out"], 2, "--out needs a value"),
        (["cpu", "--fast", "1"], 2, "there is no option --fast"),
        (["gpu"], 2, "'gpu' is no device: cpu, cuda or cuda:N"),
        (["cuda:x"], 2, "'cuda:x' is no device"),
        ([], 2, "MODEL.onnx and a device are needed"),
    ],
)
def test_wrong_arguments_get_one_message(
    program: Program, optimized: Path, arguments: list[str], code: int, message: str
) -> None:
    scale = ["--input", "scale=1x16"] if arguments else []
    done = program.run(optimized, *arguments[:1], *scale, *arguments[1:])
    assert done.returncode == code, done.stderr
    assert message in done.stderr
    assert ("usage: run_model" in done.stderr) == (code == 2)


def test_inputs_of_other_names_are_refused(program: Program, optimized: Path) -> None:
    given = ["x=1x3x8x8", "scale=1x16", "y=1"]
    done = program.run(optimized, "cpu", *(part for each in given for part in ("--input", each)))
    assert done.returncode == 2
    assert "the model has no input of --input y=1" in done.stderr


def test_a_file_that_is_no_model(program: Program, tmp_path: Path) -> None:
    (tmp_path / "text.onnx").write_text("no model")
    for path in (tmp_path / "text.onnx", tmp_path / "none.onnx"):
        done = program.run(path, "cpu")
        assert (done.returncode, done.stdout) == (1, "")
        assert path.name in done.stderr


def test_cuda_without_its_provider_is_an_error(program: Program, optimized: Path) -> None:
    if "CUDAExecutionProvider" in ort.get_available_providers():
        pytest.skip("this onnxruntime has the CUDA provider")
    done = program.run(optimized, "cuda")
    assert done.returncode == 1
    assert "CUDA execution provider is not enabled" in done.stderr


@pytest.mark.gpu
def test_a_gpu_runs_the_library(program: Program, tmp_path: Path) -> None:
    """Right, with every fused node on the GPU; another model's library is refused, and a missing
    one is a warning."""
    out = tmp_path / "fast.onnx"
    onnxbolt.optimize(net(), out, fuse="all", verify=False)
    provider = onnxbolt.cuda_provider(out)
    session = ort.InferenceSession(
        out, onnxbolt.session_options(out, strict=True), providers=[provider]
    )
    for sizes in ((1, 32, 32), (3, 40, 24)):
        (got,), printed = program.outputs(
            out, "cuda:0", feeds(*sizes), "--profile", tmp_path / "trace"
        )
        (expected,) = session.run(None, feeds(*sizes))
        np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-3)
        assert "onnxbolt: warning" not in printed  # ONNX Runtime may have warnings of its own
    events = json.loads(next(tmp_path.glob("trace_*.json")).read_text())
    ran = {
        event["args"]["op_name"]: event["args"].get("provider")
        for event in events
        if event.get("cat") == "Node" and "op_name" in event.get("args", {})
    }
    fused = {node.op_type for node in onnx.load(out).graph.node if node.domain == "com.onnxbolt"}
    assert fused
    assert {ran[op] for op in fused} == {"CUDAExecutionProvider"}

    library = onnxbolt.get_library_path(out)
    library.rename(tmp_path / "away")
    _, printed = program.outputs(out, "cuda:0", feeds(1, 32, 32))
    assert "there is no library beside the model" in printed

    other = tmp_path / "other.onnx"
    onnxbolt.optimize(net(), other, fuse="all", precision="keep", verify=False)
    shutil.copy(onnxbolt.get_library_path(other), library)
    done = program.run(out, "cuda", "--input", "x=1x3x32x32", "--input", "scale=1x16")
    assert done.returncode == 1
    assert f"error: {library} is not the library of this model" in done.stderr
