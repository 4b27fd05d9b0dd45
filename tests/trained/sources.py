"""Files of public repositories, each at a commit and with its SHA-256 (files.json): read from a
directory, or fetched from GitHub into the cache."""

from __future__ import annotations

import hashlib
import json
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from onnxbolt.errors import InputError
from onnxbolt.options import cache_directory

LIST = Path(__file__).with_name("files.json")
PATIENCE = 60  # seconds


@dataclass(frozen=True)
class File:
    """A file of a public repository."""

    repository: str  # owner/name
    commit: str
    path: str
    sha256: str

    @property
    def url(self) -> str:
        path = urllib.parse.quote(self.path)
        return f"https://raw.githubusercontent.com/{self.repository}/{self.commit}/{path}"


def listed(path: Path = LIST) -> dict[str, File]:
    """The files by "owner/name/path"."""
    found = {}
    for origin, files in json.loads(path.read_text()).items():
        repository, _, commit = origin.partition("@")
        for name, sha256 in files.items():
            found[f"{repository}/{name}"] = File(repository, commit, name, sha256)
    return found


class Store:
    """Files in a directory, each at owner/name/path. Files that are missing are fetched into it if
    it is the cache, not if the user named it."""

    def __init__(self, directory: Path | None = None) -> None:
        self.fetches = directory is None
        self.directory = directory or cache_directory() / "trained"

    def path(self, file: File) -> Path:
        """The file's place, once its content is the listed one. Raises InputError for another
        content, and if the file cannot be had."""
        path = self.directory / file.repository / file.path
        if not path.exists():
            if not self.fetches:
                raise InputError(f"{path} is missing; it is {file.url}")
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_name(f"{path.name}.part")
            part.write_bytes(_checked(_fetched(file.url), file, file.url))
            part.replace(path)
        _checked(path.read_bytes(), file, str(path))
        return path


def _fetched(url: str) -> bytes:
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
            data: bytes = answer.read()
    except (OSError, urllib.error.URLError) as error:
        raise InputError(
            f"{url} cannot be fetched: {error}. With the files at hand use --from DIR"
        ) from error
    return data


def _checked(data: bytes, file: File, where: str) -> bytes:
    sha256 = hashlib.sha256(data).hexdigest()
    if sha256 != file.sha256:
        raise InputError(f"{where} has the SHA-256 {sha256}, not {file.sha256}")
    return data
