"""The digest of kernels' sources: what changes it, and what does not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from onnxbolt.codegen import digest
from onnxbolt.codegen.digest import (
    families_digests,
    family_sources_digest,
    holds,
    kernel_sources_digest,
    normalized,
    same_kernels,
    sources_digest,
    valid_digests,
)
from onnxbolt.codegen.resources import resource_dir

KERNEL = """// A kernel.
#pragma once
#include <cuda.h>

#include "sm90/wgmma.h"

#define ROUND(x) \\
  ((x) + 1)
__global__ void Copy(const float* from, float* to) {
  to[threadIdx.x] = from[threadIdx.x];  // one each
}
"""


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    """Clears the caches of sources, so that one test's changes do not reach later tests."""
    yield
    for each in (digest._kernel_sources_digest, digest._table, family_sources_digest):
        each.cache_clear()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("// A kernel.\n", ""),
        ("// A kernel.", "/* Another\n comment. */"),
        ("  // one each", ""),
        ("const float* from", "const float *from"),
        ("(const float* from, float* to)", "(const float* from,\n                     float* to)"),
        ("\\\n  ((x)", "((x)"),
        ('#include "sm90/wgmma.h"', '#include "sm90/parts/wgmma.h"'),
    ],
)
def test_layout_comments_and_file_names_leave_it_as_it_is(old: str, new: str) -> None:
    assert old in KERNEL
    assert sources_digest([KERNEL.replace(old, new)]) == sources_digest([KERNEL])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("float* to", "half* to"),
        ("+ 1", "+ 2"),
        ("void Copy", "voidCopy"),
        ("<cuda.h>", "<cuda_fp16.h>"),
        ("= from", "== from"),
    ],
)
def test_every_other_change_changes_it(old: str, new: str) -> None:
    assert old in KERNEL
    assert sources_digest([KERNEL.replace(old, new)]) != sources_digest([KERNEL])


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ('"// no comment"  + x', '"// no comment"+x'),
        ("'\"' + y // z", "'\"'+y"),
        ('R"(a  // b)" + 1', 'R"(a  // b)"+1'),
        ("a + +b", "a+ +b"),
        ("a++ + b", "a++ +b"),
        ("int  a ;", "int a;"),
        ("{# a template's #}{{ x }}", "{{x}}"),
        ("#if A  // why\nb\n#endif", "\n#if A\nb\n#endif\n"),
    ],
)
def test_normalized_text(text: str, kept: str) -> None:
    assert normalized(text) == kept


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param("// a \\\nint x;", "// a\nint x;", id="a comment goes on in the next line"),
        pytest.param("// a \\ \nint x;", "// a\nint x;", id="with a space behind the backslash"),
        pytest.param("in\\\nt x;", "in \\\nt x;", id="a token across lines"),
        pytest.param("#define A b\\\nc", "#define A b \\\nc", id="a macro's token across lines"),
        pytest.param("#define A 1 /* b */ + 2", "#define A 1\n+ 2", id="a macro's inner comment"),
        pytest.param("#define A 1 /*\n*/ + 2", "#define A 1\n+ 2", id="a macro's long comment"),
        pytest.param("/**/ #define A 1\n+ 2", "/**/ #define A 1 + 2", id="a comment before #"),
        pytest.param("%:define A 1\n+ 2", "%:define A 1 + 2", id="the digraph of #"),
        pytest.param("#define A(b) c", "#define A (b) c", id="a macro with parameters"),
        pytest.param("#define A(b) c", "#define A\t(b) c", id="a tab before a macro's bracket"),
        pytest.param("#define A\t1", "#define A1", id="a tab behind a macro's name"),
        pytest.param("a & &b", "a && b", id="the address of an operand"),
        pytest.param("a - -b", "a --b", id="the negative of an operand"),
        pytest.param("a + ++b", "a++ + b", id="increments"),
        pytest.param("a+/**/+b", "a++b", id="a comment between operators"),
        pytest.param("a/**/b", "ab", id="a comment between words"),
        pytest.param("&operator> >", "&operator>>", id="the name of an operator"),
        pytest.param("#define A # #", "#define A ##", id="the operator that pastes"),
        pytest.param("a $b", "a$b", id="a dollar in a word"),
        pytest.param("a \\u00e9", "a\\u00e9", id="a universal character name"),
        pytest.param("1 a", "1a", id="a number's suffix"),
        pytest.param("1'0; f(\"a'b  c\")", "1'0; f(\"a'b c\")", id="digit separators"),
        pytest.param('"a" _b', '"a"_b', id="a literal's suffix"),
        pytest.param('L "a"', 'L"a"', id="a literal's prefix"),
        pytest.param('R "(a)"', 'R"(a)"', id="a raw string's prefix"),
        pytest.param("u8 'a'", "u8'a'", id="a character's prefix"),
        pytest.param('u8R"x(a " b  c)x"', 'u8R"x(a " b c)x"', id="a raw string with a prefix"),
        pytest.param('R"(a\n// b)"', 'R"(a\n// c)"', id="what looks like a comment in a string"),
        pytest.param(
            '#define A R"(a\n// b)"', '#define A R"(a\n// c)"', id="a raw string in a macro"
        ),
        pytest.param('#define A R"(\\\n)"', '#define A R"( )"', id="a backslash in a raw string"),
        pytest.param('"a\u00a0b"', '"a b"', id="white space that C++ does not know"),
        pytest.param("#include <a//b.h>", "#include <a//c.h>", id="slashes in a header's name"),
    ],
)
def test_white_space_and_comments_count_where_the_program_differs(one: str, other: str) -> None:
    assert sources_digest([one]) != sources_digest([other])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param('#include "a.h"  // why', "", id="a comment behind an include"),
        pytest.param("# define A  1", "#define A 1", id="a space behind #"),
        pytest.param("#define A 1 // b", "#define A 1", id="a comment behind a macro"),
        pytest.param("#define A(b) \\\n  /* c */ \\\n  b", "#define A(b) b", id="in a long macro"),
        pytest.param("// what??/\nint x;", "int x;", id="a trigraph, which C++17 does not know"),
        pytest.param("A<B<C> >", "A<B<C>>", id="template arguments"),
        pytest.param("1'000 /* a */", "1'000", id="a comment behind digit separators"),
        pytest.param("f('\"'); // \"", "f('\"');", id="quotes"),
        pytest.param('"a"  "b"', '"a""b"', id="strings in a row"),
        pytest.param("a /* b\n c */ b", "a b", id="a comment of several lines"),
        pytest.param("#define A\t-1", "#define A -1", id="a tab in a macro"),
        pytest.param("a\r\n\fb", "a b", id="all kinds of white space"),
    ],
)
def test_what_the_compiler_does_not_see_does_not_count(one: str, other: str) -> None:
    assert sources_digest([one]) == sources_digest([other])


