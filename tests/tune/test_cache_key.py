"""`onnxbolt cache key`: what changes the key for CI caches, and what does not."""

from __future__ import annotations

import dataclasses
import os
import re
from pathlib import Path

import pytest

from onnxbolt.cli import main
from onnxbolt.codegen.nvcc import find_toolchain
from onnxbolt.errors import InputError, ToolchainError
from onnxbolt.tune import cache_key as module
from onnxbolt.tune.cache_key import cache_key


def test_the_key_follows_all_that_decides_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    first = cache_key()
    assert re.fullmatch(r"onnxbolt-[0-9a-f]{16}", first)
    assert cache_key() == first
    other = dataclasses.replace(find_toolchain(), version="99.0.1")
    for name, value in (
        ("find_toolchain", lambda: other),
        ("is_absent", lambda: True),
        ("present_sources_digest", lambda: "other sources"),
        ("cutlass_version", lambda toolchain: "9.9"),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(module, name, value)
            assert cache_key() != first, name
    assert cache_key() == first


def test_lock_files_add_a_part_that_follows_their_contents(tmp_path: Path) -> None:
    locks = tmp_path / "locks"
    (locks / "sub").mkdir(parents=True)
    (locks / "a.lock").write_text("a")
    (locks / "sub" / "b.lock").write_text("b")
    found = cache_key([locks])
    assert re.fullmatch(rf"{cache_key()}-[0-9a-f]{{16}}", found)
    assert cache_key([locks / "sub" / "b.lock", locks / "a.lock", locks]) == found
    (locks / "a.lock").rename(locks / "$(touch x)\n.lock")
    assert cache_key([locks]) == found
    (locks / "model.onnx").write_text("a model beside its lock file")
    assert cache_key([locks]) == found
    (locks / "sub" / "b.lock").write_text("c")
    assert cache_key([locks]) != found


def test_a_file_that_is_missing_or_a_compiler_that_is_broken_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match=r"missing\.lock: cannot be read: No such file"):
        cache_key([tmp_path / "missing.lock"])
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    with pytest.raises(ToolchainError, match="Correct CUDA_HOME or unset it"):
        cache_key()


def test_a_pipe_which_might_never_end_is_an_error(tmp_path: Path) -> None:
    pipe = tmp_path / "x.lock"
    os.mkfifo(pipe)
    for place in (pipe, tmp_path):
        with pytest.raises(InputError, match=r"x\.lock: is not a regular file"):
            cache_key([place])


def test_the_command_prints_the_key_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lock = tmp_path / "onnxbolt.lock"
    lock.write_text("x")
    assert main(["cache", "key", str(lock)]) == 0
    assert capsys.readouterr().out == f"{cache_key([lock])}\n"
