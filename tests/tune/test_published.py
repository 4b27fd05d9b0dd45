"""Measurements that come with the package, here of a GPU that there is not: no figure is one of a
GPU."""

from __future__ import annotations

import dataclasses
import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import publish
from onnxbolt import pipeline
from onnxbolt.archs import get
from onnxbolt.codegen import digest
from onnxbolt.codegen.digest import families_digests, present_sources_digest
from onnxbolt.errors import InputError, ToolchainError
from onnxbolt.measurements.keys import kernel_key
from onnxbolt.measurements.records import Machine, Measurement, Status
from onnxbolt.measurements.timings import NOTHING, Timings
from onnxbolt.options import Options
from onnxbolt.plan.cost import ranked
from onnxbolt.problems import Problem
from onnxbolt.report import Report
from onnxbolt.tune import published
from onnxbolt.tune.database import Database
from onnxbolt.tune.lockfile import Lock
from onnxbolt.tune.stage import kernel_problems
from onnxbolt.tune.subject import Subject
from tests.tune import fakes
from tests.tune.fakes import gemm
from tests.tune.local_gpu import Gpu, net

HERE = dataclasses.replace(fakes.MACHINE, gpu="Fake GPU", templates=present_sources_digest())
KNOWN, OTHER, UNKNOWN = gemm(512, 528, 528), gemm(512, 544, 528), gemm(64, 64, 64)


def rows(problem: Problem, machine: Machine = HERE) -> list[Measurement]:
    """Times that make the last of some kernels the fastest."""
    kernels = [config for _, config in ranked(problem, get(90))[:6]]
    key = kernel_key(problem, machine)
    return [
        Measurement(key, config, Status.OK, 10.0 - i, 0.01, 20) for i, config in enumerate(kernels)
    ]


def published_in(folder: Path, measurements: Sequence[Measurement]) -> None:
    with Database(folder / "measured.sqlite") as database:
        database.add(*measurements)
    assert publish.main([str(folder / "measured.sqlite"), "--out", str(folder)]) == 0


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the package's files on a machine with a GPU of a published kind."""
    published._read.cache_clear()
    monkeypatch.setattr(published, "FOLDER", tmp_path)
    monkeypatch.setattr("onnxbolt.gpu.local_arch", lambda: "sm_90a")
    monkeypatch.setattr("onnxbolt.gpu.name", lambda: HERE.gpu)
    toolchain = SimpleNamespace(version=HERE.cuda)
    monkeypatch.setattr(published, "profiling_toolchain", lambda: toolchain)
    monkeypatch.setattr(published, "cutlass_version", lambda _: HERE.cutlass)
    return tmp_path


def test_the_fastest_kernel_of_each_problem_is_published(folder: Path) -> None:
    wrong = dataclasses.replace(rows(KNOWN)[-1], status=Status.WRONG)
    session = Measurement('{"region":"a name","machine":{}}', None, Status.OK, 1.0)
    published_in(folder, [*rows(KNOWN), wrong, *rows(OTHER), session])
    lines = gzip.decompress((folder / "fake-gpu.jsonl.gz").read_bytes()).decode().splitlines()
    assert len(lines) == 1 + 2
    assert "a name" not in "".join(lines)
    found = published.of_local_gpu([90])
    assert found is not None
    assert found.machine == HERE
    assert {problem for problem, _ in found.choices} == {KNOWN, OTHER}
    choice = found.choices[KNOWN, 90]
    assert (choice.config, choice.us) == (rows(KNOWN)[-2].config, 6.0)
    assert choice.measured
    assert choice.published


def test_of_several_power_limits_the_fastest_counts(folder: Path) -> None:
    slow = dataclasses.replace(HERE, power_limit=300)
    measured = rows(KNOWN), [dataclasses.replace(r, us=2 * r.us) for r in rows(KNOWN, slow)]
    for number, order in enumerate((measured, measured[::-1])):
        place = folder / str(number)
        place.mkdir()
        published_in(place, [row for each in order for row in each])
        lines = gzip.decompress((place / "fake-gpu.jsonl.gz").read_bytes()).decode().splitlines()
        assert [json.loads(line)["us"] for line in lines[1:]] == [rows(KNOWN)[-1].us]


@pytest.mark.parametrize("part", ["gpu", "cuda", "cutlass"])
def test_another_gpu_or_version_is_a_miss(folder: Path, part: str) -> None:
    another: dict[str, Any] = {part: "Another"}
    published_in(folder, rows(KNOWN, dataclasses.replace(HERE, **another)))
    assert published.of_local_gpu([90]) is None


def test_the_power_limit_may_be_another(folder: Path) -> None:
    published_in(folder, rows(KNOWN, dataclasses.replace(HERE, power_limit=500)))
    assert published.of_local_gpu([90])


def test_an_architecture_that_is_not_planned_for_is_a_miss(folder: Path) -> None:
    published_in(folder, rows(KNOWN))
    assert published.of_local_gpu([80]) is None


