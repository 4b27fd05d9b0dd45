"""The counts of tests/structure.py on a few lines each."""

from __future__ import annotations

import subprocess

import pytest

from tests import structure
from tests.conftest import ROOT

LIST = "class Family(IntEnum):\n    GEMM_2X = 1\n    POOL = 4\n"
KERNEL = {"custom_ops/families/halo_sm90/kernel.h": ""}


def python(text: str) -> dict[str, str]:
    return {"onnxbolt/some.py": text}


@pytest.mark.parametrize(
    "text",
    [
        "x = Family.POOL",
        "x = named('pool')",
        "x = 2 if config.family == 7 else 3",
        "from onnxbolt.families import pool",
        "from onnxbolt.families.pool import Pool",
        "# as gemm_2x does",
        "x = 'GEMM_2X'",
        "# as halo_sm90 does",
    ],
)
def test_a_file_names_a_family(text: str) -> None:
    tree = python(f"\n{text}\n") | KERNEL | {"onnxbolt/list.py": LIST}
    assert list(structure.outsiders(tree)) == ["onnxbolt/some.py:2"]
    assert list(structure.neighbours(tree)) == []


@pytest.mark.parametrize("text", ["from onnxbolt.graph import pool", "x = pool", "# my_gemm_2x_y"])
def test_a_file_names_no_family(text: str) -> None:
    tree = python(text) | {"onnxbolt/list.py": LIST}
    assert list(structure.outsiders(tree)) == []


def test_a_family_may_name_itself_alone() -> None:
    own, other = "onnxbolt/families/pool/cost.py", "templates/gemm_2x/unit.cu.j2"
    header = {"custom_ops/names.h": "// Generated from Python: gemm_2x"}
    tree = {own: "Family.POOL", other: "Family::kPool", "onnxbolt/list.py": LIST} | header
    assert list(structure.neighbours(tree)) == [f"{other}:1"]
    assert list(structure.outsiders(tree)) == []


@pytest.mark.parametrize(
    ("title", "text", "lines"),
    [
        ("calls of id()", "a = id(b)\nc.id(d)\n", [1]),
        ("comparisons of .kind", "a.kind == 'conv'\nkind == 2\na in b.kind\n", [1, 3]),
        ("comparisons of .kind", "a.dtype.kind in 'fV'\nnp.dtype(a).kind == 'f'\n", []),
        (
            "places outside of ops that name one",
            "from onnxbolt.ops.pool import a\nfrom onnxbolt.ops import b\nc = 'conv'\nd = 'con'\n",
            [1, 3],
        ),
        ("comparisons of .kind", "match a.kind:\n    case 1: pass\n", [1]),
        ("isinstance of problems", "isinstance(a, c.ConvProblem | int)\nisinstance(a, int)\n", [1]),
        (
            "functions with more than 8 parameters",
            "def f(self, a, b, c, d, e, *, f, g, h): ...\ndef g(a, b, c, d, e, f, g, *h, **i): ...",
            [2],
        ),
        (
            "classes with more than 12 fields",
            "class A:\n" + "".join(f"    a{i}: int\n" for i in range(13)) + "    b = 1\n"
            "class B:\n" + "".join(f"    a{i}: int\n" for i in range(12)),
            [1],
        ),
        (
            "imports inside functions",
            "import a\ndef f():\n    import b\n    from c import d\n",
            [3, 4],
        ),
    ],
)
def test_counts_of_syntax(title: str, text: str, lines: list[int]) -> None:
    places = list(structure.COUNTS[title](python(text)))
    assert places == [f"onnxbolt/some.py:{line}" for line in lines]


def test_stages_name_no_op_and_no_problem() -> None:
    tree = structure.working_tree()
    assert list(structure.ops(tree)) == []
    assert list(structure.problems(tree)) == []


def test_the_working_tree_has_its_families() -> None:
    tree = structure.working_tree()
    _, names = structure.families(tree)
    assert {"gemm_2x", "pool", "b2b_conv_2x"} <= names
    assert "onnxbolt/pipeline.py" in tree


def test_a_commit_is_read_as_the_working_tree_is() -> None:
    if subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True).returncode:
        pytest.skip("the checkout has no history")
    assert "onnxbolt/pipeline.py" in structure.revision("HEAD")
    with pytest.raises(subprocess.CalledProcessError):
        structure.revision("no such commit")


@pytest.mark.parametrize("folder", [folder for folder, _ in structure.ADDITIONS.values()])
def test_an_extension_touches_nothing_of_the_package(folder: str) -> None:
    tree = structure.working_tree()
    assert structure.files_of_extension(folder)
    assert structure.naming_extension(tree, folder) == []


def test_files_that_name_an_extension_are_found() -> None:
    tree = python("x = 'gemm_fma'")
    assert structure.naming_extension(tree, "gemm_fma") == ["onnxbolt/some.py"]
    assert structure.naming_extension(python("gemm_fmas"), "gemm_fma") == []


def test_every_folder_of_extending_is_counted() -> None:
    folders = {path.parent.name for path in (ROOT / "tests" / "extending").glob("*/__init__.py")}
    assert folders == {folder for folder, _ in structure.ADDITIONS.values()}


def test_a_family_is_named_in_its_folders_and_the_registry_alone() -> None:
    tree = structure.working_tree()
    assert [*structure.outsiders(tree), *structure.neighbours(tree)] == []


def test_an_op_s_or_cutlass_s_header_names_no_family() -> None:
    kernel = {"custom_ops/families/pool/kernel.h": "", "onnxbolt/list.py": LIST}
    for path, named in (
        ("ops/pool/arguments.h", 0),
        ("cutlass/pool.h", 0),
        ("families/pool/kernel.h", 1),
    ):
        tree = kernel | {"custom_ops/sm90/a.h": f'#include "{path}"'}
        assert len(list(structure.outsiders(tree))) == named, path
