"""The documentation as a site: links of the repository become links of the site. `make lint` builds
it strictly."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

import onnxbolt
from tests.conftest import ROOT
from tests.examples.loading import load

site = load("docs/site_hooks.py")


class Files:
    """mkdocs' own list of files has these pages."""

    def get_file_from_path(self, path: str) -> bool | None:
        return path in site.ROOT_PAGES or (ROOT / "docs" / path).is_file() or None


@pytest.mark.parametrize(
    ("place", "text", "expected"),
    [
        ("index.md", "[a](docs/tuning.md)", "[a](tuning.md)"),
        ("index.md", "[a](docs/deploy/cpp.md#x)", "[a](deploy/cpp.md#x)"),
        ("index.md", "![a](docs/figures/gemm.svg)", "![a](figures/gemm.svg)"),
        ("index.md", "[`a`](SECURITY.md)", "[`a`](SECURITY.md)"),
        ("index.md", "[all](docs/decisions)", "all"),
        ("deploy.md", "[a](../SECURITY.md#x) [b](tuning.md)", "[a](SECURITY.md#x) [b](tuning.md)"),
        ("deploy/cpp.md", "[a](../deploy.md#x)", "[a](../deploy.md#x)"),
        ("deploy/cpp.md", "[a](../../README.md)", "[a](../index.md)"),
        ("accuracy.md", "[a](../tests/false_alarms.json)", "a"),
        ("accuracy.md", "[a](nowhere.md)", "[a](nowhere.md)"),
        ("accuracy.md", "[a](https://b.c/d.md) [e](#f)", "[a](https://b.c/d.md) [e](#f)"),
        ("accuracy.md", "```\n[a](../tests)\n```", "```\n[a](../tests)\n```"),
    ],
)
def test_links_fit_the_site(place: str, text: str, expected: str) -> None:
    page: Any = SimpleNamespace(file=SimpleNamespace(src_uri=place))
    assert site.on_page_markdown(text, page, None, Files()) == expected


def test_the_navigation_has_every_decision() -> None:
    config: Any = SimpleNamespace(nav=[{"Develop": [{"Decisions": "decisions"}, "extending.md"]}])
    site.on_config(config)
    ((develop,),) = (entry.values() for entry in config.nav)
    pages = {f"decisions/{page.name}" for page in (ROOT / "docs/decisions").glob("*.md")}
    assert {*develop[0]["Decisions"]} == pages
    assert develop[1] == "extending.md"


def test_the_navigation_has_each_page_once() -> None:
    pages = re.findall(r"[\w/-]+\.md$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert len(pages) == len(set(pages))
    assert "report.md" in pages


def test_warnings_are_errors() -> None:
    """mkdocs does not count warnings that --quiet hides."""
    (command,) = re.findall(
        r"^\t(.*mkdocs build.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE
    )
    assert "--strict" in command
    assert "-q" not in command


def test_omitted_pages_and_broken_anchors_are_warnings() -> None:
    text = (ROOT / "mkdocs.yml").read_text()
    (block,) = re.findall(r"^validation:\n((?:  .*\n)+)", text, re.MULTILINE)
    checks = dict(line.split(": ") for line in block.split("\n") if line)
    assert set(checks.values()) == {"warn"}
    assert {"  omitted_files", "  anchors", "  unrecognized_links"} <= checks.keys()


def test_the_reference_has_every_public_name() -> None:
    text = (ROOT / "docs/reference.md").read_text()
    errors = {name for name in onnxbolt.__all__ if name.endswith("Error")}
    assert "::: onnxbolt.errors\n" in text
    others = {*onnxbolt.__all__} - errors - {"__version__"}
    assert {name for name in others if f".{name}\n" not in text} == set()
