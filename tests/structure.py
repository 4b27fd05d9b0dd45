"""Counts of what keeps one kernel from being one folder, in this tree and in an earlier one.

    # the working tree beside REVISION, by default the commit before the code was rearranged
    python -m tests.structure [REVISION]
    # every place that is counted in the working tree
    python -m tests.structure --places
    # files that adding something takes, by extensions and by earlier commits
    python -m tests.structure --additions

Python is counted from its syntax tree. A file names a kernel family by `Family.NAME`,
`named("name")`, a number that `family` is compared with, the family's module or header, or the name
itself unless it has another meaning as well (like pool). A family's folders are families/<name>/
and templates/<name>/.
"""

from __future__ import annotations

import argparse
import ast
import functools
import importlib
import io
import re
import subprocess
import tarfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePosixPath

from rich.console import Console
from rich.table import Table

from tests.conftest import ROOT

BEFORE = "e436c9b"
FOLDERS = ("onnxbolt", "custom_ops", "templates")
SUFFIXES = (".py", ".h", ".cc", ".cu", ".j2")
MOST_PARAMETERS, MOST_FIELDS = 8, 12
# names of families that have another meaning as well
_ORDINARY = {"pool", "depthwise", "squeeze_excite", "elementwise", "layout", "resize", "attention"}
_ORDINARY |= {"norm", "group_norm", "grid_sample", "pixel_shuffle"}
# kinds of ops, but "to_nchw", which is the name of a field, too; the folders of onnxbolt/ops/
_OP_KINDS = {"conv", "conv1d", "conv_chain", "elementwise", "gemm", "gemm_chain", "resize"}
_OP_KINDS |= {"average_pool", "global_average_pool", "max_pool", "squeeze_excite", "to_nhwc"}
_OP_FOLDERS = {"conv", "elementwise", "gemm", "layout", "pool", "resize", "squeeze_excite"}
_OPS_OWN = tuple(f"onnxbolt/{part}" for part in ("ops/", "problems", "families/", "kernels/"))

Tree = Mapping[str, str]  # text of each file by its path
Places = Iterator[str]  # "path:line", once for each thing that is counted


