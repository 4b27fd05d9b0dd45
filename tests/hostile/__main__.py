"""Try every hostile input: `python -m tests.hostile`. The exit code is 1 where one was not
refused as it should be."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import onnx

from tests.hostile import archives, extensions, locks, models
from tests.hostile.trial import complaint
from tests.hostile.words import hostile_strings


def main() -> int:
    """Print how many inputs of each kind were tried, and what is wrong."""
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["ONNXBOLT_CACHE_DIR"] = str(Path(scratch, "cache"))
        marker, tried, complaints = Path(scratch, "ran"), dict[str, int](), 0
        for kind, name, found in _trials(Path(scratch), marker):
            tried[kind] = tried.get(kind, 0) + 1
            if found:
                complaints += 1
                print(f"{kind}, {name}: {found}", flush=True)
    for kind, count in tried.items():
        print(f"{count:6d} {kind}")
    print(
        f"{sum(tried.values()):6d} in all; {complaints} of them ran code, hung, left a file or"
        " ended in anything but one line"
    )
    return 1 if complaints else 0


def _trials(scratch: Path, marker: Path) -> Iterator[tuple[str, str, str]]:
    words = hostile_strings(marker)
    for name, make in models.hostile_models(marker):
        path = _saved(make(), scratch / "models")
        yield "models, built", name, complaint(["build", path], path.parent, marker)
        yield (
            "models, inspected",
            name,
            complaint(["inspect", path], path.parent, marker, may_pass=True),
        )
    for kind, found in (
        ("models with external data", archives.external_models),
        ("models of enormous shapes", archives.enormous_models),
        ("deep models", archives.deep_models),
    ):
        directory = scratch / kind
        directory.mkdir()
        for name, model in found(directory) if found is archives.external_models else found():  # type: ignore[call-arg]
            path = _saved(model, directory)
            yield (
                kind,
                name,
                complaint(
                    ["optimize", path, directory / "out.onnx", "--dry-run"],
                    directory,
                    marker,
                    may_pass=True,
                ),
            )
    (scratch / "extensions").mkdir()
    for name, said in extensions.trials(scratch / "extensions", marker):
        yield "extensions", name, said
    sound = _saved(archives.small([onnx.helper.make_node("Relu", ["x"], ["y"])]), scratch / "locks")
    for name, text in locks.hostile_locks(words, share=6):
        (sound.parent / "x.lock").write_text(text)
        command = [
            "optimize",
            sound,
            sound.with_name("out.onnx"),
            "--dry-run",
            "--lock",
            sound.with_name("x.lock"),
        ]
        yield "lock files", name, complaint(command, sound.parent, marker, may_pass=True)
    files = scratch / "files"
    files.mkdir()
    for name, text in locks.hostile_exports(words):
        (files / "x.jsonl").write_text(text)
        yield (
            "exports",
            name,
            complaint(["cache", "merge", files / "x.jsonl"], files, marker, may_pass=True),
        )
    for name, path in locks.hostile_databases(words, files):
        yield "databases", name, complaint(["cache", "merge", path], files, marker, may_pass=True)


def _saved(model: onnx.ModelProto, directory: Path) -> Path:
    directory.mkdir(exist_ok=True)
    onnx.save(model, directory / "evil.onnx")
    return directory / "evil.onnx"


if __name__ == "__main__":
    sys.exit(main())
