"""Result files: benchmarks/results/<benchmark>-<gpu>.json, one for each benchmark and GPU, written
by the benchmark's command alone. A later run of some of the rows may stand beside it, in a file
whose name ends in -<commit>.

    {"schema": 2, "gpu", "driver", "versions", "commit", "sources", "commands": [..],
     "planned": [[name, batch], ..], "rows": [Row, ..], "digest"}

All rows of a file are of one GPU, one commit and one state of the measured sources: `write_results`
refuses to mix them. `commands` are those that wrote the rows, each as it was called; `planned` are
the rows that a whole run has, where that is known. `digest` is over all else, so that an edited
file does not pass for a measured one.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shlex
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock

from benchmarks import machine
from benchmarks.common import Row
from onnxbolt.errors import InputError

SCHEMA = 2
RESULTS = Path(__file__).with_name("results")
DIRECTORY = (  # environment variable: where result files are written, other than RESULTS
    "ONNXBOLT_BENCHMARK_RESULTS"
)
_ORIGIN = ("gpu", "driver", "versions", "commit", "sources")

Document = dict[str, Any]


def write_results(
    benchmark: str,
    rows: Sequence[Row],
    out: Path | None = None,
    append: bool = False,
    planned: Iterable[tuple[str, int]] = (),
    gpu: str = "",
) -> Path:
    """Write the result file, to `out` or to its place, and return where; a half-written file is
    never left.

    `append` keeps the rows of an existing file that were not measured again: long benchmarks can
    run in parts, and several processes may write one file. Rows of another commit stay alone: the
    new ones go to a file beside theirs, named by the commit. Raises InputError where the rows of
    `out`, or of one commit, are of other sources or of another GPU. `gpu` names the one whose
    measurements the rows were computed from, maybe elsewhere.
    """
    path = result_path(benchmark, out, gpu)
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(_lock(path)):
        document = described(benchmark, rows, planned)
        if gpu and gpu != document["gpu"]:
            document = {**document, "gpu": gpu, "driver": ""}
        if append and out is None and path.exists() and not _of_one_commit(path, document):
            path = beside(path, document)
        if append and path.exists():
            document = joined(json.loads(path.read_text()), document, path)
        write(path, document)
    return path


def _of_one_commit(path: Path, document: Document) -> bool:
    return bool(json.loads(path.read_text()).get("commit") == document["commit"])


def beside(path: Path, document: Document) -> Path:
    """The place for rows of another commit than those of `path`."""
    return path.with_stem(f"{path.stem}-{document['commit'][:12]}")


def _lock(path: Path) -> Path:
    """The file's lock, in another directory, so that a directory of results contains only
    results."""
    return (
        Path(tempfile.gettempdir())
        / f"onnxbolt-{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:16]}.lock"
    )


def result_path(benchmark: str, out: Path | None = None, gpu: str = "") -> Path:
    """`out`, or the benchmark's place in the directory of results for `gpu`, or else this one."""
    directory, name = Path(os.environ.get(DIRECTORY, RESULTS)), gpu or machine.gpu_name()
    return out or directory / f"{benchmark}-{name.lower().replace(' ', '-')}.json"


def described(
    benchmark: str, rows: Iterable[Row], planned: Iterable[tuple[str, int]] = ()
) -> Document:
    """A document of `rows`, measured here and now by the running command."""
    command = shlex.join(["python", "-m", _module() or f"benchmarks.{benchmark}", *sys.argv[1:]])
    return {
        "schema": SCHEMA,
        "gpu": machine.gpu_name(),
        "driver": machine.ask_driver("driver_version"),
        "versions": machine.versions(),
        "commit": machine.commit(),
        "sources": machine.sources(),
        "commands": [command],
        "planned": [list(place) for place in planned],
        "rows": [dataclasses.asdict(row) for row in rows],
    }


def _module() -> str:
    """The module of the running benchmark, "" if another program calls it."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec.name if spec is not None and spec.name.startswith("benchmarks.") else ""


def joined(old: Document, new: Document, where: Path) -> Document:
    """`new` with those rows of `old` that it does not measure again. Raises InputError unless
    both are of one origin."""
    for field in _ORIGIN:
        if old.get(field) != new[field]:
            raise InputError(
                f"{where}: its rows have {field} {old.get(field)}, the new ones {new[field]}; one"
                " file holds rows of one commit on one machine: measure all of them again, or"
                " write to another file"
            )
    measured = {key(row) for row in new["rows"]}
    rows = [row for row in old["rows"] if key(row) not in measured] + new["rows"]
    return {
        **new,
        "commands": list(dict.fromkeys((*old["commands"], *new["commands"]))),
        "rows": rows,
    }


def missing(document: Document) -> list[str]:
    """The planned rows that the document lacks, or that failed: 'resnet50 (32)', or the name alone
    where the batch is no part of the row."""
    found = {
        (row["name"], row["batch"]) for row in document["rows"] if "failure" not in row["values"]
    }
    return [
        f"{name} ({batch})" if batch else name
        for name, batch in document.get("planned", ())
        if (name, batch) not in found
    ]


def key(row: dict[str, Any]) -> tuple[str, int, str]:
    """The fields that distinguish a row from the others of its file."""
    return row["name"], row["batch"], row["dtype"]


def write(path: Path, document: Document) -> None:
    """Write the document with its digest; no partial file is left on errors."""
    sealed = {**document, "digest": digest(document)}
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_text(json.dumps(sealed, indent=1) + "\n")
    temporary.replace(path)


def digest(document: Document) -> str:
    """The digest of a document without its own field `digest`."""
    content = {field: value for field, value in document.items() if field != "digest"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def is_sealed(document: Document) -> bool:
    """True if the document is as its command wrote it."""
    return document.get("schema") == SCHEMA and document.get("digest") == digest(document)
