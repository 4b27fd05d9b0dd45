"""`onnxbolt optimize models/ out/`: one output, lock file and report for each model, one table, and
failures that stop nothing else."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from onnxbolt import pipeline
from onnxbolt.cli import main
from onnxbolt.directory import jobs_in
from onnxbolt.errors import InputError
from tests.support import Net

FLAGS = ("--no-library", "--fuse=all", "--arch=sm_90a")


def net(width: int = 32) -> onnx.ModelProto:
    net = Net({"x": (8, 64)})
    return net.model(net.node("Relu", net.linear("x", 64, width)))


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """Two models, one of them in a folder."""
    (tmp_path / "models" / "sub").mkdir(parents=True)
    onnx.save(net(), tmp_path / "models" / "b.onnx")
    onnx.save(net(48), tmp_path / "models" / "sub" / "a.onnx")
    return tmp_path / "models"


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def run(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, dict[str, Any]]:
    """Optimize a directory: the exit code, and the table as JSON."""
    code = main(["optimize", *map(str, arguments), *FLAGS, "--log-format=json"])
    (line,) = capsys.readouterr().out.splitlines()
    return code, json.loads(line)


def test_each_model_has_its_files_at_its_own_path(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, table = tmp_path / "out", tmp_path / "out" / "table.md"
    code, found = run(capsys, models, out, "--report", table)
    assert (code, found["code"]) == (0, 0)
    assert [(row["model"], row["code"]) for row in found["models"]] == [
        ("b.onnx", 0),
        ("sub/a.onnx", 0),
    ]
    assert files(out) - {"table.md"} == {
        f"{name}.{kind}"
        for name in ("b", "sub/a")
        for kind in ("onnx", "onnxbolt.lock", "onnxbolt.json")
    }
    report = json.loads((out / "sub" / "a.onnxbolt.json").read_text())
    assert report["original"] == str(models / "sub" / "a.onnx")
    row = found["models"][1]
    assert row["predicted"] == report["whole"]
    assert row["fused"] == len(report["fused"]) == 1
    assert 0 < row["output"]["error"] < row["output"]["limit"]
    assert row["verdict"].startswith("PASSED")
    lines = table.read_text().splitlines()
    assert [line.split(" | ")[:3] for line in lines if "onnx`" in line] == [
        ["| `b.onnx`", "ok", "1"],
        ["| `sub/a.onnx`", "ok", "1"],
    ]
    assert lines[-1].startswith("2 of 2 models optimized; predicted gain, geometric mean: ")


def test_lock_files_of_one_run_build_the_same_bytes_in_another(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    locks = tmp_path / "locks"
    assert run(capsys, models, tmp_path / "first", "--lock", locks)[0] == 0
    assert files(locks) == {"b.onnxbolt.lock", "sub/a.onnxbolt.lock"}
    (locks / "b.onnxbolt.lock").unlink()
    code, found = run(capsys, models, tmp_path / "again", "--lock", locks, "--frozen")
    assert (code, [row["code"] for row in found["models"]]) == (5, [5, 0])
    assert "b.onnxbolt.lock does not exist" in found["models"][0]["message"]
    assert not (tmp_path / "again" / "b.onnx").exists()
    again = tmp_path / "again" / "sub" / "a.onnx"
    assert again.read_bytes() == (tmp_path / "first" / "sub" / "a.onnx").read_bytes()


def test_a_model_that_stays_as_it_is_has_a_lock_file_too(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A later run with --frozen needs it."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["other" : 1]> g (float[2] x) => (float[2] y)'
        " {y = other.Op(x)}"
    )
    onnx.save(model, models / "other.onnx")
    locks = tmp_path / "locks"
    assert run(capsys, models, tmp_path / "out", "--lock", locks)[0] == 0
    assert "other.onnxbolt.lock" in files(locks)
    assert run(capsys, models, tmp_path / "again", "--lock", locks, "--frozen")[0] == 0
    assert files(tmp_path / "again") == files(tmp_path / "out")


def test_a_failure_stops_no_other_and_the_worst_code_counts(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    (models / "a.onnx").write_bytes(b"not a model")
    onnx.save(net(40), models / "crash.onnx")
    optimize = pipeline.optimize

    def crashing(source: Path, *arguments: Any, **named: Any) -> Any:
        if source.name == "crash.onnx":
            raise KeyError("a fault of onnxbolt")
        return optimize(source, *arguments, **named)

    monkeypatch.setattr(pipeline, "optimize", crashing)
    code, found = run(capsys, models, tmp_path / "out", "--atol=0", "--rtol=0")
    by_name = {row["model"]: row for row in found["models"]}
    assert list(by_name) == ["a.onnx", "b.onnx", "crash.onnx", "sub/a.onnx"]
    assert [row["code"] for row in by_name.values()] == [1, 3, 1, 3]
    assert "not an ONNX model" in by_name["a.onnx"]["message"]
    assert by_name["crash.onnx"]["message"] == "KeyError: 'a fault of onnxbolt'"
    assert "differ from the original" in by_name["b.onnx"]["message"]
    assert code == found["code"] == 1
    # rejected models have reports, and nothing else is written
    assert files(tmp_path / "out") == {"b.onnxbolt.json", "sub/a.onnxbolt.json"}
    assert not json.loads((tmp_path / "out" / "b.onnxbolt.json").read_text())["passed_through"]


def test_a_dry_run_writes_nothing(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = files(tmp_path)
    code, found = run(capsys, models, tmp_path / "out", "--dry-run")
    assert (code, [row["verdict"] for row in found["models"]]) == (0, [None, None])
    assert files(tmp_path) == before


def test_inputs_may_be_a_directory(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inputs = tmp_path / "inputs"
    (inputs / "sub").mkdir(parents=True)
    np.savez(inputs / "sub" / "a.npz", other=np.ones((8, 64), np.float32))
    main(["optimize", str(models), str(tmp_path / "out"), "--inputs", str(inputs), *FLAGS])
    assert f"{inputs / 'b.npz'} does not exist: random inputs" in capsys.readouterr().err
    code, found = run(capsys, models, tmp_path / "out", "--inputs", inputs)
    assert (code, [row["code"] for row in found["models"]]) == (1, [0, 1])
    assert "a.npz: holds other; the model's inputs are x" in found["models"][1]["message"]
    _, found = run(capsys, models, tmp_path / "out", "--inputs", tmp_path / "missing.npz")
    assert [row["code"] for row in found["models"]] == [1, 1]


def test_models_are_found_in_order_and_others_are_not(models: Path, tmp_path: Path) -> None:
    for name in (".hidden.onnx", ".git/x.onnx", "notes.txt", "out/b.onnx", "UPPER.ONNX"):
        (models / name).parent.mkdir(exist_ok=True)
        (models / name).write_bytes(b"")
    (models / "loop").symlink_to(models, target_is_directory=True)
    (models / "linked.onnx").symlink_to(models / "b.onnx")
    (models / "lost.onnx").symlink_to(models / "nothing")
    os.mkfifo(models / "pipe.onnx")
    (models / "folder.onnx").mkdir()
    jobs = jobs_in(models, models / "out")
    assert [job.name for job in jobs] == [
        "UPPER.ONNX",
        "b.onnx",
        "linked.onnx",
        "lost.onnx",
        "sub/a.onnx",
    ]
    assert jobs[0].written == tuple(
        models / "out" / name
        for name in (
            "UPPER.ONNX",
            "UPPER.ONNX.data",
            "UPPER.onnxbolt.so",
            "UPPER.onnxbolt.notice.txt",
            "UPPER.onnxbolt.lock",
            "UPPER.onnxbolt.json",
            "UPPER.onnxbolt.html",
        )
    )


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ("B.onnx", "b.onnx", "both be written to"),
        ("b.ONNX", "b.onnx", "both be written to"),
        ("e\u0301.onnx", "\u00e9.onnx", "both be written to"),
        ("b.onnx.data/x.onnx", "b.onnx", r"which is the directory of b\.onnx\.data/x\.onnx"),
        ("b.onnxbolt.lock/x.onnx", "b.onnx", "which is the directory of"),
    ],
)
def test_names_that_clash_are_errors(first: str, second: str, message: str, tmp_path: Path) -> None:
    for name in (first, second):
        path = tmp_path / "models" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    with pytest.raises(InputError, match=message):
        jobs_in(tmp_path / "models", tmp_path / "out")


def test_originals_are_never_overwritten(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    large = net()
    apart: dict[str, Any] = {"save_as_external_data": True, "size_threshold": 0}
    onnx.save(large, models / "w.onnx", location="w.bin", **apart)
    (models / "models").mkdir()
    onnx.save(net(), models / "models" / "b.onnx")
    before = {path: path.read_bytes() for path in models.rglob("*") if path.is_file()}
    out = tmp_path / "out"
    out.mkdir()
    for target, place, name in (
        (models / "w.bin", "b.onnx.data", "w.onnx"),
        (models / "b.onnx", "sub/a.onnxbolt.json", "b.onnx"),
    ):
        (out / place).parent.mkdir(exist_ok=True)
        os.link(target, out / place)
        assert main(["optimize", str(models), str(out), *FLAGS]) == 1
        errors = capsys.readouterr().err
        assert f"is a file of {name}, and originals are never overwritten" in errors
        (out / place).unlink()
    assert main(["optimize", str(models), str(tmp_path), *FLAGS]) == 1
    assert "is a file of b.onnx, and originals are never" in capsys.readouterr().err
    assert main(["optimize", str(models), str(models), *FLAGS]) == 1
    assert "holds the models, and originals are never overwritten" in capsys.readouterr().err
    places = models / "b.onnx", models / "w.bin", out / "b.onnxbolt.json", out / "no" / "x.md"
    for report in places:
        assert main(["optimize", str(models), str(out), f"--report={report}", *FLAGS]) == 1
        assert capsys.readouterr().err.startswith("error: --report")
    assert {path: path.read_bytes() for path in before} == before
    assert files(out) == set()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("empty", "out"), r"empty: no model below it has a name that ends in \.onnx"),
        (("models", "file"), "file is a file: for a directory of models name a directory"),
        (("models", "out", "--lock", "file"), "file is a file: for a directory of models name"),
        (("models", "out", "--report", "x.txt"), r"ends in \.json or \.md"),
    ],
)
def test_what_fits_no_directory_is_one_clear_error(
    arguments: tuple[str, ...],
    message: str,
    models: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(models.parent)
    Path("empty").mkdir()
    Path("file").write_text("")
    before = files(models.parent)
    assert main(["optimize", *arguments, *FLAGS]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(message, line)
    assert line.startswith("error: ")
    assert files(models.parent) == before


def test_names_of_files_are_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Names that a shell, a terminal, Markdown or HTML would read as theirs."""
    names = [
        "$(touch pwned).onnx",
        "-o.onnx",
        "; touch pwned;.onnx",
        "<script>alert(1)</script>.onnx",
        "`x` | \\| [y](z) @you.onnx",
        "a\n| b | ok |\x1b[31m.onnx",
    ]
    models = tmp_path / "models"
    for name in names:
        path = models / name
        path.parent.mkdir(parents=True, exist_ok=True)
        onnx.save(net(), path)
    code, found = run(capsys, models, tmp_path / "out", "--report", tmp_path / "table.md")
    assert code == 0
    assert [row["model"] for row in found["models"]] == sorted(names)
    rows = [line for line in (tmp_path / "table.md").read_text().splitlines() if line[:1] == "|"]
    assert len(rows) == 2 + len(names)  # a header, a line, and one for each model
    assert not list(tmp_path.rglob("pwned*"))
