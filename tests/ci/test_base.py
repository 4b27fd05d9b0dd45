"""Files of another commit: read by git alone, with any name, and without following links."""

from __future__ import annotations

import os
from pathlib import Path

import onnx
import pytest

from onnxbolt.ci.base import Base
from onnxbolt.errors import InputError
from tests.ci.repository import Repository, net


def test_a_model_comes_with_its_data(repository: Repository) -> None:
    apart = repository.path / "nets" / "apart.onnx"
    onnx.save(net(), apart, save_as_external_data=True, location="apart.bin", size_threshold=0)
    repository.commit()
    data = apart.with_name("apart.bin").read_bytes()
    apart.unlink()
    apart.with_name("apart.bin").write_bytes(b"other")
    with Base("main", repository.path / "nets") as base:
        found = base.model(apart)
        assert found is not None
        assert found.with_name("apart.bin").read_bytes() == data
        onnx.checker.check_model(onnx.load(found))
        assert base.model(repository.path / "nets" / "missing.onnx") is None
        assert base.file(repository.path / "locks" / "missing.lock") is None
        assert "apart.onnx" in base.below(repository.path / "nets")
        assert "nets/apart.onnx" in base.below(repository.path)
    assert not found.exists()


@pytest.mark.parametrize(
    "name",
    ["-rf", "$(touch pwned)", "`touch pwned`", "; touch pwned", "a b\n\tc", ":(glob)*", "*", "\\"],
)
def test_names_are_data(name: str, repository: Repository) -> None:
    repository.git("checkout", "--quiet", "-b", f"x{name.encode().hex()}")
    for folder in (".", name):
        (repository.path / folder).mkdir(exist_ok=True)
        (repository.path / folder / f"{name}.lock").write_text(f"in {folder}")
    repository.commit()
    with Base("HEAD", repository.path) as base:
        for folder in (".", name):
            found = base.file(repository.path / folder / f"{name}.lock")
            assert found is not None
            assert found.read_text() == f"in {folder}"
        assert base.below(repository.path / name) == [f"{name}.lock"]
    assert not list(repository.path.rglob("pwned*"))


def test_names_that_are_not_utf_8(repository: Repository) -> None:
    name = os.fsdecode(b"\xff\xfe.lock")
    (repository.path / name).write_text("found")
    repository.commit()
    with Base("main", repository.path) as base:
        found = base.file(repository.path / name)
        assert found is not None
        assert found.read_text() == "found"


def test_branches_named_like_commands_are_data(repository: Repository) -> None:
    name = "a;touch${IFS}pwned;$(touch${IFS}pwned)"
    repository.git("branch", name)
    with Base(name, repository.path) as base:
        assert base.commit == repository.git("rev-parse", "main").strip()
    assert not list(repository.path.rglob("pwned*"))


def test_a_branch_of_the_remote_comes_before_a_local_one(
    repository: Repository, tmp_path: Path
) -> None:
    new = repository.git("rev-parse", "main").strip()
    clone = Repository(tmp_path / "clone")
    (clone.path / "x").write_text("")
    clone.commit("Be old")
    clone.git("fetch", "--quiet", str(repository.path), "main:refs/remotes/origin/main")
    with Base("main", clone.path) as base:
        assert base.commit == new
    with Base(new[:10], clone.path) as base:
        assert base.commit == new


def test_links_are_not_followed(repository: Repository, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    (repository.path / "link.lock").symlink_to(secret)
    repository.commit()
    with Base("main", repository.path) as base:
        found = base.file(repository.path / "link.lock")
        assert found is not None
        assert not found.is_symlink()
        assert found.read_text() == str(secret)


def test_checkout_and_index_stay_as_they_are(repository: Repository) -> None:
    (repository.path / "nets" / "a.onnx").write_bytes(b"staged")
    repository.git("add", "--all")
    (repository.path / "nets" / "a.onnx").write_bytes(b"changed")
    index = (repository.path / ".git" / "index").read_bytes()
    with Base("main", repository.path) as base:
        found = base.model(repository.path / "nets" / "a.onnx")
        assert found is not None
        assert found.stat().st_size > 10
    assert (repository.path / ".git" / "index").read_bytes() == index
    assert (repository.path / "nets" / "a.onnx").read_bytes() == b"changed"


def test_without_a_repository_or_git_there_is_one_clear_error(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    with pytest.raises(InputError, match="not a git repository"), Base("main", tmp_path):
        pass
    with (
        Base("main", repository.path) as base,
        pytest.raises(InputError, match="outside of the repository"),
    ):
        base.file(tmp_path / "x.lock")
    monkeypatch.setenv("PATH", str(tmp_path))
    with (
        pytest.raises(InputError, match="git rev-parse failed: it is not installed"),
        Base("main", repository.path),
    ):
        pass
