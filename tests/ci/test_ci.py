"""`onnxbolt ci` in repositories: all is well, accuracy fails, a lock file is stale, and the
differences of a change from its base."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import onnx
import pytest

from onnxbolt import ci as runs
from onnxbolt.ci import comparing
from onnxbolt.cli import main
from onnxbolt.directory import Job, optimize_one
from onnxbolt.errors import InputError
from onnxbolt.options import Options
from onnxbolt.verify.session import CUDA
from tests.ci.repository import Repository, net

KINDS = "onnx", "onnxbolt.json", "onnxbolt.html"
VARIABLES = {
    "ONNXBOLT_MODEL": "nets",
    "ONNXBOLT_LOCK": "locks",
    "ONNXBOLT_FUSE": "all",
    "ONNXBOLT_NO_LIBRARY": "true",
}


@pytest.fixture
def run(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that runs `onnxbolt ci` in the repository with some more variables."""
    monkeypatch.chdir(repository.path)

    def ci(**variables: str) -> int:
        with monkeypatch.context() as patched:
            for name, value in {**VARIABLES, **variables}.items():
                patched.setenv(name, value)
            return main(["ci"])

    return ci


def outcomes() -> list[tuple[str, int]]:
    found = json.loads(Path("onnxbolt-out/models.json").read_text())
    return [(row["model"], row["code"]) for row in found["models"]]


def cases(kind: str) -> dict[tuple[str, str], str]:
    """The messages of the test cases with an element of a kind."""
    root = ElementTree.parse("onnxbolt-out/junit.xml").getroot()
    return {
        (case.attrib["classname"], case.attrib["name"]): str(case.find(kind).attrib["message"])  # type: ignore[union-attr]
        for case in root.iter("testcase")
        if case.find(kind) is not None
    }


def summary() -> str:
    return Path("onnxbolt-out/summary.md").read_text()


