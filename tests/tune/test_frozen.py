"""--lock and --frozen end to end: the same bytes again, from the lock file alone."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from onnxbolt import optimize
from onnxbolt.archs import ARCHS
from onnxbolt.cli import main
from onnxbolt.codegen.digest import kernel_sources_digest
from onnxbolt.errors import AccuracyError, FrozenError
from onnxbolt.families import KernelConfig
from onnxbolt.library import generated_sources, manifest_of_model
from onnxbolt.measurements.timings import Choice, Cut, Timings
from onnxbolt.opspec import configs_of_node
from onnxbolt.options import Options
from onnxbolt.plan.cost import candidates, fused_us
from onnxbolt.problems import GemmProblem, Problem
from onnxbolt.tune.lockfile import Lock
from onnxbolt.tune.subject import Subject
from tests.support import Net

ARCHITECTURES = ("--arch", "sm_90a", "--arch", "sm_80")
FLAGS = ("--no-library", "--no-verify", "--quiet")


def network() -> onnx.ModelProto:
    """Convolutions that win as a region, one that loses alone, and two GEMMs, too wide for one
    kernel."""
    net = Net({"x": (8, 64, 28, 28)})
    y = net.node("HardSwish", net.conv("x", 64, 64, 3, pads=[1, 1, 1, 1]))
    y = net.node("HardSwish", net.conv(y, 64, 64, 3, pads=[1, 1, 1, 1]))
    y = net.node("Softmax", net.conv(net.node("Softmax", y, axis=2), 64, 8), axis=2)
    y = net.node("Flatten", net.node("GlobalAveragePool", y))
    return net.model(net.linear(net.node("Relu", net.linear(y, 8, 520)), 520, 96))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    onnx.save(network(), tmp_path / "in.onnx")
    return tmp_path / "in.onnx"


@pytest.fixture
def lock(model: Path) -> Path:
    """A lock file with the planner's predictions."""
    path = model.with_name("onnxbolt.lock")
    assert (
        main(
            [
                "optimize",
                str(model),
                str(model.with_name("first.onnx")),
                "--lock",
                str(path),
                *ARCHITECTURES,
                *FLAGS,
            ]
        )
        == 0
    )
    return path


def second_best(problem: Problem, arch: int) -> KernelConfig:
    timed = sorted(
        (fused_us(problem, config, ARCHS[arch]), config)
        for config in candidates(problem, ARCHS[arch])
    )
    return timed[1][1]


def fused_nodes(path: Path) -> list[onnx.NodeProto]:
    """Those whose kernels are chosen; a change of layout has one."""
    return [node for node in onnx.load(path).graph.node if node.op_type.startswith("Fused")]


def configs(path: Path) -> list[KernelConfig]:
    return [config for node in fused_nodes(path) for config in configs_of_node(node)]


def sources(path: Path) -> dict[str, str]:
    return generated_sources(manifest_of_model(onnx.load(path)))


def frozen(model: Path, lock: Path, out: Path, *flags: str) -> int:
    return main(["optimize", str(model), str(out), "--lock", str(lock), "--frozen", *FLAGS, *flags])


def test_two_processes_in_two_directories_give_the_same_bytes(
    model: Path, lock: Path, tmp_path: Path
) -> None:
    """No architecture is given: the lock's are taken, whatever GPU is here."""
    outputs = []
    for seed in ("1", "2"):
        directory = tmp_path / f"directory {seed}"
        directory.mkdir()
        command = [
            sys.executable,
            "-c",
            "import sys; from onnxbolt.cli import main; sys.exit(main())",
            "optimize",
        ]
        command += [str(model), "out.onnx", "--lock", str(lock), "--frozen", *FLAGS]
        environment = {
            **os.environ,
            "PYTHONHASHSEED": seed,
            "ONNXBOLT_CACHE_DIR": str(directory / "cache"),
            "CUDA_VISIBLE_DEVICES": "",
        }
        subprocess.run(command, cwd=directory, env=environment, check=True, timeout=120)
        outputs.append(directory / "out.onnx")
    assert (
        outputs[0].read_bytes()
        == outputs[1].read_bytes()
        == model.with_name("first.onnx").read_bytes()
    )
    assert sources(outputs[0]) == sources(outputs[1])


