"""examples/docker: the Dockerfile against the repository. No image is built here."""

from __future__ import annotations

import ast
import re
import sys
import tomllib

from tests.conftest import ROOT

TEXT = (ROOT / "examples/docker/Dockerfile").read_text().replace("\\\n", " ")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def instructions(name: str) -> list[str]:
    return re.findall(rf"^{name} (.*)$", TEXT, re.MULTILINE)


def allowed() -> set[str]:
    lines = (ROOT / "examples/docker/Dockerfile.dockerignore").read_text().splitlines()
    return {line[1:] for line in lines if line.startswith("!")}


def test_copied_files_exist_and_reach_the_builder() -> None:
    copied = [part for line in instructions("COPY") for part in line.split()[:-1]]
    assert {"pyproject.toml", "onnxbolt", "templates", "custom_ops"} <= {*copied}
    assert [path for path in copied if not (ROOT / path).exists()] == []
    assert {path.split("/")[0] for path in copied} <= allowed()


def test_a_wheel_can_be_made_of_what_is_copied() -> None:
    copied = {part for line in instructions("COPY") for part in line.split()[:-1]}
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    named = {
        PROJECT["readme"],
        *PROJECT["license-files"],
        *wheel["targets"]["wheel"]["only-include"],
    }
    assert {name.split("/")[0] for name in named} <= {path.split("/")[0] for path in copied}


def test_extras_exist() -> None:
    (extras,) = re.findall(r'"\$wheel\[([\w,]+)\]"', TEXT)
    assert {*extras.split(",")} <= PROJECT["optional-dependencies"].keys()


def test_the_service_has_all_that_it_imports() -> None:
    tree = ast.parse((ROOT / "examples/python_service/service.py").read_text())
    imported = {
        name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in (
            [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else [alias.name for alias in node.names]
        )
    } - {*sys.stdlib_module_names}
    (service,) = (line for line in instructions("RUN") if "onnxruntime-gpu" in line)
    packages = {"onnxruntime": "onnxruntime-gpu"}
    installed = set(re.findall(r"[\w-]+", service)) | {"onnxbolt"}
    assert {packages.get(name, name) for name in imported} <= installed
