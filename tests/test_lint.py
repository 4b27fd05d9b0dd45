"""Continuous integration and pre-commit run every check of `make lint`, on all code."""

from __future__ import annotations

import re
import tomllib

from tests.conftest import ROOT

CHECKS = {"lint-ruff", "lint-format", "lint-cxx", "lint-imports", "lint-types", "lint-docs"}


def test_lint_is_these_checks() -> None:
    (targets,) = re.findall(r"^lint: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(targets.split()) == CHECKS


def test_continuous_integration_runs_lint_and_tests() -> None:
    (command,) = re.findall(r"^exec (.*)$", (ROOT / ".ci/run").read_text(), re.MULTILINE)
    assert command.split() == ["make", "--keep-going", "--jobs=2", "lint", "test"]


def test_pre_commit_runs_the_same() -> None:
    text = (ROOT / ".pre-commit-config.yaml").read_text()
    assert set(re.findall(r"^ +entry: make (\S+)$", text, re.MULTILINE)) == CHECKS


def test_types_are_checked_everywhere() -> None:
    configuration = tomllib.loads((ROOT / "pyproject.toml").read_text())
    mypy = configuration["tool"]["mypy"]
    assert mypy["strict"]
    assert set(mypy["files"]) == {"onnxbolt", "models", "benchmarks", "tests", "examples", "docs"}


def test_git_takes_the_zoos_models_for_binary() -> None:
    lines = (ROOT / ".gitattributes").read_text().splitlines()
    assert {"*.onnx binary", "*.xz binary"} <= {*lines}