def test_all_is_well(run: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    step = tmp_path / "step.md"
    step.write_text("before\n")
    assert run(GITHUB_STEP_SUMMARY=str(step), ONNXBOLT_BASE="") == 0
    assert outcomes() == [("a.onnx", 0), ("sub/b.onnx", 0)]
    out = Path("onnxbolt-out")
    assert {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()} == {
        *("summary.md", "junit.xml", "models.json", "differences.json"),
        *(f"{name}.{kind}" for name in ("a", "sub/b") for kind in KINDS),
    }
    onnx.checker.check_model(out / "sub" / "b.onnx")
    root = ElementTree.parse(out / "junit.xml").getroot()
    assert [(suite.attrib["name"], [case.attrib["name"] for case in suite]) for suite in root] == [
        (name, ["optimize", "verify segments", "verify fused nodes", "verify the whole model"])
        for name in ("a.onnx", "sub/b.onnx")
    ]
    assert cases("failure") == cases("error") == cases("skipped") == {}
    assert step.read_text() == "before\n" + summary()
    assert "2 of 2 models optimized; predicted gain" in summary()
    assert "Against" not in summary()
    assert capsys.readouterr().out.splitlines()[-1].startswith("2 of 2 models optimized")


def test_accuracy_fails(run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(ONNXBOLT_ATOL="0", ONNXBOLT_RTOL="0") == 3
    assert outcomes() == [("a.onnx", 3), ("sub/b.onnx", 3)]
    assert not list(Path("onnxbolt-out").rglob("*.onnx"))
    failures = cases("failure")
    assert ("a.onnx", "verify the whole model") in failures
    assert ("a.onnx", "optimize") not in failures
    assert "tensors differ from the original by more than allowed" in summary()


def test_a_lock_file_is_stale(repository: Repository, run: Any) -> None:
    repository.save("sub/b.onnx", net(40))
    assert run() == 5
    assert outcomes() == [("a.onnx", 0), ("sub/b.onnx", 5)]
    ((where, message),) = cases("failure").items()
    assert where == ("sub/b.onnx", "optimize")
    assert "gemm 8x40x64" in message
    (repository.path / "locks" / "a.onnxbolt.lock").unlink()
    (repository.path / "nets" / "sub" / "b.onnx").write_bytes(b"no model")
    assert run() == 1
    assert outcomes() == [("a.onnx", 5), ("sub/b.onnx", 1)]
    assert "not an ONNX model" in cases("error")["sub/b.onnx", "optimize"]


def test_a_change_is_compared_with_its_base(repository: Repository, run: Any) -> None:
    repository.save("c.onnx", net(24))
    repository.lock()
    repository.commit()
    repository.git("switch", "--quiet", "--create", "change")
    repository.save("sub/b.onnx", net(4096))
    (repository.path / "nets" / "c.onnx").unlink()
    repository.save("d.onnx", net(56))
    repository.lock()
    before = repository.git("status", "--short", "--ignored")
    assert run(ONNXBOLT_BASE="main") == 0
    assert repository.git("status", "--short", "--ignored") == before + "?? onnxbolt-out/\n"
    commit = repository.git("rev-parse", "main")[:12]
    assert f"## Against `main ({commit})`" in summary()
    against = summary().partition("## Against")[2]
    rows = {
        cells[0]: cells[1:]
        for line in against.splitlines()
        if len(cells := [cell.strip() for cell in line.strip("|").split("|")]) == 6
    }
    assert rows["`a.onnx`"] == ["unchanged", *[""] * 4]
    assert rows["`c.onnx`"] == ["removed", *[""] * 4]
    assert rows["`d.onnx`"] == ["new", *[""] * 4]
    state, choices, time, error, note = rows["`sub/b.onnx`"]
    # the lock file keeps the choices of the smaller model
    assert (state, choices, note) == ("changed", "1 choice differs", "")
    assert time.startswith("sm_90: ")
    assert "%)" in time
    assert error.startswith("segments: 0.")
    assert "fused nodes: 0." in error
    assert "| `gemm 8x4096x64, f16 to f32, Bias+Relu on sm_90` |  | `sm_90 gemm_" in against
    details = json.loads(Path("onnxbolt-out/differences.json").read_text())
    assert list(details) == ["sub/b.onnx"]
    assert details["sub/b.onnx"]["whole"]
    assert run(ONNXBOLT_BASE="main", ONNXBOLT_MAX_SLOWDOWN="0.1") == 4
    assert outcomes() == [("a.onnx", 0), ("d.onnx", 0), ("sub/b.onnx", 4)]
    ((where, message),) = cases("failure").items()
    assert where == ("sub/b.onnx", "optimize")
    assert "longer than that of the base, more than --max-slowdown 0.1" in message


def test_what_cannot_be_compared_is_noted(repository: Repository, run: Any) -> None:
    (repository.path / "locks" / "a.onnxbolt.lock").write_text("{}")
    repository.git("rm", "--quiet", "--cached", "locks/sub/b.onnxbolt.lock")
    repository.git("commit", "--quiet", "--all", "--message", "Lose lock files")
    (repository.path / "locks" / "a.onnxbolt.lock").unlink()
    repository.lock()
    assert run(ONNXBOLT_BASE="main") == 0
    assert "a.onnxbolt.lock is not a lock file, or damaged" in summary()
    assert "b.onnxbolt.lock does not exist" in summary()


def test_a_pointer_to_a_large_file_is_noted(repository: Repository, run: Any) -> None:
    """A clone without Git LFS has a few lines in the place of a model."""
    model = (repository.path / "nets" / "a.onnx").read_bytes()
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
    (repository.path / "nets" / "a.onnx").write_text(pointer)
    repository.commit()
    (repository.path / "nets" / "a.onnx").write_bytes(model)
    assert run(ONNXBOLT_BASE="main") == 0
    (row,) = [line for line in summary().splitlines() if "| changed |" in line]
    assert row.endswith("not an ONNX model, or truncated; export or download it again` |")


def test_a_file_that_git_cannot_bring_is_noted(repository: Repository, run: Any) -> None:
    """Git LFS without its server, say."""
    (repository.path / ".gitattributes").write_text("*.onnx filter=large\n")
    repository.git("config", "filter.large.clean", "cat")
    repository.commit()
    repository.git("config", "filter.large.smudge", "false")
    repository.git("config", "filter.large.required", "true")
    assert run(ONNXBOLT_BASE="main") == 0
    assert outcomes() == [("a.onnx", 0), ("sub/b.onnx", 0)]
    rows = [line for line in summary().splitlines() if "| not compared |" in line]
    assert len(rows) == 2
    assert all("git checkout-index failed" in row for row in rows)


def test_a_name_of_two_lines_makes_no_line(
    repository: Repository, run: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    repository.save("a\n9 of 9 models optimized.onnx", net())
    repository.lock()
    capsys.readouterr()
    assert run(ONNXBOLT_BASE="main") == 0
    printed = capsys.readouterr()
    for line in (printed.out + printed.err + summary()).splitlines():
        assert not line.startswith("9 of 9")


def test_kernels_of_the_base_are_compiled_where_they_run(
    repository: Repository, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []
    optimize = optimize_one

    def recorded(job: Job, options: Options, **named: Any) -> Any:
        asked.append(options.library)
        return optimize(job, dataclasses.replace(options, library=False), **named)

    monkeypatch.setattr(comparing, "optimize_one", recorded)
    monkeypatch.setattr(runs, "optimize_one", recorded)
    repository.save("a.onnx", net(40))
    repository.lock()
    one = {"ONNXBOLT_MODEL": "nets/a.onnx", "ONNXBOLT_LOCK": "locks", "ONNXBOLT_BASE": "main"}
    monkeypatch.setattr(comparing, "available_providers", list)
    assert run(**one, ONNXBOLT_NO_LIBRARY="") == 0
    monkeypatch.setattr(comparing, "available_providers", lambda: [CUDA])
    assert run(**one, ONNXBOLT_NO_LIBRARY="") == 0
    assert asked == [True, False, True, True]


def test_one_model_with_its_lock_file(repository: Repository, run: Any) -> None:
    lock = repository.path / "any.lock"
    (repository.path / "locks" / "a.onnxbolt.lock").rename(lock)
    repository.commit()
    one = {"ONNXBOLT_MODEL": "nets/a.onnx", "ONNXBOLT_BASE": "main"}
    assert run(**one, ONNXBOLT_LOCK="any.lock") == 0
    assert outcomes() == [("a.onnx", 0)]
    assert "| `a.onnx` | unchanged |" in summary()
    assert run(**one, ONNXBOLT_LOCK="locks") == 5
    assert run(**one, ONNXBOLT_LOCK="") == 5
    lock.rename(repository.path / "nets" / "a.onnxbolt.lock")
    assert run(**one, ONNXBOLT_LOCK="") == 0


@pytest.mark.parametrize(
    ("variables", "code", "message"),
    [
        ({"ONNXBOLT_BASE": "no-such-branch"}, 1, "does not have 'no-such-branch' to compare with"),
        ({"ONNXBOLT_BASE": "--help"}, 1, "does not have '--help' to compare with"),
        ({"ONNXBOLT_BASE": "--since=yesterday"}, 1, "does not have '--since=yesterday'"),
        ({"ONNXBOLT_BASE": "$(touch pwned)"}, 1, "does not have '$(touch pwned)'"),
        ({"ONNXBOLT_BASE": "main:nets"}, 1, "does not have 'main:nets'"),
        ({"ONNXBOLT_MODEL": ""}, 2, "Missing option '--model'"),
        ({"ONNXBOLT_MODEL": "locks"}, 1, "no model below it"),
        ({"ONNXBOLT_MODEL": "nothing.onnx"}, 1, "nothing.onnx: cannot be read"),
        ({"ONNXBOLT_LOCK": "nets/a.onnx"}, 1, "for a directory of models name a directory of lock"),
        ({"ONNXBOLT_PRECISION": "fp4"}, 2, "'fp4' is not one of"),
        ({"ONNXBOLT_MAX_SLOWDOWN": "5"}, 2, "--max-slowdown compares with --base"),
        ({"ONNXBOLT_MAX_SLOWDOWN": "nan"}, 2, "nan is not a finite number"),
        ({"ONNXBOLT_ARCHS": "sm_90a\nsm_1"}, 2, "'sm_1' is not one of"),
    ],
)
def test_wrong_inputs_are_one_clear_error_before_anything_is_written(
    variables: dict[str, str],
    code: int,
    message: str,
    run: Any,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(**variables) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert message in line
    assert not Path("onnxbolt-out").exists()
    assert not list(Path().glob("pwned*"))


def test_variables_of_flags(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Options] = []

    def noted(task: runs.Task, options: Options, progress: Any) -> Any:
        given.append(options)
        raise InputError("noted")

    monkeypatch.setattr(runs, "run", noted)
    for value in ("true", "false", ""):
        flags = "ONNXBOLT_STRICT", "ONNXBOLT_FREEZE_INITIALIZERS", "ONNXBOLT_NO_LIBRARY"
        assert run(**dict.fromkeys(flags, value)) == 1
    assert [(each.strict, each.freeze_initializers, each.library) for each in given] == [
        (True, True, False),
        (False, False, True),
        (False, None, True),
    ]
    assert run(ONNXBOLT_STRICT="maybe") == 2


def test_variables_with_several_lines_are_several_values(
    repository: Repository, run: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    names = "$(touch pwned)\n; rm -rf . #\n\nconv a:b"
    assert run(ONNXBOLT_MODEL="nets/a.onnx", ONNXBOLT_SKIP_NODES=names) == 5
    assert "--skip-node '$(touch pwned)' --skip-node '; rm -rf . #' --skip-node 'conv a:b'" in (
        summary()
    )
    assert not list(Path().glob("pwned*"))
