"""Files and directories: the cache belongs to one user, and nothing is read that is too large or
has no end."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from onnxbolt.cli import main
from onnxbolt.errors import InputError
from onnxbolt.files import check_size, private_directory, read_lines, read_whole, write_whole
from onnxbolt.options import cache_directory
from onnxbolt.verify import feeds


def test_the_cache_is_made_for_this_user_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONNXBOLT_CACHE_DIR", str(tmp_path / "a" / "cache"))
    before = os.umask(0)
    try:
        assert cache_directory().stat().st_mode & 0o777 == 0o700
    finally:
        os.umask(before)
    assert cache_directory() == tmp_path / "a" / "cache"


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o757, 0o722, 0o1777])
def test_a_cache_that_others_may_write_to_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, capsys: pytest.CaptureFixture[str]
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(mode)
    monkeypatch.setenv("ONNXBOLT_CACHE_DIR", str(shared))
    assert main(["cache", "list"]) == 1
    assert "other users may write to" in capsys.readouterr().err
    assert not list(shared.iterdir())
    shared.chmod(0o755)
    assert main(["cache", "list"]) == 0


def test_a_cache_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = tmp_path.stat().st_uid
    if owner == 0:  # whom everybody trusts
        os.chown(tmp_path, 12345, -1)
    monkeypatch.setattr("os.geteuid", lambda: 54321)
    with pytest.raises(
        InputError, match=rf"belongs to another user \(id {owner or 12345}\).*the remedy"
    ):
        private_directory(tmp_path, "the remedy")


def test_a_cache_that_cannot_be_made_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot be created or used: Not a directory; the remedy"):
        private_directory(tmp_path / "file" / "cache", "the remedy")


def test_large_files_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(
        InputError, match=r"is too large: 1099511627776 bytes, and at most 1000 are read"
    ):
        read_whole(path, 1000)
    for command in (
        ["cache", "merge", path],
        ["optimize", path, tmp_path / "out.onnx", "--lock", path],
    ):
        assert main([str(word) for word in command]) == 1
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="is not a regular file"):
        check_size(tmp_path / "pipe", 1000)


def test_an_archive_is_not_unpacked_beyond_its_limit(
    small_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    np.savez_compressed(tmp_path / "bomb.npz", dense=np.zeros(10_000_000))
    assert (tmp_path / "bomb.npz").stat().st_size < 100_000
    monkeypatch.setattr(feeds, "_LARGEST_INPUTS", 10**7)
    monkeypatch.setattr(np.lib.format, "read_array", lambda *_, **__: pytest.fail("it was read"))
    assert (
        main(["verify", str(small_model), str(small_model), "--inputs", str(tmp_path / "bomb.npz")])
        == 1
    )
    assert "its arrays take 80000128 bytes" in capsys.readouterr().err


def test_long_lines_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("a\n" + "b" * 50)
    lines = read_lines(tmp_path / "lines", 20, 1000)
    assert next(lines) == "a\n"
    with pytest.raises(InputError, match="a line has more than 20 characters"):
        next(lines)


@pytest.mark.parametrize("end", [KeyboardInterrupt(), SystemExit(129), OSError(28, "No space")])
def test_a_file_that_is_not_written_leaves_nothing(
    end: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "table.md"
    path.write_text("before")

    def replace(source: Path, target: Path) -> None:
        assert Path(source).read_text() == "after"
        raise end

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(InputError if isinstance(end, OSError) else type(end)):
        write_whole(path, "after")
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_text() == "before"
