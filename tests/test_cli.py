"""Wrong input of a user gives one clear line, the right exit code, and no file."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from onnxbolt.cli import commands, main

MODEL_ALONE = ("--no-library", "--fuse", "all")
# more bytes than a test of a full disk lets a file have, fewer than the small model has
FILE_LIMIT = 256 * 1024


@pytest.fixture
def optimized(small_model: Path) -> Path:
    out = small_model.with_name("fast.onnx")
    assert main(["optimize", str(small_model), str(out), *MODEL_ALONE, "--quiet"]) == 0
    return out


def files(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


def fails(
    capsys: pytest.CaptureFixture[str], directory: Path, *arguments: str | Path
) -> tuple[int, str]:
    """Run a command that must fail: its exit code and its one line; `directory` must be as
    before."""
    before = files(directory)
    code = main([str(argument) for argument in arguments])
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert files(directory) == before
    return code, line.removeprefix("error: ")


def test_optimize_writes_a_model_and_reports_it(
    small_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, report = small_model.with_name("fast.onnx"), small_model.with_name("report.json")
    assert (
        main(["optimize", str(small_model), str(out), *MODEL_ALONE, "--report", str(report)]) == 0
    )
    printed = capsys.readouterr().out
    assert "fp16" in printed.splitlines()[0]
    assert printed.rstrip().splitlines()[-1].startswith("PASSED")
    onnx.checker.check_model(out, full_check=True)
    assert report.read_text().startswith("{")


def test_dry_run_writes_nothing(small_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = files(small_model.parent)
    assert (
        main(["optimize", str(small_model), str(small_model.with_name("fast.onnx")), "--dry-run"])
        == 0
    )
    assert files(small_model.parent) == before
    assert "fp16" in capsys.readouterr().out


def test_same_input_and_options_give_the_same_bytes(small_model: Path, optimized: Path) -> None:
    again = small_model.with_name("again.onnx")
    assert main(["optimize", str(small_model), str(again), *MODEL_ALONE, "--quiet"]) == 0
    assert again.read_bytes() == optimized.read_bytes()


def test_verify_passes_and_says_so_in_its_last_line(
    small_model: Path, optimized: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(small_model), str(optimized)]) == 0
    assert capsys.readouterr().out.rstrip().splitlines()[-1].startswith("PASSED")


def test_verify_writes_reports(small_model: Path, optimized: Path, tmp_path: Path) -> None:
    places = tmp_path / "found.json", tmp_path / "found.md"
    assert (
        main(
            [
                "verify",
                str(small_model),
                str(optimized),
                "--quiet",
                *(f"--report={place}" for place in places),
            ]
        )
        == 0
    )
    found = json.loads(places[0].read_text())
    assert (found["passed"], found["judged"], found["original"]) == (True, True, str(small_model))
    assert found["verdict"].startswith("PASSED: ")
    assert {row["level"] for row in found["rows"]} >= {"model"}
    lines = places[1].read_text().splitlines()
    assert lines[-1] == found["verdict"]
    assert sum(line.startswith("| ") for line in lines) == len(found["rows"]) + 2


@pytest.mark.parametrize("place", ["found.txt", "fast.onnx", "missing/found.json"])
def test_no_report_is_written_there(
    place: str, small_model: Path, optimized: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, line = fails(
        capsys,
        small_model.parent,
        "verify",
        small_model,
        optimized,
        "--report",
        small_model.parent / place,
    )
    assert code == 1
    assert line.startswith("--report")


def lines_of_json(
    capsys: pytest.CaptureFixture[str], *arguments: str | Path
) -> list[dict[str, Any]]:
    """The lines that a command prints on standard output with --log-format json."""
    assert main([*map(str, arguments), "--log-format", "json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_log_format_json_prints_nothing_else(
    small_model: Path,
    optimized: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    capsys.readouterr()
    (report,) = lines_of_json(
        capsys, "optimize", small_model, small_model.with_name("x.onnx"), *MODEL_ALONE
    )
    assert (report["event"], report["verification"]["passed"]) == ("report", True)
    (found,) = lines_of_json(capsys, "verify", small_model, optimized)
    assert (found["event"], found["passed"]) == ("verification", True)
    (nodes,) = lines_of_json(capsys, "inspect", optimized)
    assert nodes["event"] == "inspection"
    # any file in the library's place
    monkeypatch.setattr("onnxbolt.library.build_for", lambda model, progress: model)
    (built,) = lines_of_json(capsys, "build", optimized)
    assert (built["event"], built["path"]) == ("library", str(optimized))


def test_verify_fails_with_exit_code_3(
    small_model: Path, optimized: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = onnx.load(optimized)
    weight = next(t for t in model.graph.initializer if len(t.dims) == 2)
    weight.CopyFrom(
        onnx.numpy_helper.from_array(
            onnx.numpy_helper.to_array(weight) * np.float16(1.5), weight.name
        )
    )
    onnx.save(model, optimized)
    assert main(["verify", str(small_model), str(optimized)]) == 3
    assert capsys.readouterr().out.rstrip().splitlines()[-1].startswith("FAILED")


def test_inspect_prints_a_table_or_json(
    optimized: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(optimized)]) == 0
    assert "FusedGemm" in capsys.readouterr().out
    assert main(["inspect", "--json", str(optimized)]) == 0
    assert '"configs"' in capsys.readouterr().out


def test_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, line = fails(capsys, tmp_path, "optimize", tmp_path / "none.onnx", tmp_path / "out.onnx")
    assert code == 1
    assert "none.onnx" in line


@pytest.mark.parametrize("content", [b"", b"no model, a text\n" * 20, b"\x08\x08"])
def test_not_onnx(tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes) -> None:
    source = tmp_path / "in.onnx"
    source.write_bytes(content)
    code, line = fails(capsys, tmp_path, "optimize", source, tmp_path / "out.onnx")
    assert code == 1
    assert "in.onnx" in line
    assert "not an ONNX model" in line


def test_cut_off_file(small_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small_model.write_bytes(small_model.read_bytes()[:-1000])
    code, line = fails(
        capsys, small_model.parent, "optimize", small_model, small_model.with_name("out.onnx")
    )
    assert code == 1
    assert "truncated" in line


def test_missing_external_data(small_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(
        onnx.load(small_model), small_model, save_as_external_data=True, location="weights.bin"
    )
    small_model.with_name("weights.bin").unlink()
    code, line = fails(
        capsys, small_model.parent, "optimize", small_model, small_model.with_name("out.onnx")
    )
    assert code == 1
    assert "weights.bin" in line


@pytest.mark.parametrize(
    "flags", [("--arch", "sm_91"), ("--precision", "fp7"), ("--fuse", "some"), ("--nonsense",)]
)
def test_wrong_option_is_wrong_usage(
    small_model: Path, capsys: pytest.CaptureFixture[str], flags: tuple[str, ...]
) -> None:
    code, line = fails(
        capsys,
        small_model.parent,
        "optimize",
        small_model,
        small_model.with_name("out.onnx"),
        *flags,
    )
    assert code == 2
    assert flags[-1] in line


def test_a_wrong_command_is_told_near_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["optimise"]) == 2
    assert capsys.readouterr().err == (
        "error: No such command 'optimise'. Did you mean 'optimize'? See onnxbolt --help.\n"
    )


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--seed", "-1"),
        ("--atol", "inf"),
        ("--atol", "nan"),
        ("--rtol", "-0.1"),
        ("--max-shapes", f"in0:[{2**63},3]"),
        ("--min-shapes", f"in0:[{'9' * 5000}]"),
    ],
)
def test_numbers_out_of_range_are_wrong_usage(
    small_model: Path, capsys: pytest.CaptureFixture[str], flag: str, value: str
) -> None:
    code, line = fails(
        capsys,
        small_model.parent,
        "optimize",
        small_model,
        small_model.with_name("out.onnx"),
        flag,
        value,
    )
    assert code == 2
    assert flag in line


def test_an_architecture_given_twice_counts_once(small_model: Path) -> None:
    once, twice = small_model.with_name("once.onnx"), small_model.with_name("twice.onnx")
    for out, flags in ((once, ["--arch", "sm_80"]), (twice, ["--arch", "sm_80"] * 2)):
        assert (
            main(
                [
                    "optimize",
                    str(small_model),
                    str(out),
                    *flags,
                    *MODEL_ALONE,
                    "--no-verify",
                    "--quiet",
                ]
            )
            == 0
        )
    assert once.read_bytes() == twice.read_bytes()


@pytest.mark.parametrize("flag", ["budget", "target", "trials", "strategy"])
def test_optimize_tunes_by_the_options_of_tune(flag: str) -> None:
    def option(command: str) -> dict[str, Any]:
        (found,) = (p for p in commands.commands[command].params if p.name == flag)
        return found.to_info_dict()

    alone, first = option("tune"), option("optimize")
    text = alone.pop("help")
    assert first.pop("help") == f"With --tune: {text[0].lower()}{text[1:]}"
    assert first == alone


@pytest.mark.parametrize("group", [(), ("cache",)])
def test_a_group_without_a_command_prints_its_help(
    group: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(group) == 2
    printed = capsys.readouterr()
    assert main((*group, "--help")) == 0
    assert (printed.out, printed.err) == ("", capsys.readouterr().out)
    assert "Commands:\n" in printed.err


@pytest.mark.parametrize(
    ("arguments", "code"), [(("--version",), 0), (("inspect", "none.onnx"), 1)]
)
def test_the_package_runs_as_the_command(
    arguments: tuple[str, ...],
    code: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert main(arguments) == code
    expected = capsys.readouterr()
    monkeypatch.setattr(sys, "argv", ["onnxbolt", *arguments])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("onnxbolt", run_name="__main__")
    assert (ended.value.code, capsys.readouterr()) == (code, expected)


def test_output_equal_to_input(small_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other_spelling = small_model.parent / "." / ".." / small_model.parent.name / small_model.name
    code, line = fails(capsys, small_model.parent, "optimize", small_model, other_spelling)
    assert code == 1
    assert "small.onnx" in line


def test_directory_of_output_is_missing(
    small_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = small_model.parent / "nowhere" / "out.onnx"
    code, line = fails(
        capsys, small_model.parent, "optimize", small_model, out, *MODEL_ALONE, "--no-verify"
    )
    assert code == 1
    assert "nowhere" in line


def test_full_disk(small_model: Path) -> None:
    """A limit on the size of files makes write() fail halfway, as a full disk does."""
    before = files(small_model.parent)
    script = (
        "import resource, sys; from onnxbolt.cli import main;"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({FILE_LIMIT}, {FILE_LIMIT}));"
        "sys.exit(main(sys.argv[1:]))"
    )
    command = [
        sys.executable,
        "-c",
        script,
        "optimize",
        str(small_model),
        str(small_model.with_name("out.onnx")),
        *MODEL_ALONE,
        "--no-verify",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert len([line for line in done.stderr.splitlines() if line.startswith("error: ")]) == 1
    assert "out.onnx" in done.stderr
    assert files(small_model.parent) == before


def test_no_compiler(
    small_model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.setattr("onnxbolt.codegen.nvcc._wheel_root", lambda: None)
    code, line = fails(
        capsys,
        small_model.parent,
        "optimize",
        small_model,
        small_model.with_name("out.onnx"),
        "--fuse",
        "all",
    )
    assert code == 1
    assert "onnxbolt[cuda]" in line
    assert "--no-library" in line


def test_no_host_compiler(
    small_model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CUDA_HOME", raising=False)
    code, line = fails(
        capsys,
        small_model.parent,
        "optimize",
        small_model,
        small_model.with_name("out.onnx"),
        "--fuse",
        "all",
    )
    assert code == 1
    assert "g++" in line
    assert "--no-library" in line


def test_failed_gate_leaves_no_file(small_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    strict = ("--atol", "0", "--rtol", "0")
    code, line = fails(
        capsys,
        small_model.parent,
        "optimize",
        str(small_model),
        str(small_model.with_name("out.onnx")),
        *MODEL_ALONE,
        *strict,
    )
    assert code == 3
    assert "--keep-failed" in line


def test_failed_gate_is_reported(small_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, report = small_model.with_name("out.onnx"), small_model.with_name("report.md")
    assert (
        main(
            [
                "optimize",
                str(small_model),
                str(out),
                *MODEL_ALONE,
                "--atol",
                "0",
                "--rtol",
                "0",
                "--report",
                str(report),
            ]
        )
        == 3
    )
    assert capsys.readouterr().out.rstrip().splitlines()[-1].startswith("FAILED")
    assert "FAILED" in report.read_text()
    assert not out.exists()


def test_keep_failed_writes_the_output(small_model: Path) -> None:
    out = small_model.with_name("out.onnx")
    assert (
        main(
            [
                "optimize",
                str(small_model),
                str(out),
                *MODEL_ALONE,
                "--atol",
                "0",
                "--rtol",
                "0",
                "--keep-failed",
                "--quiet",
            ]
        )
        == 3
    )
    onnx.checker.check_model(out)


def test_inputs_that_do_not_fit(small_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inputs = small_model.with_name("x.npz")
    np.savez(inputs, other=np.zeros(3, np.float32))
    out = small_model.with_name("out.onnx")
    code, line = fails(
        capsys, small_model.parent, "optimize", small_model, out, *MODEL_ALONE, "--inputs", inputs
    )
    assert code == 1
    assert "in0" in line


def test_interrupt(
    monkeypatch: pytest.MonkeyPatch, small_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("onnxbolt.pipeline.optimize", interrupted)
    code, line = fails(
        capsys, small_model.parent, "optimize", small_model, small_model.with_name("out.onnx")
    )
    assert (code, line) == (130, "interrupted")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        ["optimize", "--help"],
        ["optimize", "a.onnx", "b.onnx", "--seed", "-1"],
        ["cache", "--help"],
        ["cache", "list", "--compiled"],
        ["cache", "clear", "--compiled", "--yes"],
    ],
    ids=" ".join,
)
def test_a_quick_command_imports_no_optimizer(arguments: list[str], tmp_path: Path) -> None:
    """By a process of its own, on a machine without extensions."""
    heavy = {"jinja2", "ml_dtypes", "numpy", "onnx", "onnx_graphsurgeon"}
    heavy |= {"onnxbolt.extensions", "onnxbolt.families", "onnxbolt.pipeline"}
    program = (
        f"import sys; from onnxbolt.cli import main; main({arguments});"
        f"print(*sys.modules.keys() & {heavy}, 'end')"
    )
    environment = {**os.environ, "ONNXBOLT_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment
    )
    assert done.stdout.splitlines()[-1] == "end"


COMMANDS = (
    ("optimize", "{bad}", "{directory}"),
    ("optimize", "{bad}", "{directory}/out.onnx"),
    ("optimize", "{bad}", "{directory}/out.onnx", "--report", "{directory}/report.json"),
    ("tune", "{bad}"),
    ("explain", "{bad}"),
    ("explain", "{bad}", "--write-model", "{directory}/out.onnx"),
    ("inspect", "{bad}"),
    ("build", "{bad}"),
    ("verify", "{bad}", "{good}"),
    ("verify", "{good}", "{bad}"),
    ("bisect", "{bad}"),
    ("undo", "{bad}", "{directory}/out.onnx", "--rule", "x"),
)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_models_that_are_missing_or_no_files(
    command: tuple[str, ...],
    small_model: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each command says so of the model that it should read. Nobody writes to the pipe, so that a
    command that opens it waits for ever."""
    directory = small_model.parent
    pipe, missing = directory / "pipe", directory / "missing"
    os.mkfifo(pipe)
    for bad, words in (
        (missing, "cannot be read: No such file or directory; name a file that exists"),
        (pipe, "is not a regular file; copy its content to one"),
    ):
        given = [part.format(bad=bad, good=small_model, directory=directory) for part in command]
        assert fails(capsys, directory, *given) == (1, f"{bad}: {words}")


@pytest.mark.timeout(120)
def test_inputs_of_a_pipe(small_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pipe = small_model.with_name("pipe.npz")
    os.mkfifo(pipe)
    given = "verify", small_model, small_model, "--inputs", pipe
    code, line = fails(capsys, small_model.parent, *given)
    assert code == 1
    assert "pipe.npz: is not a regular file; copy its content to one" in line


@pytest.mark.timeout(120)
def test_doctor_of_a_pipe(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onnxbolt.doctor._does_not_compile", lambda _: "")  # it takes seconds
    os.mkfifo(tmp_path / "pipe")
    assert main(["doctor", str(tmp_path / "pipe")]) == 1
    assert "pipe: is not a regular file\n        copy its content to one" in capsys.readouterr().out
