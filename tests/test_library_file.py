"""A library's manifest is read from the file: none of its code runs before it is known to be the
right one."""

from __future__ import annotations

import hashlib
import json
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Any

import onnx
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxbolt import runtime
from onnxbolt.cli import main
from onnxbolt.errors import InputError, LibraryError
from onnxbolt.library_file import Library, read_manifest, sha256_of
from onnxbolt.runtime import CUDA, get_library_path, session_options
from tests import library_fixtures as fx

DIGEST = "a" * 64
SOURCE = """
#include <stdio.h>
__attribute__((section(".onnxbolt"), used)) static const char manifest[] = %s;
__attribute__((constructor)) static void run(void) { fclose(fopen("%s", "w")); }
int onnxbolt_probe(int device, char* reason, size_t size) {
  snprintf(reason, size, "this is a test");
  return 0;
}
"""


def manifest(**changes: Any) -> str:
    return json.dumps(
        {"format": 1, "digest": DIGEST, "archs": [80], "ops": ["FusedGemm_f16"], **changes}
    )


def compiled(path: Path, marker: Path, text: str) -> Path:
    """A library that says `text` of itself, and makes a file when it is loaded."""
    (path.parent / "evil.c").write_text(SOURCE % (json.dumps(text), marker))
    subprocess.run(
        ["gcc", "-shared", "-fPIC", str(path.parent / "evil.c"), "-o", str(path)], check=True
    )
    return path


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A small sound library."""
    return compiled(
        tmp_path_factory.mktemp("sound") / "x.so", Path("/nowhere/ran"), manifest()
    ).read_bytes()


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(ort, "get_available_providers", lambda: [CUDA, "CPUExecutionProvider"])
    monkeypatch.setattr(runtime, "cuda_failure", lambda device: "")
    path = tmp_path / "out.onnx"
    onnx.save(fx.fused_model(fx.GEMM, [4, 8], (16, 8), [[16]], digest=DIGEST), path)
    return path


@pytest.mark.parametrize(
    "text", [manifest(digest="b" * 64), manifest(digest=1), "no JSON", "[" * 100_000, "{}", ""]
)
def test_a_library_that_does_not_match_is_not_loaded(model: Path, text: str) -> None:
    marker = model.with_name("ran")
    compiled(get_library_path(model), marker, text)
    with pytest.raises(
        LibraryError, match=r"is not the library of|is damaged or not an onnxbolt library"
    ):
        session_options(model)
    assert not marker.exists()


def test_only_the_bytes_that_were_asked_for_are_loaded(model: Path) -> None:
    marker = model.with_name("ran")
    library = compiled(get_library_path(model), marker, manifest())
    with pytest.raises(LibraryError, match="has SHA-256"):
        session_options(model, library_sha256="0" * 64)
    for wrong in ("", "x", sha256_of(library)[:-1]):
        with pytest.raises(InputError, match=r"library_sha256='.*' is not a SHA-256 sum"):
            session_options(model, library_sha256=wrong)
    assert not marker.exists()
    with pytest.raises(LibraryError, match="this is a test"):  # it was loaded: the sum is right
        session_options(model, library_sha256=sha256_of(library).upper(), strict=True)
    assert marker.exists()


def test_exchanging_the_file_after_the_check_changes_nothing(tmp_path: Path) -> None:
    good = compiled(tmp_path / "good.so", tmp_path / "good", manifest())
    sums = sha256_of(good)
    library = Library(good, "", sums)
    shutil.copy(compiled(tmp_path / "evil.so", tmp_path / "evil", manifest()), good)
    assert library.probe() == (0, "this is a test")
    assert (tmp_path / "good").exists()
    assert not (tmp_path / "evil").exists()
    with open(library.loadable, "rb") as file:
        assert hashlib.sha256(file.read()).hexdigest() == sums
    with pytest.raises(PermissionError), open(library.loadable, "r+b") as file:
        file.write(b"x")


def test_the_same_bytes_are_loaded_once(tmp_path: Path, content: bytes) -> None:
    paths = [tmp_path / "a.so", tmp_path / "b.so"]
    for path in paths:
        path.write_bytes(content)
    assert len({Library(path, "", sha256_of(path)).loadable for path in paths}) == 1


def test_onnxruntime_takes_the_private_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ort, "get_available_providers", lambda: [CUDA, "CPUExecutionProvider"])
    monkeypatch.setattr(runtime, "cuda_failure", lambda device: "")
    built = fx.host_library(tmp_path / "out.onnxbolt.so", [fx.GEMM])
    onnx.save(
        fx.fused_model(fx.GEMM, [4, 8], (16, 8), [[16]], digest=built.manifest.digest),
        tmp_path / "out.onnx",
    )
    options = session_options(
        tmp_path / "out.onnx", library_sha256=sha256_of(built.path), strict=True
    )
    ort.InferenceSession(tmp_path / "out.onnx", options, providers=["CPUExecutionProvider"])


def test_inspect_loads_nothing(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    marker = model.with_name("ran")
    assert main(["inspect", str(model)]) == 0
    assert "library: no library beside the model. Run: onnxbolt build" in capsys.readouterr().out
    library = compiled(get_library_path(model), marker, manifest())
    assert main(["inspect", str(model)]) == 0
    assert (
        f"library: out.onnxbolt.so, kernels for sm_80, SHA-256 {sha256_of(library)}"
        in capsys.readouterr().out
    )
    assert main(["inspect", "--json", str(model)]) == 0
    assert json.loads(capsys.readouterr().out)["library"]["sha256"] == sha256_of(library)
    compiled(library, marker, manifest(digest="b" * 64))
    assert main(["inspect", str(model)]) == 0
    assert "library: out.onnxbolt.so belongs to another model" in capsys.readouterr().out
    library.write_bytes(b"words")
    assert main(["inspect", str(model)]) == 0
    assert "library: out.onnxbolt.so is damaged" in capsys.readouterr().out
    assert not marker.exists()


@settings(max_examples=300, derandomize=True, deadline=None, database=None)
@given(st.data())
def test_damaged_elf_files_are_refused(content: bytes, data: st.DataObject) -> None:
    """Any number of the header and of the section table: nothing but a ValueError, or the
    manifest."""
    tables = struct.unpack_from("<QQ", content, 32)
    ranges = [
        (16, 64),
        *((table, table + 200) for table in tables),
        (len(content) - 700, len(content)),
    ]
    damaged = bytearray(content)
    for _ in range(data.draw(st.integers(1, 4))):
        begin, end = data.draw(st.sampled_from(ranges))
        at = data.draw(st.integers(begin, min(end, len(content) - 8)))
        damaged[at : at + 8] = data.draw(
            st.sampled_from([b"\xff" * 8, b"\0" * 8, b"\xff" * 7 + b"\x7f"])
            | st.binary(min_size=8, max_size=8)
        )
    for file in (bytes(damaged), content[: data.draw(st.integers(0, len(content) - 1))]):
        try:
            assert read_manifest(file).digest == DIGEST
        except ValueError:
            continue