def test_kernels_that_have_changed_are_a_miss(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    published_in(folder, rows(KNOWN, dataclasses.replace(HERE, templates="0" * 64)))
    assert not (folder / "fake-gpu.jsonl.gz").exists()
    before = families_digests()
    monkeypatch.setattr(digest, "_earlier", lambda: {"0" * 64: before})
    published_in(folder, rows(KNOWN, dataclasses.replace(HERE, templates="0" * 64)))
    assert published.of_local_gpu([90])
    before.update(dict.fromkeys(before, "others"))
    published._read.cache_clear()
    assert published.of_local_gpu([90]) is None


def test_without_a_compiler_none_are_used(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise ToolchainError("no nvcc")

    published_in(folder, rows(KNOWN))
    monkeypatch.setattr(published, "profiling_toolchain", missing)
    assert published.of_local_gpu([90]) is None


def test_what_is_known_comes_first(folder: Path) -> None:
    published_in(folder, [*rows(KNOWN), *rows(OTHER)])
    found = published.of_local_gpu([90])
    assert found is not None
    own = dataclasses.replace(found.choices[KNOWN, 90], us=1.0, published=False)
    before = Timings({(KNOWN, 90): own}, failed=frozenset({(OTHER, 90)}))
    assert found.extend(before, [KNOWN, OTHER, UNKNOWN], []) is before
    after = found.extend(NOTHING, [KNOWN, KNOWN, OTHER, UNKNOWN], [])
    assert after.choices.keys() == {(KNOWN, 90), (OTHER, 90)}
    assert after.machine == HERE


def test_optimize_uses_them(folder: Path, gpu: Gpu) -> None:
    """Below the user's own measurements; report and lock file tell."""

    def optimized(lock: str | None = None, **options: Any) -> Report:
        options |= {"lock": folder / lock} if lock else {}
        out = folder / "out.onnx" if lock else None
        return pipeline.optimize(net(), out, library=False, verify=False, **options)

    def configs(report: Report) -> list[tuple[str, ...]]:
        return [node.configs for node in report.fused]

    without = optimized()
    assert not any(p.published for node in without.fused for p in node.predicted)
    options = Options(archs=("sm_90a",))
    problems = dict.fromkeys(kernel_problems(Subject.of(net(), options), [90]))
    published_in(folder, [row for problem in problems for row in rows(problem)])
    published._read.cache_clear()
    report = optimized("onnxbolt.lock")
    assert configs(report) != configs(without)
    assert all(p.published and p.measured_us for node in report.fused for p in node.predicted)
    assert "those of 3 nodes come with onnxbolt" in report.text()
    assert report.machine == HERE
    choices = json.loads((folder / "onnxbolt.lock").read_text())["choices"]
    assert [choice["published"] for choice in choices] == [True] * len(problems)
    lock = Lock.read(folder / "onnxbolt.lock")
    assert all(choice.published for choice in lock.timings().choices.values())
    assert not lock.timings(frozen=False).choices  # looked up anew
    assert configs(optimized("onnxbolt.lock", frozen=True)) == configs(report)
    hurried = optimized(tune=True, budget=1e-9)
    assert configs(hurried) == configs(report)
    assert all(p.published for node in hurried.fused for p in node.predicted)
    tuned = optimized(tune=True)
    assert configs(optimized()) == configs(tuned)
    assert not any(p.published for node in optimized().fused for p in node.predicted)


def test_kernels_that_failed_here_are_left_out(folder: Path, gpu: Gpu) -> None:
    options = Options(archs=("sm_90a",))
    problems = dict.fromkeys(kernel_problems(Subject.of(net(), options), [90]))
    published_in(folder, [row for problem in problems for row in rows(problem)])
    here = dataclasses.replace(fakes.MACHINE, arch=90)
    wrong = [dataclasses.replace(rows(p, here)[-1], status=Status.WRONG) for p in problems]
    with Database() as database:
        database.add(*wrong)
    report = pipeline.optimize(net(), library=False, verify=False)
    assert not any(p.published for node in report.fused for p in node.predicted)


def test_a_machine_with_other_fields_is_one_clear_error(folder: Path) -> None:
    published_in(folder, rows(KNOWN))
    path = folder / "fake-gpu.jsonl.gz"
    header, line = gzip.decompress(path.read_bytes()).decode().splitlines()
    row = json.loads(line)
    key = json.loads(row["key"])
    key["machine"]["color"] = "green"
    lines = (header, json.dumps({**row, "key": json.dumps(key)}))
    path.write_bytes(gzip.compress("".join(f"{each}\n" for each in lines).encode()))
    published._read.cache_clear()
    with pytest.raises(InputError, match=r"fake-gpu\.jsonl\.gz is damaged"):
        published.of_local_gpu([90])


def test_a_damaged_file_is_one_clear_error(folder: Path) -> None:
    (folder / "fake-gpu.jsonl.gz").write_bytes(gzip.compress(b"{}\n"))
    with pytest.raises(InputError, match=r"fake-gpu\.jsonl\.gz line 1"):
        published.of_local_gpu([90])


@pytest.mark.parametrize("path", sorted(published.FOLDER.glob("*.gz")), ids=lambda path: path.name)
def test_the_packages_files_can_be_used(path: Path) -> None:
    found = list(published._rows(path))
    keys = [json.loads(row.key) for row in found]
    assert {published.path_of(key["machine"]["gpu"]) for key in keys} == {path}
    assert len({json.dumps(key["kernel"]) + key["kind"] for key in keys}) == len(keys) > 300
    assert all(row.status is Status.OK for row in found)
    assert path.stat().st_size < 2**18