def test_the_order_of_files_does_not_count() -> None:
    assert sources_digest(["int a;", "int b;"]) == sources_digest(["int b;", "", "int a;"])


@pytest.mark.parametrize("directory", ["custom_ops", "templates"])
def test_it_covers_kernels_and_templates(
    directory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = kernel_sources_digest()
    for name in ("custom_ops", "templates"):
        shutil.copytree(resource_dir(name), tmp_path / name)
    monkeypatch.setattr(digest, "resource_dir", tmp_path.joinpath)
    digest._kernel_sources_digest.cache_clear()
    assert kernel_sources_digest() == before
    (tmp_path / directory / "new.h").write_text("int x;")
    digest._kernel_sources_digest.cache_clear()
    assert kernel_sources_digest() != before


def _table(path: Path, sources: object, equal: object, monkeypatch: pytest.MonkeyPatch) -> None:
    path.write_text(json.dumps({"sources": sources, "equal": equal}))
    monkeypatch.setattr(digest, "EQUAL", path)
    digest._table.cache_clear()


def test_measurements_hold_for_families_whose_sources_have_not_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = families_digests()
    before = {"a": now, "b": now | {"pool": "others"}, "c": now | {"removed": "others"}}
    _table(tmp_path / "equal.json", before, {}, monkeypatch)
    assert valid_digests() == {kernel_sources_digest(), "a", "b", "c"}
    for name in before:
        assert holds(name, "gemm_sm90")
    assert [name for name in before if holds(name, "pool")] == ["a", "c"]
    assert not holds("a", "of_an_extension")
    assert [name for name in before if holds(name)] == ["a"]
    assert not holds("unknown", "gemm_sm90")
    assert not holds("unknown")
    assert holds(kernel_sources_digest(), "of_an_extension")
    assert holds(kernel_sources_digest())


def test_measurements_hold_for_families_with_the_same_machine_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = families_digests()
    before = {"a": now | {"pool": "others"}, "b": now | {"pool": "slower"}}
    equal = {"pool": [["others", now["pool"]], ["slower", "slow"]]}
    _table(tmp_path / "equal.json", before, equal, monkeypatch)
    assert [name for name in before if holds(name, "pool")] == ["a"]
    assert [name for name in before if holds(name)] == ["a"]
    assert same_kernels("pool", "others")
    assert not same_kernels("pool", "slow")
    assert not same_kernels("of_an_extension", "")


def test_a_change_of_one_family_leaves_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, then = kernel_sources_digest(), families_digests()
    for name in ("custom_ops", "templates"):
        shutil.copytree(resource_dir(name), tmp_path / name)
    monkeypatch.setattr(digest, "resource_dir", tmp_path.joinpath)
    with (tmp_path / "custom_ops" / "families" / "pool" / "kernel.h").open("a") as header:
        header.write("int x;")
    for each in (digest._kernel_sources_digest, family_sources_digest):
        each.cache_clear()
    _table(tmp_path / "equal.json", {before: then}, {}, monkeypatch)
    assert before != kernel_sources_digest()
    assert {name for name in then if not holds(before, name)} == {"pool"}
