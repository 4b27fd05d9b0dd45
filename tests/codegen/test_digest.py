"""The digest of kernels' sources: what changes it, and what does not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from onnxbolt.codegen import digest
from onnxbolt.codegen.digest import equal_digests, kernel_sources_digest, normalized, sources_digest
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
    """What a test makes of the sources is no later test's."""
    yield
    kernel_sources_digest.cache_clear()
    equal_digests.cache_clear()


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
    kernel_sources_digest.cache_clear()
    assert kernel_sources_digest() == before
    (tmp_path / directory / "new.h").write_text("int x;")
    kernel_sources_digest.cache_clear()
    assert kernel_sources_digest() != before


def test_equal_digests_hold_for_the_sources_that_were_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "equal.json"
    monkeypatch.setattr(digest, "EQUAL", table)
    table.write_text(json.dumps({"kernels": kernel_sources_digest(), "equal": ["before"]}))
    assert equal_digests() == {"before"}
    equal_digests.cache_clear()
    table.write_text(json.dumps({"kernels": "others", "equal": ["before"]}))
    assert equal_digests() == frozenset()
