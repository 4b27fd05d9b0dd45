"""The files that a run writes: never over its inputs, completely or not at all, and only in proper
places."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from onnxbolt.cli import USAGE, main
from onnxbolt.errors import InputError
from onnxbolt.output import check_apart

ALONE = ("--no-library", "--fuse", "all", "--quiet")


def with_external_data(path: Path, location: str) -> Path:
    """A model of two products whose weights lie in the file `location` beside it."""
    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(rng.normal(0, 0.1, (64, 64)).astype(np.float32), f"w{i}")
        for i in range(2)
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["t"]),
        helper.make_node("MatMul", ["t", "w1"], ["y"]),
    ]
    x, y = (
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2, 64]) for name in ("x", "y")
    )
    model = helper.make_model(
        helper.make_graph(nodes, "g", [x], [y], weights),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    onnx.save(model, path, save_as_external_data=True, location=location, size_threshold=16)
    return path


def fails(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """The error of a command that must fail, leaving every file beside its model as it was."""
    directory = Path(arguments[1]).parent
    before = {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}
    assert main([str(argument) for argument in arguments]) == 1
    assert {
        path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()
    } == before
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("location", "out", "more"),
    [("fast.onnx.data", "fast.onnx", ("--save-as-external-data",)), ("w.data", "w.data", ())],
)
def test_the_weights_of_an_original_are_never_overwritten(
    location: str,
    out: str,
    more: tuple[str, ...],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source = with_external_data(tmp_path / "model.onnx", location)
    assert "holds its weights" in fails(capsys, "optimize", source, tmp_path / out, *ALONE, *more)


def test_a_file_does_not_take_the_place_of_a_pipe(
    small_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pipe = small_model.with_name("pipe")
    os.mkfifo(pipe)
    assert "name a regular file" in fails(capsys, "optimize", small_model, pipe, *ALONE)
    assert pipe.is_fifo()


@pytest.mark.parametrize(
    ("option", "name", "words"),
    [
        ("--report", "r.txt", ".json, .md or .html"),
        ("--report", "none/r.md", "in an existing directory"),
        ("--lock", "none/l", "in an existing directory"),
        ("--lock", "out.onnx", "choose another one"),
        ("--lock", "out.onnxbolt.so", "choose another one"),
    ],
)
def test_further_results_are_refused_before_the_work(
    option: str, name: str, words: str, small_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = small_model.with_name("out.onnx")
    assert words in fails(
        capsys, "optimize", small_model, out, *ALONE, option, small_model.parent / name
    )


@pytest.mark.parametrize(("option", "name"), [("--report", "r.md"), ("--lock", "l")])
def test_a_directory_that_is_read_only_is_found_before_the_work(
    option: str,
    name: str,
    small_model: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = small_model.parent / "read-only"
    folder.mkdir()
    # root may write anywhere, whatever the mode says
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path != folder and access(path, mode))
    out = small_model.with_name("out.onnx")
    arguments = ("optimize", small_model, out, *ALONE, option, folder / name)
    assert "cannot be written to; choose another path" in fails(capsys, *arguments)
    assert not out.exists()


def test_report_and_lock_are_two_files(
    small_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, both = small_model.with_name("out.onnx"), small_model.with_name("both.json")
    assert (
        main(
            [
                "optimize",
                str(small_model),
                str(out),
                *ALONE,
                "--report",
                str(both),
                "--lock",
                str(both),
            ]
        )
        == USAGE
    )
    assert "--report and --lock name the same file" in capsys.readouterr().err
    assert not out.exists()
    assert not both.exists()


def test_strict_needs_a_verification(small_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = small_model.with_name("out.onnx")
    assert (
        main(["optimize", str(small_model), str(out), "--no-library", "--no-verify", "--strict"])
        == USAGE
    )
    assert "--strict concerns verification" in capsys.readouterr().err
    assert not out.exists()


def test_a_report_does_not_take_the_place_of_weights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = with_external_data(tmp_path / "model.onnx", "w.json")
    assert "choose another one" in fails(
        capsys, "optimize", source, tmp_path / "out.onnx", *ALONE, "--report", tmp_path / "w.json"
    )


def test_a_result_is_not_written_over_the_input(tmp_path: Path) -> None:
    (tmp_path / "model.json").touch()
    with pytest.raises(InputError, match="choose another one"):
        check_apart(
            "--report", tmp_path / "model.json", tmp_path / "model.json", tmp_path / "out.onnx"
        )
    check_apart(
        "--report", tmp_path / "report.json", tmp_path / "model.json", tmp_path / "out.onnx"
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_run_that_is_ended_leaves_nothing_behind(
    number: signal.Signals, small_model: Path
) -> None:
    """The signal comes when the staging directory is there."""
    script = (
        "import os, signal, sys\nimport onnxbolt.output as output\nfrom onnxbolt.cli import"
        " main\noutput.Output.write = lambda *_: os.kill(os.getpid(),"
        f" {int(number)})\nsys.exit(main(['optimize', {str(small_model)!r},"
        f" {str(small_model.with_name('out.onnx'))!r}, '--no-library', '-q']))"
    )
    before = sorted(small_model.parent.iterdir())
    assert (
        subprocess.run([sys.executable, "-c", script], timeout=120, check=False).returncode
        == 128 + number
    )
    assert sorted(small_model.parent.iterdir()) == before