def test_writing_the_lock_again_changes_nothing(model: Path, lock: Path) -> None:
    before = lock.read_bytes()
    assert (
        main(
            [
                "optimize",
                str(model),
                str(model.with_name("again.onnx")),
                "--lock",
                str(lock),
                *ARCHITECTURES,
                *FLAGS,
            ]
        )
        == 0
    )
    assert lock.read_bytes() == before


def test_configurations_come_from_the_lock_alone(
    model: Path, lock: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Locked choices that no prediction makes, with the predictions of candidates out of reach."""
    read = Lock.read(lock)
    others = {
        (problem, arch): Choice(second_best(problem, arch), 1.0, measured=arch == 90)
        for problem, arch in read.choices
    }
    dataclasses.replace(read, choices=others).write(lock)
    monkeypatch.setattr("onnxbolt.plan.verdicts._predicted", None)
    monkeypatch.setattr("onnxbolt.plan.choose.ranked", None)
    out = model.with_name("out.onnx")
    assert frozen(model, lock, out) == 0
    assert set(configs(out)) == {choice.config for choice in others.values()}
    words = {
        str(onnx.helper.get_node_attr_value(n, "config_source"), "ascii") for n in fused_nodes(out)
    }
    assert words == {"measured,predicted"}


def test_what_is_fused_comes_from_the_lock_alone(model: Path, lock: Path) -> None:
    first = Lock.read(lock)
    assert {comparison.fused for comparison in first.comparisons.values()} == {True, False}
    nothing = {
        key: dataclasses.replace(found, decided=False) for key, found in first.comparisons.items()
    }
    dataclasses.replace(first, comparisons=nothing).write(lock)
    out = model.with_name("out.onnx")
    assert frozen(model, lock, out) == 0
    assert configs(out) == []


def test_measured_choices_of_a_lock_are_used_and_predicted_ones_made_anew(
    model: Path, lock: Path
) -> None:
    read = Lock.read(lock)
    others = {
        (problem, arch): Choice(second_best(problem, arch), 1.0, measured=arch == 90)
        for problem, arch in read.choices
    }
    dataclasses.replace(read, choices=others).write(lock)
    out = model.with_name("out.onnx")
    assert (
        main(["optimize", str(model), str(out), "--lock", str(lock), *ARCHITECTURES, *FLAGS]) == 0
    )
    assert {c for c in configs(out) if c.arch == 90} == {
        choice.config for (_, arch), choice in others.items() if arch == 90
    }
    assert {key: choice for key, choice in Lock.read(lock).choices.items() if key[1] == 80} == {
        key: choice for key, choice in read.choices.items() if key[1] == 80
    }


@pytest.mark.parametrize(
    ("part", "what"), [("choices", "2 problems: sm_80 gemm 8x"), ("regions", "1 regions: sm_90 ")]
)
def test_a_miss_is_exit_code_5_and_says_what(
    model: Path, lock: Path, capsys: pytest.CaptureFixture[str], part: str, what: str
) -> None:
    values = json.loads(lock.read_text())
    if part == "regions":
        del values[part][0]
    else:
        values[part] = [
            row for row in values[part] if (row["arch"], row["kind"]) != (80, "GemmProblem")
        ]
    lock.write_text(json.dumps(values))
    out = model.with_name("out.onnx")
    assert frozen(model, lock, out) == FrozenError.exit_code == 5
    message = capsys.readouterr().err
    assert f"error: the lock file lacks {what}" in message
    assert "Run once without freezing and commit the lock file" in message
    assert not out.exists()


def test_many_misses_are_counted(
    model: Path, lock: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dataclasses.replace(Lock.read(lock), choices={}).write(lock)
    assert frozen(model, lock, model.with_name("out.onnx")) == 5
    message = capsys.readouterr().err
    assert "lacks 6 problems" in message
    assert "and 3 more" in message


def two_layers() -> Subject:
    net = Net({"x": (16384, 256)})
    y = net.node("Relu", net.linear("x", 256, 64))
    return Subject.of(net.model(net.node("Relu", net.linear(y, 64, 16))), Options())


def test_why_layers_are_apart_is_said_as_it_was_measured(tmp_path: Path) -> None:
    """The lock file has the time of the kernel for both, too, though the model has none."""
    us = {1: 2.0, 2: 9.0}
    subject = two_layers()
    choices: dict[tuple[Problem, int], Choice] = {}
    for problem in subject.segments([90]):
        assert isinstance(problem, GemmProblem)
        choices[problem, 90] = Choice(second_best(problem, 90), us[len(problem.layers)])
    apart = subject.plan([90], "all", Timings(choices))
    assert [refusal.reason for refusal in apart.refusals] == [
        "merging it with the previous layer was measured to be slower"
    ]
    Lock().updated(apart.used, Options(), ["sm_90a"]).write(tmp_path / "onnxbolt.lock")
    again = two_layers().plan([90], "all", Lock.read(tmp_path / "onnxbolt.lock").timings())
    assert again.refusals == apart.refusals
    assert again.used.choices == apart.used.choices


def test_a_cut_whose_times_are_not_locked_is_no_prediction() -> None:
    used = two_layers().plan([90], "all", Timings()).used
    ((key, cut),) = used.cuts.items()
    assert cut.layers == 2
    decided = two_layers().plan([90], "all", Timings(cuts={key: Cut(1)}))
    assert [refusal.reason for refusal in decided.refusals] == [
        "not merged with the previous layer, as decided before"
    ]


def test_frozen_without_a_lock_is_wrong_usage(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["optimize", str(model), str(model.with_name("out.onnx")), "--frozen"]) == 2
    assert "--lock" in capsys.readouterr().err


def test_frozen_never_writes_the_lock(model: Path, lock: Path) -> None:
    before, time = lock.read_bytes(), lock.stat().st_mtime_ns
    assert frozen(model, lock, model.with_name("out.onnx")) == 0
    assert (lock.read_bytes(), lock.stat().st_mtime_ns) == (before, time)


def test_no_lock_without_an_output_that_passed(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "new.lock"
    optimize(model, lock=path, library=False, verify=False)
    with pytest.raises(AccuracyError):
        optimize(
            model,
            tmp_path / "out.onnx",
            lock=path,
            library=False,
            archs=("sm_80",),
            atol=0.0,
            rtol=0.0,
            keep_failed=True,
        )
    assert not path.exists()


def test_a_lock_says_which_kernels_it_is_about(lock: Path) -> None:
    assert Lock.read(lock).kernels == kernel_sources_digest()


def test_chains_are_cut_as_the_lock_file_says(tmp_path: Path) -> None:
    net = Net({"x": (16384, 256)})
    y = net.node("Relu", net.linear("x", 256, 64))
    source, path = tmp_path / "in.onnx", tmp_path / "onnxbolt.lock"
    onnx.save(net.model(net.node("Relu", net.linear(y, 64, 16))), source)
    flags = ("--arch", "sm_90a", "--lock", str(path), *FLAGS)
    assert main(["optimize", str(source), str(tmp_path / "first.onnx"), *flags]) == 0
    lock = json.loads(path.read_text())
    (cut,) = lock["cuts"]
    assert (cut["layers"], cut["chain"]) == (
        2,
        "gemm 16384x64-16x256, f16 to f32, Bias+Relu+Gemm+Bias+Relu",
    )
    assert main(["optimize", str(source), str(tmp_path / "again.onnx"), *flags, "--frozen"]) == 0
    assert (tmp_path / "again.onnx").read_bytes() == (tmp_path / "first.onnx").read_bytes()
    path.write_text(json.dumps({**lock, "cuts": []}))
    with pytest.raises(FrozenError, match="how many layers of gemm 16384x64-16x256"):
        optimize(
            source,
            tmp_path / "none.onnx",
            archs=("sm_90a",),
            lock=path,
            frozen=True,
            library=False,
            verify=False,
        )
