"""Comments and docstrings name their subject first: none begins with of, what, where, whether,
who or whose."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# a riddle begins with one of these: its subject, if there is one, comes later
RIDDLE = re.compile(r"\W*(of|what|whatever|where|whether|who|whoever|whose)\b", re.IGNORECASE)
CPP_COMMENT = re.compile(r"(?P<mark>//|/\*|\{#)(?P<text>.*)")
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
FOLDERS = (
    "benchmarks",
    "custom_ops",
    "examples",
    "models",
    "onnxbolt",
    "templates",
    "tests",
)


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """The docstrings and comments of a file, each with its line; consecutive comment lines are one
    comment."""
    source = path.read_text()
    if path.suffix == ".py":
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, DOCUMENTED) and (text := ast.get_docstring(node)) is not None:
                yield node.body[0].lineno, text
    found = [(0, False, ""), *(_python if path.suffix == ".py" else _cpp)(source)]
    for (before, continued, _), (line, alone, text) in pairwise(found):
        if not (alone and continued and before == line - 1):
            yield line, text


def _python(source: str) -> Iterator[tuple[int, bool, str]]:
    """Line, True if the comment has the line to itself, and text of each comment line."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.line.lstrip().startswith("#"), token.string[1:]


def _cpp(source: str) -> Iterator[tuple[int, bool, str]]:
    for number, line in enumerate(source.splitlines(), 1):
        if (found := CPP_COMMENT.search(line)) is not None:
            yield number, line.lstrip().startswith(found["mark"]), found["text"]


def riddles(path: Path) -> list[str]:
    """The comments and docstrings of a file that begin with a riddle, as "file:line: text"."""
    return [
        f"{path}:{line}: {text.strip().partition(chr(10))[0]}"
        for line, text in texts(path)
        if RIDDLE.match(text)
    ]


@pytest.mark.parametrize("folder", FOLDERS)
def test_comments_name_their_subject_first(folder: str) -> None:
    files = [
        path
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".cu", ".cc", ".h", ".cuh", ".j2")
    ]
    assert files
    assert [line for path in sorted(files) for line in riddles(path)] == []


@pytest.mark.parametrize(
    ("name", "text", "lines"),
    [
        ("a.py", '"""Where it lies."""\n', [1]),
        ("a.py", 'def f():\n    """The place of x, of y."""\n', []),
        ("a.py", "# the rows\n# of x\nx = 1  # of y\n", [3]),
        ("a.py", "x = 1  # the rows\n# what follows\n", [2]),
        ("a.h", "// the rows\n// of x\nint x;  // what y is\n", [3]),
        ("a.cu.j2", "{# Whether x. #}\n", [1]),
    ],
)
def test_riddles_are_found(name: str, text: str, lines: list[int], tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    assert [int(found.split(":")[1]) for found in riddles(tmp_path / name)] == lines
