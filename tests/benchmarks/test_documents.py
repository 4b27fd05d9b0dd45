"""Result files: one commit each, written by their command alone."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path

import pytest

from benchmarks import documents, machine
from benchmarks.common import Row
from benchmarks.documents import RESULTS, SCHEMA, digest, is_sealed, write_results
from onnxbolt.errors import InputError
from tests.conftest import ROOT

# modules that write a result file of another name, or that shared one when it was written: the
# kernels of norm_products are gone (docs/decisions/norms-in-products.md)
WRITERS = {
    "autogtco": ("transformers",),
    "norms": ("norms", "norm_products"),
    "profile": ("profile_kernels",),
    "subgraphs": ("transformers",),
}
# committed before result files had digests: pages show them as not renewed. No file of a later
# schema belongs here.
NOT_RENEWED = {
    path.name for path in RESULTS.glob("*.json") if "schema" not in json.loads(path.read_text())
}


def document(path: Path) -> documents.Document:
    return dict(json.loads(path.read_text()))


def test_results_have_the_documented_keys_and_can_be_completed_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "sub" / "results.json"
    for arguments, row in (
        (["--shapes", "a"], Row("a", 1, "fp16", 2.0, "peer", 4.0, 2.0)),
        (["--shapes", "b c"], Row("b", 1, "fp16")),
        (["--shapes", "a"], Row("a", 1, "fp16", 1.0, "peer", 4.0, 4.0)),
    ):
        monkeypatch.setattr("sys.argv", ["gemm.py", *arguments])
        write_results("gemm", [row], out, append=True)
    found = document(out)
    assert set(found) == {
        "schema",
        "gpu",
        "driver",
        "versions",
        "commit",
        "sources",
        "commands",
        "planned",
        "rows",
        "digest",
    }
    assert {(row["name"], row["ratio"]) for row in found["rows"]} == {("a", 4.0), ("b", None)}
    assert found["commands"] == [
        "python -m benchmarks.gemm --shapes a",
        "python -m benchmarks.gemm --shapes 'b c'",
    ]
    assert [path.name for path in out.parent.iterdir()] == ["results.json"]


@pytest.mark.parametrize(
    ("field", "value"), [("commit", "another"), ("sources", "another"), ("gpu", "another")]
)
def test_rows_of_another_origin_are_not_mixed(tmp_path: Path, field: str, value: str) -> None:
    out = write_results("gemm", [Row("a", 1, "fp16")], tmp_path / "results.json")
    documents.write(out, {**document(out), field: value})
    with pytest.raises(InputError, match=f"its rows have {field} another"):
        write_results("gemm", [Row("b", 1, "fp16")], out, append=True)
    assert [row["name"] for row in document(out)["rows"]] == ["a"]
    write_results("gemm", [Row("b", 1, "fp16")], out)
    assert [row["name"] for row in document(out)["rows"]] == ["b"]


def test_rows_of_another_commit_go_beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that what took minutes to measure is not lost."""
    monkeypatch.setenv(documents.DIRECTORY, str(tmp_path))
    first = write_results("gemm", [Row("a", 1, "fp16")])
    documents.write(first, {**document(first), "commit": "another"})
    for name in "bc":
        beside = write_results("gemm", [Row(name, 1, "fp16")], append=True)
    assert beside.name == f"{first.stem}-{machine.commit()[:12]}.json"
    assert [row["name"] for row in document(beside)["rows"]] == ["b", "c"]
    assert [row["name"] for row in document(first)["rows"]] == ["a"]


def test_an_edited_file_is_known(tmp_path: Path) -> None:
    out = write_results(
        "gemm", [Row("a", 1, "fp16", 2.0, "peer", 4.0, 2.0)], tmp_path / "results.json"
    )
    found = document(out)
    assert is_sealed(found)
    edited = {**found["rows"][0], "ratio": 3.0}
    for edit in (
        {"commands": ["python -m benchmarks.gemm by hand"]},
        {"commit": "another"},
        {"rows": [edited]},
    ):
        assert not is_sealed({**found, **edit})
    assert not is_sealed({key: value for key, value in found.items() if key != "digest"})


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_committed_results_are_as_their_commands_wrote_them(path: Path) -> None:
    found = document(path)
    if path.name in NOT_RENEWED:
        assert "digest" not in found
        return
    assert found["schema"] == SCHEMA
    assert found["digest"] == digest(found)
    benchmark = path.name.partition("-")[0]
    modules = WRITERS.get(benchmark, (benchmark,))
    begins = [["python", "-m", f"benchmarks.{module}"] for module in modules]
    assert all(shlex.split(command)[:3] in begins for command in found["commands"])
    assert found["commit"]
    assert "dirty" not in found["commit"]
    if at_commit := machine.sources_at(found["commit"], ROOT):  # a shallow clone lacks it
        assert found["sources"] == at_commit


def test_sources_are_those_of_the_commit_until_a_measured_file_changes(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "core.autocrlf=false"]
        subprocess.run(
            ["git", "-C", str(tmp_path), *identity, *arguments], check=True, capture_output=True
        )

    kernel = tmp_path / "custom_ops" / "kernel.h"
    for path in (
        kernel,
        tmp_path / "docs" / "page.md",
        tmp_path / "benchmarks" / "results" / "gemm.json",
    ):
        path.parent.mkdir(parents=True)
        path.write_text("old")
    git("init")
    git("add", ".")
    git("commit", "-m", "first")
    commit = machine.commit(tmp_path)
    (tmp_path / "docs" / "page.md").write_text("new")
    (tmp_path / "benchmarks" / "results" / "gemm.json").write_text("new")
    assert (machine.commit(tmp_path), machine.sources(tmp_path)) == (
        commit,
        machine.sources_at(commit, tmp_path),
    )
    machine.sources.cache_clear()
    kernel.write_text("new")
    assert machine.commit(tmp_path) == f"{commit}-dirty"
    assert machine.sources(tmp_path) != machine.sources_at(commit, tmp_path)
    assert machine.sources_at("0123456789ab", tmp_path) == ""


def test_outside_a_checkout_the_commit_is_what_the_caller_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONNXBOLT_COMMIT", "0123456789ab")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert machine.commit(tmp_path) == "0123456789ab"
