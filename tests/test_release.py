"""A release's files are what an index takes, and its tag is its version."""

from __future__ import annotations

import subprocess
import tarfile
import zipfile
from email import message_from_string
from pathlib import Path

import pytest

import onnxbolt
from tests import release
from tests.conftest import ROOT


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    out = tmp_path_factory.mktemp("dist")
    release.build(ROOT, out)  # twine and check-wheel-contents have looked at them
    return {path.suffix: path for path in out.iterdir()}


def test_the_version_has_one_source(files: dict[str, Path]) -> None:
    assert release.version() == onnxbolt.__version__
    assert {path.name.split("-")[1].removesuffix(".tar.gz") for path in files.values()} == {
        onnxbolt.__version__
    }


def test_the_wheel_has_metadata_types_and_licences(files: dict[str, Path]) -> None:
    with zipfile.ZipFile(files[".whl"]) as wheel:
        names = set(wheel.namelist())
        folder = f"onnxbolt-{onnxbolt.__version__}.dist-info"
        metadata = message_from_string(wheel.read(f"{folder}/METADATA").decode())
        assert wheel.read(f"{folder}/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()
    assert {"onnxbolt/py.typed", "onnxbolt/codegen/notice.txt"} <= names
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"
    assert "Typing :: Typed" in metadata.get_all("Classifier", [])
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata.get_payload() == (ROOT / "README.md").read_text()


def test_the_sdist_makes_the_same_wheel(files: dict[str, Path], tmp_path: Path) -> None:
    with tarfile.open(files[".gz"]) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    assert not (source / "tests").exists()
    release.build(source, tmp_path / "dist")
    (again,) = (tmp_path / "dist").glob("*.whl")
    with zipfile.ZipFile(files[".whl"]) as wheel, zipfile.ZipFile(again) as made:
        assert {name: wheel.read(name) for name in wheel.namelist()} == {
            name: made.read(name) for name in made.namelist()
        }


CHANGES = """# Changelog

## Unreleased

## 0.3.0 - 2026-11-27
### Added
- a thing

## 0.2.0 - 2026-01-01
"""
UNDATED = CHANGES.replace("2026-11-27", "not released yet")
MORE = CHANGES.replace("Unreleased\n", "Unreleased\n- more\n")
CASES: dict[str, tuple[list[str], str, list[str]]] = {
    "no tag": ([], CHANGES, []),
    "its tag": (["v0.3.0"], CHANGES, []),
    "another tag": (["v0.3.1"], CHANGES, ["v0.3.1 is not v0.3.0, the version in onnxbolt/version"]),
    "a tag without v": (["0.3.0"], CHANGES, ["tag 0.3.0 is not v0.3.0"]),
    "two tags": (["v0.3.0", "v1"], CHANGES, ["tag v1 is not v0.3.0"]),
    "no date, no tag": ([], UNDATED, []),
    "no date": (["v0.3.0"], UNDATED, ["section 0.3.0 has no date"]),
    "unreleased, no tag": ([], MORE, []),
    "unreleased": (["v0.3.0"], MORE, ["has unreleased entries"]),
    "another version above": ([], CHANGES.replace("0.3.0", "0.2.5"), ["no section 0.3.0 above"]),
    "no section": ([], "# Changelog\n", ["has no section 0.3.0"]),
}


@pytest.mark.parametrize("case", CASES)
def test_a_tag_is_the_version_and_the_changelog_has_it(tmp_path: Path, case: str) -> None:
    tags, changes, messages = CASES[case]
    (tmp_path / "onnxbolt").mkdir()
    (tmp_path / "onnxbolt/version.py").write_text('"""Doc."""\n\n__version__ = "0.3.0"\n')
    (tmp_path / "CHANGELOG.md").write_text(changes)
    found = [*release.problems(tmp_path, tags)]
    assert len(found) == len(messages)
    assert all(message in problem for message, problem in zip(messages, found, strict=True))


def test_tags_of_the_commit_are_found(tmp_path: Path) -> None:
    assert release.tags_here(tmp_path) == []  # no repository
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.com"]
    for command in (
        ["init", "--quiet"],
        ["commit", "--quiet", "--allow-empty", "--message", "one"],
        ["tag", "v1.2.3"],
        ["tag", "other"],
    ):
        subprocess.run([*git, *command], cwd=tmp_path, check=True)
    assert release.tags_here(tmp_path) == ["v1.2.3"]


def test_this_commit_can_be_released_under_its_tags() -> None:
    assert [*release.problems(ROOT, release.tags_here())] == []


def test_nothing_is_built_for_a_wrong_tag(capsys: pytest.CaptureFixture[str]) -> None:
    assert release.main(["v99.0"]) == 1
    assert "error: tag v99.0 is not v" in capsys.readouterr().err
