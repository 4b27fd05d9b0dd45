"""docs/extending.md shows the files of this folder as they are."""

from __future__ import annotations

import re

import pytest

from tests.conftest import ROOT

DOCUMENT = (ROOT / "docs" / "extending.md").read_text()
# a file that the text names, and the block of code behind it
BLOCKS = re.findall(
    r"`(tests/extending/[^`]*)`:\n\n```(?:python|cpp)\n(.*?)```", DOCUMENT, re.DOTALL
)
FOLDER = ROOT / "tests" / "extending"
FILES = [
    path.relative_to(ROOT).as_posix()
    for path in sorted(FOLDER.rglob("*"))
    if path.suffix in (".py", ".h", ".cc")
    and not path.name.startswith("test_")
    and path != FOLDER / "__init__.py"
]


@pytest.mark.parametrize(("file", "block"), BLOCKS)
def test_each_block_is_part_of_its_file(file: str, block: str) -> None:
    assert f"\n{block}" in f"\n{(ROOT / file).read_text()}"


def test_each_block_of_code_names_its_file() -> None:
    assert len(BLOCKS) == len(re.findall(r"^```(?:python|cpp)$", DOCUMENT, re.MULTILINE))


@pytest.mark.parametrize("file", FILES)
def test_each_file_is_described(file: str) -> None:
    assert f"`{file}`" in DOCUMENT


@pytest.mark.parametrize("test", sorted(path.name for path in FOLDER.glob("test_*.py")))
def test_each_test_is_named(test: str) -> None:
    assert f"`tests/extending/{test}`" in DOCUMENT
