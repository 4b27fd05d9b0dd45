"""action.yml and the examples of docs/ci.md: parsed, and their scripts run in a repository."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from onnxbolt.cli import main
from onnxbolt.cli_ci import ci
from tests.ci.repository import Repository, net
from tests.conftest import ROOT

ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
STEPS = ACTION["runs"]["steps"]
PAGE = (ROOT / "docs" / "ci.md").read_text()
EXPRESSION = re.compile(r"\$\{\{ *(.*?) *\}\}")
# how a shell must not see names
HOSTILE = ("$(touch pwned)", "`touch pwned`", "; touch pwned;", "a' ; touch pwned '", "-rf")


def example(language: str, title: str) -> str:
    """The example of one section of the page."""
    section = PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0]
    found = re.search(rf"```{language}\n(.*?)```", section, re.DOTALL)
    assert found is not None
    return found[1]


def options() -> dict[str, click.Option]:
    """The options of `onnxbolt ci` by their variables, but for those of every command."""
    return {
        f"ONNXBOLT_{option.name.upper()}": option
        for option in ci.params
        if isinstance(option, click.Option)
        and option.name
        and option.name not in ("verbose", "quiet", "log_format", "step_summary")
    }


def step(named: str) -> dict[str, Any]:
    (found,) = [each for each in STEPS if each.get("name") == named]
    return found


OWN = step("Optimize, verify and compare")


@dataclass(frozen=True)
class Shell:
    """Runs scripts in a repository as a CI does, with `python` and `onnxbolt` on the path."""

    repository: Repository
    tools: Path

    def run(self, script: str, **variables: str) -> subprocess.CompletedProcess[str]:
        own = {"PATH": f"{self.tools}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
        return subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
            cwd=self.repository.path,
            env={**os.environ, **own, **variables},
            capture_output=True,
            text=True,
        )

    def called(self, script: str, code: int = 0, **variables: str) -> list[Call]:
        """The calls of `onnxbolt` by a script, from a program in its place that exits with
        `code`. The script has to end with the same code."""
        record = self.tools.parent / "calls"
        record.unlink(missing_ok=True)
        stand_in = self.tools / "onnxbolt"
        own = stand_in.read_text()
        stand_in.write_text(
            f'#!/bin/bash\n(printf "%s\\0" "$#" "$@"; env -0; printf "end\\0") >> {record}\n'
            f"echo onnxbolt-key\nexit {code}\n"
        )
        assert self.run(script, **variables).returncode == code
        stand_in.write_text(own)
        calls = []
        for text in record.read_text().split("end\0")[:-1]:
            count, *rest = text.split("\0")
            environment = dict(line.split("=", 1) for line in rest[int(count) : -1])
            calls.append(Call(rest[: int(count)], environment))
        return calls


@dataclass(frozen=True)
class Call:
    """A call of a program."""

    arguments: list[str]
    variables: dict[str, str]


@pytest.fixture
def shell(tmp_path: Path, repository: Repository) -> Shell:
    tools = tmp_path / "tools"
    tools.mkdir()
    for name, module in (("python", ""), ("onnxbolt", "-m onnxbolt")):
        (tools / name).write_text(f'#!/bin/sh\nexec {sys.executable} {module} "$@"\n')
        (tools / name).chmod(0o755)
    return Shell(repository, tools)


def variables(**given: str) -> dict[str, str]:
    """The variables of the action's own step for some inputs, as GitHub's runner makes them."""
    values = {"github.base_ref": "", "runner.temp": "/tmp"}

    def filled(text: str) -> str:
        return EXPRESSION.sub(lambda match: values[match[1]], text)

    for name, about in ACTION["inputs"].items():
        default = filled(str(about.get("default", "")))
        values[f"inputs.{name}"] = given.get(name.replace("-", "_"), default)
    found = {name: filled(text) for name, text in OWN["env"].items()}
    return {**found, "ONNXBOLT_CACHE_DIR": os.environ["ONNXBOLT_CACHE_DIR"]}


def test_actions_are_pinned_and_scripts_have_no_expressions() -> None:
    assert ACTION["runs"]["using"] == "composite"
    workflow = yaml.safe_load(example("yaml", "GitHub"))
    used = [each["uses"] for each in STEPS if "uses" in each]
    used += [each["uses"] for job in workflow["jobs"].values() for each in job["steps"]]
    for name in used:
        assert re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40}|OWNER/onnxbolt@COMMIT", name), name
    scripts = [each for each in STEPS if "run" in each]
    assert len(scripts) == 3
    for each in scripts:
        assert "${{" not in each["run"]
        assert each["shell"] == "bash"
    assert STEPS[-1]["if"] == "${{ always() }}"


def test_inputs_are_the_variables_of_the_command() -> None:
    variables = {n: value for n, value in OWN["env"].items() if n != "ONNXBOLT_CACHE_DIR"}
    assert variables.keys() == options().keys()
    inputs = {EXPRESSION.fullmatch(value)[1] for value in variables.values()}  # type: ignore[index]
    others = {"inputs.python-version", "inputs.artifact"}
    assert {f"inputs.{name}" for name in ACTION["inputs"]} == inputs | others
    for name, value in variables.items():
        assert (
            value == f"${{{{ inputs.{name.removeprefix('ONNXBOLT_').lower().replace('_', '-')} }}}}"
        )
    workflow = yaml.safe_load(example("yaml", "GitHub"))
    (given,) = [
        each["with"] for each in workflow["jobs"]["onnxbolt"]["steps"] if "OWNER" in each["uses"]
    ]
    assert given.keys() <= ACTION["inputs"].keys()


def test_the_action_passes_fails_for_accuracy_and_for_a_stale_lock(
    shell: Shell, repository: Repository, tmp_path: Path
) -> None:
    for name in (*HOSTILE, "::error::x", "a\n::stop-commands::x", "\x1b[2J"):
        repository.save(f"{name}.onnx", net())
    repository.lock()
    summary = tmp_path / "step.md"
    given = {"model": "nets/sub", "lock": "locks/sub", "fuse": "all", "no_library": "true"}

    def run(**more: str) -> subprocess.CompletedProcess[str]:
        return shell.run(
            OWN["run"], GITHUB_STEP_SUMMARY=str(summary), **variables(**{**given, **more})
        )

    result = run(model="nets", lock="locks")
    assert result.returncode == 0, result.stderr
    first, *_, last = result.stdout.splitlines()
    assert re.fullmatch(r"::stop-commands::[0-9a-f]{32}", first)
    assert last == f"::{first.rpartition('::')[2]}::"
    assert "\x1b" not in result.stdout + result.stderr
    assert summary.read_text().startswith("# onnxbolt ")
    assert run(atol="0", rtol="0").returncode == 3
    repository.save("sub/b.onnx", net(40))
    result = run(base="main")
    assert result.returncode == 5
    assert re.search(r"^b\.onnx +changed", result.stdout, re.MULTILINE)
    assert "exit code 5" in (repository.path / "onnxbolt-out" / "junit.xml").read_text()
    assert not list(repository.path.rglob("pwned*"))


@pytest.mark.parametrize("name", HOSTILE)
def test_inputs_reach_the_program_as_they_are(
    name: str, shell: Shell, repository: Repository
) -> None:
    given = variables(**{each.replace("-", "_"): name for each in ACTION["inputs"]})
    (call,) = shell.called(OWN["run"], code=5, **given)
    assert call.arguments == ["ci"]
    assert {each: call.variables[each] for each in options()} == dict.fromkeys(options(), name)
    assert not list(repository.path.rglob("pwned*"))


def test_the_key_of_the_cache(shell: Shell, tmp_path: Path, repository: Repository) -> None:
    script, output = step("Find the key of the cache")["run"], tmp_path / "output"
    assert shell.run(script, GITHUB_OUTPUT=str(output), ONNXBOLT_LOCK="locks").returncode == 0
    prefix, key = output.read_text().splitlines()
    assert key.startswith(f"key={prefix.removeprefix('prefix=')}-")
    for lock in ("", *HOSTILE):
        calls = shell.called(script, GITHUB_OUTPUT=str(output), ONNXBOLT_LOCK=lock)
        assert [call.arguments for call in calls] == [
            ["cache", "key"],
            ["cache", "key", "--", lock or "."],
        ]
    assert not list(repository.path.rglob("pwned*"))


def test_gitlab_s_example(
    shell: Shell, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = yaml.safe_load(example("yaml", "GitLab"))["onnxbolt"]
    assert [line.partition(" -m ")[2] for line in job["before_script"]] == [
        'pip install "onnxbolt[cpu,cuda]"'
    ]
    (call,) = shell.called("\n".join(job["script"]))
    assert call.arguments == ["ci"]
    refused = repository.path / ".onnxbolt-cache"
    refused.write_text("")
    repository.git("add", ".onnxbolt-cache")
    assert shell.run("\n".join(job["script"]), **job["variables"]).returncode == 1
    repository.git("rm", "--quiet", "--force", ".onnxbolt-cache")
    assert job["variables"]["ONNXBOLT_BASE"] == "$CI_MERGE_REQUEST_DIFF_BASE_SHA"
    commit = repository.git("rev-parse", "HEAD").strip()
    checked(repository, {**job["variables"], "ONNXBOLT_BASE": commit}, monkeypatch)
    for path in (*job["artifacts"]["paths"], job["artifacts"]["reports"]["junit"]):
        assert (repository.path / path).exists()
    assert job["cache"]["paths"] == [job["variables"]["ONNXBOLT_CACHE_DIR"].rpartition("/")[2]]


def test_jenkins_s_example(
    shell: Shell, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = example("groovy", "Jenkins")
    bare = re.sub(r"'[^'\n]*'|\"[^\"\n]*\"", "", text)
    for opening, closing in ("{}", "()"):
        assert bare.count(opening) == bare.count(closing)
    assert not {"'", '"'} & set(bare)
    # Groovy puts no names into the scripts: strings in double quotes are those of `environment`
    quoted = re.findall(r'^ *(\S+).*"\$\{', text, re.MULTILINE)
    assert quoted == ["ONNXBOLT_BASE", "ONNXBOLT_CACHE_DIR"]
    clean, install, check = re.findall(r"^ +sh '(.*)'$", text, re.MULTILINE)
    assert install.endswith('&& .venv/bin/python -m pip install "onnxbolt[cpu,cuda]"')
    (call,) = shell.called(f"{clean}\n{check.removeprefix('.venv/bin/')}")
    assert call.arguments == ["ci"]
    given = dict(re.findall(r"^ +(ONNXBOLT_\w+) = ['\"](.*)['\"]$", text, re.MULTILINE))
    assert given["ONNXBOLT_BASE"] == "${env.CHANGE_TARGET ?: ''}"
    checked(repository, {**given, "ONNXBOLT_BASE": "main"}, monkeypatch)
    assert (repository.path / re.findall(r"junit testResults: '(.*)'", text)[0]).exists()


def checked(
    repository: Repository, variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run `onnxbolt ci` with an example's variables, each of which is an option's."""
    own = {name: value for name, value in variables.items() if name.startswith("ONNXBOLT_")}
    del own["ONNXBOLT_CACHE_DIR"]
    assert own.keys() <= options().keys()
    own |= {"ONNXBOLT_FUSE": "all", "ONNXBOLT_NO_LIBRARY": "1"}
    monkeypatch.chdir(repository.path)
    for name, value in own.items():
        monkeypatch.setenv(name, value)
    assert main(["ci"]) == 0