def working_tree() -> Tree:
    """The files of FOLDERS as they are on the disk."""
    paths = (path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*")))
    return {
        path.relative_to(ROOT).as_posix(): path.read_text()
        for path in paths
        if path.suffix in SUFFIXES
    }


def revision(name: str) -> Tree:
    """The files of FOLDERS in a commit. Raises CalledProcessError if git does not know it."""
    command = ("git", "archive", name, *FOLDERS)
    archive = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout
    texts = {}
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for member in tar:
            if member.isfile() and PurePosixPath(member.name).suffix in SUFFIXES:
                file = tar.extractfile(member)
                assert file is not None
                texts[member.name] = file.read().decode()
    return texts


# --- families -------------------------------------------------------------------------------------


def families(tree: Tree) -> tuple[frozenset[str], frozenset[str]]:
    """The files that list the families, and the families' names in lower case: folders of
    custom_ops/families/, and an enumeration with GEMM_2X, as earlier commits have it."""
    files, names = {"onnxbolt/families/__init__.py"}, set()
    for path, module in _modules(tree):
        for node in ast.walk(module):
            if isinstance(node, ast.ClassDef) and "GEMM_2X" in (members := _members(node)):
                files.add(path)
                names |= {name.lower() for name in members}
    for path in tree:
        parts = PurePosixPath(path).parts
        if parts[:2] == ("custom_ops", "families") and len(parts) > 3:
            names.add(parts[2])
    return frozenset(files), frozenset(names)


def _members(enumeration: ast.ClassDef) -> set[str]:
    return {
        target.id
        for statement in enumeration.body
        if isinstance(statement, ast.Assign)
        for target in statement.targets
        if isinstance(target, ast.Name)
    }


def _own(path: str, names: frozenset[str]) -> str:
    """The family in whose folder the file lies; empty if it lies in none."""
    folders = PurePosixPath(path).parent.parts
    above, last = folders[:-1], folders[-1]
    return last if above[-1:] in (("families",), ("templates",)) and last in names else ""


def _named(text: str, names: frozenset[str]) -> Iterator[tuple[str, int]]:
    """Families that the text names, each with the line."""
    any_name, distinct = "|".join(sorted(names)), "|".join(sorted(names - _ORDINARY))
    pattern = re.compile(
        rf"\bFamily\.(?P<member>[A-Z]\w+)|\bFamily::k(?P<constant>\w+)"
        rf"|\bfamily\s*[!=]=\s*(?P<number>\d+)"
        rf"|\bnamed\([\"'](?P<called>{any_name})[\"']\)"
        r"|\bonnxbolt\.(?:kernels|plan|families)(?:\.| import [\w,\s(]*?\b)"
        rf"(?P<module>{any_name})\b"
        rf'|\#include "(?!ops/|cutlass/)(?:\w+/)*(?P<header>{any_name})[./]'
        rf"|(?<![A-Za-z0-9])(?P<word>(?i:{distinct}))(?![A-Za-z0-9]|_[a-z0-9])"
    )
    for match in pattern.finditer(text):
        name = next(value for value in match.groupdict().values() if value)
        yield name.lower(), text.count("\n", 0, match.start()) + 1


def _naming(tree: Tree, inside: bool) -> Places:
    """Files within families' folders, or outside of them, that name another family."""
    lists, names = families(tree)
    for path, text in tree.items():
        own = _own(path, names)
        if path in lists or bool(own) != inside or text.startswith("// Generated from "):
            continue
        line = next((line for name, line in _named(text, names) if name != own), None)
        if line:
            yield f"{path}:{line}"


def outsiders(tree: Tree) -> Places:
    """Files outside the families' folders and their list that name one."""
    return _naming(tree, inside=False)


def neighbours(tree: Tree) -> Places:
    """Files in a family's folder that name another one."""
    return _naming(tree, inside=True)


# --- syntax ---------------------------------------------------------------------------------------


def _modules(tree: Tree) -> Iterator[tuple[str, ast.Module]]:
    for path, text in tree.items():
        if path.endswith(".py"):
            yield path, _parsed(text)


@functools.cache
def _parsed(text: str) -> ast.Module:
    return ast.parse(text)


def _where(tree: Tree, holds: Callable[[ast.AST], bool]) -> Places:
    for path, module in _modules(tree):
        for node in ast.walk(module):
            if holds(node):
                yield f"{path}:{getattr(node, 'lineno', 1)}"


def _calls(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name


def identities(tree: Tree) -> Places:
    """Calls of `id`."""
    return _where(tree, lambda node: _calls(node, "id"))


def kinds(tree: Tree) -> Places:
    """Comparisons of an attribute `kind`, but of element types, of which numpy has kinds."""

    def is_kind(node: ast.AST) -> bool:
        if not isinstance(node, ast.Attribute) or node.attr != "kind":
            return False
        of = node.value.func if isinstance(node.value, ast.Call) else node.value
        return "dtype" not in (getattr(of, "id", ""), getattr(of, "attr", ""))

    def holds(node: ast.AST) -> bool:
        if isinstance(node, ast.Compare):
            return any(map(is_kind, (node.left, *node.comparators)))
        return isinstance(node, ast.Match) and is_kind(node.subject)

    return _where(tree, holds)


def ops(tree: Tree) -> Places:
    """Kinds of ops by name, and imports of an op's module, outside of what says what an op is: its
    folder and the registry, the problems and the kernel families that serve it."""

    def names(node: ast.AST) -> bool:
        if isinstance(node, ast.ImportFrom):
            return (node.module or "").removeprefix("onnxbolt.ops.") in _OP_FOLDERS
        return isinstance(node, ast.Constant) and node.value in _OP_KINDS

    for place in _where(tree, names):
        if not place.startswith(_OPS_OWN):
            yield place


def problems(tree: Tree) -> Places:
    """isinstance of a class of problems."""

    def names(node: ast.AST) -> Iterator[str]:
        for part in ast.walk(node):
            if isinstance(part, ast.Name):
                yield part.id
            elif isinstance(part, ast.Attribute):
                yield part.attr

    def holds(node: ast.AST) -> bool:
        return (
            isinstance(node, ast.Call)
            and _calls(node, "isinstance")
            and any(name.endswith("Problem") for name in names(node.args[1]))
        )

    return _where(tree, holds)


def long_signatures(tree: Tree) -> Places:
    """Functions with more than MOST_PARAMETERS parameters, `self` and `cls` not counted."""

    def holds(node: ast.AST) -> bool:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            return False
        arguments = node.args
        listed = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        listed += [one for one in (arguments.vararg, arguments.kwarg) if one]
        own = sum(argument.arg in {"self", "cls"} for argument in listed[:1])
        return len(listed) - own > MOST_PARAMETERS

    return _where(tree, holds)


def wide_classes(tree: Tree) -> Places:
    """Classes with more than MOST_FIELDS annotated fields."""
    return _where(
        tree,
        lambda node: (
            isinstance(node, ast.ClassDef)
            and sum(isinstance(part, ast.AnnAssign) for part in node.body) > MOST_FIELDS
        ),
    )


def inner_imports(tree: Tree) -> Places:
    """Imports inside functions."""
    for path, module in _modules(tree):
        lines = {
            part.lineno
            for node in ast.walk(module)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            for part in ast.walk(node)
            if isinstance(part, ast.Import | ast.ImportFrom)
        }
        yield from (f"{path}:{line}" for line in sorted(lines))


# --- additions ------------------------------------------------------------------------------------

# each addition: its folder in tests/extending/, and commits that added such to the package before
ADDITIONS: dict[str, tuple[str, tuple[str, ...]]] = {
    "an activation": ("activation", ()),
    "a kernel family": ("gemm_fma", ("4ea3e97", "2bcdbf1", "bd69c2e")),
    "an op with its family": ("softmax", ("c5f0d34",)),
    "an architecture": ("architectures", ()),
    "a strategy for the tuner": ("strategy", ()),
}


def files_of_commit(name: str) -> list[str]:
    """The files of FOLDERS that a commit touched. Raises CalledProcessError if git does not know
    it."""
    command = ("git", "show", "--format=", "--name-only", name, "--", *FOLDERS)
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout
    return shown.split()


def files_of_extension(folder: str) -> list[str]:
    """The files of an extension of tests/extending/."""
    paths = sorted((ROOT / "tests" / "extending" / folder).rglob("*"))
    return [path.relative_to(ROOT).as_posix() for path in paths if path.suffix in SUFFIXES]


def naming_extension(tree: Tree, folder: str) -> list[str]:
    """The files of the package that name what an extension of tests/extending/ adds; a step by its
    functor, since ONNX Runtime has operators of the same names."""
    extension = importlib.import_module(f"tests.extending.{folder}").EXTENSION
    names = [
        getattr(entry, "functor", entry.name)
        for part in ("archs", "epilogues", "ops", "families", "strategies")
        for entry in getattr(extension, part)
    ]
    word = re.compile(rf"\b({'|'.join(names)})\b")
    return [path for path, text in tree.items() if word.search(text)]


def additions() -> Table:
    """Files that adding each thing takes."""
    titles = ("files to add", "before", "an extension's", "the package's")
    rows, tree = Table(*titles, box=None, pad_edge=False), working_tree()
    for title, (folder, commits) in ADDITIONS.items():
        before = ", ".join(str(len(files_of_commit(name))) for name in commits)
        counts = (files_of_extension(folder), naming_extension(tree, folder))
        rows.add_row(title, before, *(str(len(files)) for files in counts))
    return rows


COUNTS: dict[str, Callable[[Tree], Places]] = {
    "files outside families' folders that name one": outsiders,
    "files of a family that name another one": neighbours,
    "calls of id()": identities,
    "comparisons of .kind": kinds,
    "places outside of ops that name one": ops,
    "isinstance of problems": problems,
    f"functions with more than {MOST_PARAMETERS} parameters": long_signatures,
    f"classes with more than {MOST_FIELDS} fields": wide_classes,
    "imports inside functions": inner_imports,
}


def table(before: str) -> Table:
    """Each count in the commit `before` and in the working tree."""
    rows = Table("", before, "working tree", box=None, pad_edge=False)
    earlier, now = revision(before), working_tree()
    for title, count in COUNTS.items():
        rows.add_row(title, *(str(sum(1 for _ in count(tree))) for tree in (earlier, now)))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("revision", nargs="?", default=BEFORE, help=f"default: {BEFORE}")
    parser.add_argument("--places", action="store_true", help="list what is counted here")
    parser.add_argument("--additions", action="store_true", help="count files that additions take")
    chosen = parser.parse_args()
    console = Console(highlight=False, soft_wrap=True)
    if chosen.places:
        tree = working_tree()
        for title, count in COUNTS.items():
            console.print(title, *(f"    {place}" for place in count(tree)), sep="\n")
        return
    try:
        console.print(additions() if chosen.additions else table(chosen.revision))
    except subprocess.CalledProcessError as error:
        parser.error(f"{chosen.revision}: {error.stderr.decode().strip()}")


if __name__ == "__main__":
    main()
