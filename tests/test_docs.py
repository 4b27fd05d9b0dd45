"""Everything that the documentation names exists: files, links, options of the command line,
attributes of fused nodes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import onnx
import pytest

import onnxbolt
from onnxbolt.cli import commands
from onnxbolt.families import FAMILIES
from onnxbolt.families.__main__ import columns, table
from tests.conftest import ROOT
from tests.support import Net

PAGES = sorted((*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")))
FOLDERS = (
    "onnxbolt/",
    "custom_ops/",
    "templates/",
    "tests/",
    "docs/",
    "models/",
    "benchmarks/",
    "examples/",
)


def page_id(page: Path) -> str:
    return str(page.relative_to(ROOT))


def in_backticks(page: Path) -> Iterator[str]:
    text = page.read_text()
    for block in re.findall(r"```.*?```", text, re.DOTALL):
        yield from block.splitlines()[1:-1]
    yield from re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))


def options_of(command: click.Command) -> Iterator[click.Option]:
    """Options of a command, and of the commands of a group."""
    yield from (option for option in command.params if isinstance(option, click.Option))
    if isinstance(command, click.Group):
        for member in command.commands.values():
            yield from options_of(member)


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_and_paths_exist(page: Path) -> None:
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", page.read_text()) if "://" not in link]
    assert [link for link in links if not (page.parent / link).exists()] == []
    paths = [
        code
        for code in in_backticks(page)
        if code.startswith(FOLDERS) and re.fullmatch(r"[\w./]+", code)
    ]
    assert [path for path in paths if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_sources_named_without_their_top_folder_exist(page: Path) -> None:
    names = {code for code in in_backticks(page) if re.fullmatch(r"[\w.]+/[\w./]+\.\w+", code)}
    sources = {name for name in names if name.endswith((".py", ".h", ".cc", ".cu", ".j2"))}
    roots = (ROOT, ROOT / "onnxbolt", ROOT / "custom_ops")
    assert {name for name in sources if not any((root / name).exists() for root in roots)} == set()


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_options_exist(page: Path) -> None:
    others = {"--no-deps", "--strict", "--batch"}  # options of pip, mypy and python -m models
    others |= {"--kernel-name-base"}  # Nsight Compute's
    others |= {"--gpus", "--model-repository", "--rm", "--target"}  # docker's and Triton's
    others |= {"--memory-limit", "--nthreads", "--protocol", "--resources"}  # dask's
    others |= {"--tls-ca-file", "--tls-cert", "--tls-key"}
    examples = {
        flag
        for path in ROOT.glob("examples/**/*.*")
        if path.suffix != ".pyc"
        for flag in re.findall(r"--[a-z-]+", path.read_text())
    }
    known = (others | examples) | {
        flag for option in options_of(commands) for flag in (*option.opts, *option.secondary_opts)
    }
    named = {
        flag
        for code in in_backticks(page)
        for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]+", code)
    }
    assert named <= known


def test_each_page_is_in_the_site_s_navigation() -> None:
    """`make lint` builds the site, which takes longer."""
    named = re.findall(r"^ +- (?:\w+: )?(\S+)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    pages = (
        page.relative_to(ROOT / "docs") for page in PAGES if page.is_relative_to(ROOT / "docs")
    )
    assert [str(page) for page in pages if not {str(page), str(page.parent)} & {*named}] == [], (
        "add it to nav in mkdocs.yml"
    )


def test_the_readme_s_picture_shows_what_optimize_does(tmp_path: Path) -> None:
    picture = (ROOT / "docs/figures/fusion.svg").read_text()
    shown = re.findall(r"<text [^>]*>(\w+)</text>", picture)
    net = Net({"image": (1, 64, 56, 56)})
    x = net.node("Relu", net.conv("image", 64, 64))
    first = len(net.nodes)
    y = net.node("Relu", net.batchnorm(net.conv(x, 64, 64, 3, pads=[1, 1, 1, 1]), 64))
    y = net.batchnorm(net.conv(y, 64, 64, 3, pads=[1, 1, 1, 1]), 64)
    block = net.node("Relu", net.node("Add", y, x))
    assert [node.op_type for node in net.nodes[first:]] == shown[:7]
    out = tmp_path / "out.onnx"
    onnxbolt.optimize(
        net.model(net.conv(block, 64, 64)), out, fuse="all", archs=("sm_80",), library=False
    )
    fused = [node.op_type for node in onnx.load(out).graph.node if "Conv" in node.op_type]
    assert fused[1:3] == [name for name in shown if name.startswith("Fused")]


def test_each_command_is_in_the_readme() -> None:
    text = (ROOT / "README.md").read_text()
    assert [name for name in commands.commands if f"`onnxbolt {name} " not in text] == []


def test_attributes_and_columns_are_documented(small_model: Path) -> None:
    out = small_model.with_name("out.onnx")
    onnxbolt.optimize(small_model, out, fuse="all", library=False, verify=False)
    text = (ROOT / "docs/node-format.md").read_text()
    model = onnx.load(out)
    attributes = {
        attribute.name
        for node in model.graph.node
        if node.domain == "com.onnxbolt"
        for attribute in node.attribute
    }
    assert {
        name
        for name in attributes | {entry.key for entry in model.metadata_props}
        if f"`{name}`" not in text
    } == set()
    # `python -m onnxbolt.families` prints them
    assert columns() in text
    assert table() in text
    fields = {name for family in FAMILIES.values() for name in family.places}
    assert sorted(name for name in fields if f"`{name}`" not in text.replace(table(), "")) == []
